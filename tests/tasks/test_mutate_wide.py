import ast
import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.tasks.mutation import KINDS, applied, changes, file_diff, functions, removal, replacement
from patchwright.tasks.mutation.whole import stub
from patchwright.tasks.synthesis import SynthesisConfig, synthesize

EVERYTHING = '''"""Prose."""


class Reader:
    def parse(self, text, sep=",", limit=10, strict=True):
        """Docstring stays."""
        found = []  # a comment
        if not text:
            return found
        for part in sorted(text.strip().split(sep)):
            if part == "skip":
                continue
            if len(found) >= limit or part is None:
                break
            try:
                number = int(part)
            except (ValueError, TypeError):
                number = -limit if strict else 0
            else:
                number += 1
            if number > 1:
                found.append(number)
            else:
                found.insert(0, max(number, limit))
        tail = found[1:limit]
        label = self.names.get(tail[0], "none") or "x"
        while tail and True:
            tail = tail[1:]
        return dict(key=label, rest=[n * 2 for n in found if n], size=len(tail), last=found[-1])


def alone(x): return x.strip()
'''


def test_every_kind_is_documented_and_made():
    assert len(KINDS) >= 12
    assert {change.kind for change in changes(EVERYTHING)} == set(KINDS)


def test_a_change_is_python_and_leaves_all_else_as_it_was():
    before = EVERYTHING.encode()
    for change in changes(EVERYTHING):
        start, end, new = change.edit
        text = applied(EVERYTHING, [change.edit])
        assert text.encode() == before[:start] + new.encode() + before[end:] != before
        assert '"""Docstring stays."""' in text and text.startswith('"""Prose."""')


def test_a_change_stays_in_its_function():
    for change in changes(EVERYTHING):
        rest = [
            ast.dump(node)
            for source in (EVERYTHING, applied(EVERYTHING, [change.edit]))
            for name, node in functions(ast.parse(source))
            if name != change.function
        ]
        assert rest[0] == rest[1]
    assert {change.function for change in changes(EVERYTHING, "alone")} == {"alone"}


def one(kind, source):
    return {applied(source, [change.edit]) for change in changes(source) if change.kind == kind}


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("negate", "if a:\n        b()", "if not (a):\n        b()"),
        ("guard", "if a:\n        return 1\n    return 2", "return 2"),
        ("noelse", "if a:\n        b()\n    else:\n        c()", "if a:\n        b()"),
        ("loop", "for a in b:\n        break", "for a in b:\n        continue"),
        (
            "handler",
            "try:\n        b()\n    except:\n        c()",
            "try:\n        b()\n    except:\n        raise",
        ),
        ("keyword", "return f(a, key=1)", "return f(a)"),
        ("slice", "return a[1:]", "return a[:]"),
        ("index", "return a[-1]", "return a[0]"),
        ("ternary", "return 1 if a else 2", "return 2 if a else 1"),
        ("filter", "return [b for b in a if b]", "return [b for b in a ]"),
        ("sign", "return -a", "return a"),
        ("fallback", "return a or 1", "return a"),
        ("fallback", "return a.get(1, 2)", "return a.get(1)"),
        ("conversion", "return int(a)", "return a"),
        ("conversion", "return a.strip()", "return a"),
        ("string", "return 'a'", "return ''"),
        ("statement", "b = 1\n    return a", "return a"),
        ("statement", "b()", "pass"),
    ],
)
def test_kinds(kind, before, after):
    assert f"def f(a):\n    {after}\n" in one(kind, f"def f(a):\n    {before}\n")


def test_a_removed_body_leaves_signature_docstring_and_decorators():
    change = removal(EVERYTHING, "Reader.parse")
    node = dict(functions(ast.parse(applied(EVERYTHING, [change.edit]))))["Reader.parse"]
    assert ast.get_docstring(node) == "Docstring stays."
    assert ast.unparse(node.body[1]) == "raise NotImplementedError" and len(node.body) == 2
    short = applied(EVERYTHING, [removal(EVERYTHING, "alone").edit])
    assert short.endswith("def alone(x): raise NotImplementedError\n")
    assert removal('def f():\n    """Nothing."""\n    raise NotImplementedError\n', "f") is None
    assert removal(EVERYTHING, "gone") is None


def test_a_rewritten_function_takes_over_statements_only():
    answer = "Sure:\n```python\ndef alone(x):\n    '''Mine.'''\n    y = x\n    return y\n```\nDone."
    text = applied(EVERYTHING, [replacement(EVERYTHING, "alone", answer).edit])
    assert text.endswith("def alone(x): \n    y = x\n    return y\n")
    method = "    def parse(self, text, sep=',', limit=10, strict=True):\n        # ..\n        return {}\n"
    text = applied(EVERYTHING, [replacement(EVERYTHING, "Reader.parse", method).edit])
    assert '        """Docstring stays."""\n        return {}\n\n\ndef alone' in text


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I cannot do that.",
        "def alone(x:\n",
        "def other(x):\n    return 1\n",
        "def alone(x, y):\n    return 1\n",
        "def alone(x):\n    return x.strip()\n",
        "def alone(x):\n    '''Only this.'''\n",
    ],
)
def test_an_answer_that_is_no_new_version_of_the_function_is_refused(answer):
    assert replacement(EVERYTHING, "alone", answer) is None


def test_a_function_is_shown_as_it_stands_in_its_file():
    assert stub(EVERYTHING, "Reader.parse").startswith("def parse(self, text")
    assert '\n    """Docstring stays."""\n' in stub(EVERYTHING, "Reader.parse")


lines = st.lists(st.sampled_from(["a", "b", "", "  c", "\x0c", "d\r", "é\u2028x"]), max_size=12)


@settings(max_examples=40, deadline=None)
@given(lines, lines, st.booleans(), st.booleans())
def test_a_diff_of_files_is_what_git_applies(tmp_path_factory, old, new, old_ended, new_ended):
    before, after = "\n".join([*old, "end" + "\n" * old_ended]), "\n".join([*new, "END" + "\n" * new_ended])
    folder = tmp_path_factory.mktemp("git")
    (folder / "m.py").write_bytes(before.encode())
    diff = file_diff("m.py", before, after)
    subprocess.run(["git", "apply", "-"], cwd=folder, input=diff.encode(), check=True)
    assert (folder / "m.py").read_bytes() == after.encode()
    assert file_diff("m.py", before, before) == ""


def test_the_composed_sets_are_the_same_as_ever():
    """Trained models and committed results rest on them: kinds are added to `wide`, never to `line`."""
    sets = synthesize(SynthesisConfig(sft=40, rl=20, held_out=20, harder=20, seed=3))
    rows = [(n, [(t.id, t.prompt, sorted(t.files.items()), t.solution) for t in v]) for n, v in sets.items()]
    digest = hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()
    assert digest == "d0dd48356ecfe6dce86ed816b8a3edc6542156e0bc582544844d1d3139f663a9"


def test_the_page_names_every_kind():
    page = (Path(__file__).parents[2] / "docs/tasks.md").read_text()
    assert all(f"| `{kind}` | {told} |\n" in page for kind, told in KINDS.items())
