import ast
import difflib
import random
import subprocess

import pytest

from patchwright.tasks.compose import composed
from patchwright.tasks.handwritten import TRAINING
from patchwright.tasks.mutation import KIND_WEIGHTS, functions, line_diff, mutants, pick

EVERYTHING = '''
LIMIT = 3


def every(xs, k, flag=True):
    """Counts 7 things."""
    total = 0
    for x in xs:
        if not x and k >= (LIMIT) or x is None:
            total += max(x, k)
        elif x not in xs[1:] and True:
            total = total * 2 - x
    label = "é" + f"{x + 1}"; out = [min(x, total)]
    out.append(k // 2)
    return (total % 5,
            out)


class Box:
    def get(self, name):
        return name.upper()
'''


def test_every_kind_of_bug_is_made_and_each_changes_one_line_of_valid_python():
    found = mutants(EVERYTHING)
    assert {mutant.kind for mutant in found} == set(KIND_WEIGHTS)
    good = EVERYTHING.split("\n")
    for mutant in found:
        ast.parse(mutant.source)
        changed = [
            i
            for i, pair in enumerate(zip(good, mutant.source.split("\n"), strict=True), 1)
            if len(set(pair)) > 1
        ]
        assert changed == [mutant.line]


def test_columns_are_bytes_so_text_after_a_non_ascii_letter_is_hit_exactly():
    lines = {mutant.source.split("\n")[12] for mutant in mutants(EVERYTHING, "every")}
    assert '    label = "é" - f"{x + 1}"; out = [min(x, total)]' in lines
    assert '    label = "é" + f"{x + 1}"; out = [max(x, total)]' in lines
    assert not any("x - 1" in line or "x + 2" in line for line in lines), "inside an f-string"


def test_one_function_or_method_can_be_asked_for():
    assert {mutant.line for mutant in mutants(EVERYTHING, "Box.get")} == {21}
    assert [name for name, _ in functions(ast.parse(EVERYTHING))] == ["every", "Box.get"]
    assert mutants(EVERYTHING, "absent") == []


def test_text_that_is_not_python_is_refused():
    with pytest.raises(SyntaxError):
        mutants("def f(:\n")


def test_kinds_are_picked_by_weight_and_not_by_how_many_places_they_have():
    found = mutants("def f(a, b, c, d, e):\n    return a - (b - b - b - b - b - c - d - e)\n")
    rng = random.Random(0)
    kinds = [pick(found, rng).kind for _ in range(2000)]
    assert kinds.count("binop") / 2000 == pytest.approx(3 / 5, abs=0.05)
    assert kinds.count("wrongvar") / 2000 == pytest.approx(1 / 5, abs=0.05)


def test_line_diff_is_what_git_applies(tmp_path):
    rng = random.Random(1)
    for number in range(30):
        source = (composed(rng, held_out=False) if number % 2 else rng.choice(TRAINING).function(rng)).source
        source = source.rstrip("\n") if number % 3 == 0 else source
        mutant = rng.choice(mutants(source))
        diff = line_diff("pkg/mod.py", mutant.source, mutant.line, source.split("\n")[mutant.line - 1])
        _apply(tmp_path, "pkg/mod.py", mutant.source, diff)
        assert (tmp_path / "pkg/mod.py").read_text() == source
        if source.endswith("\n"):
            lines = mutant.source.splitlines(True), source.splitlines(True)
            theirs = "".join(difflib.unified_diff(*lines, "a/pkg/mod.py", "b/pkg/mod.py"))
            assert diff.split("@@\n")[1] == theirs.split("@@\n")[1]


def _apply(folder, path, content, diff):
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text(content)
    subprocess.run(["git", "apply", "-"], cwd=folder, input=diff.encode(), check=True)
