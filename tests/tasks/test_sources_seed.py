"""The seeds' JSONL: there and back, and back and there, without loss, whatever rows and tasks hold."""

import dataclasses
import json
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.tasks.files import task_from, task_text
from patchwright.tasks.sources import build, from_seed, to_seed
from patchwright.tasks.sources.diffs import reverse
from patchwright.types import Limits, Task, Tests

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NAMES = st.lists(TEXT, max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
REPOS = st.sampled_from([("pallets/flask", "2.3"), ("dask/dask", "2022.8"), ("sympy/sympy", "1.12")])
SCRIPTS = (
    st.none() | st.just("pytest\n") | st.just(": '>>>>> Start Test Output'\n: '>>>>> End Test Output'\n")
)
READ = {"image_name", "docker_image", "image", "eval_script", "eval_type", "log_parser"}
"""Columns that `build` reads where they are, and wants as text."""


@st.composite
def rows(draw):
    repo, version = draw(REPOS)
    own = {
        "instance_id": draw(TEXT.filter(bool)),
        "repo": repo,
        "version": version,
        "problem_statement": draw(TEXT),
        "test_patch": draw(TEXT),
        "patch": draw(st.none() | TEXT),
    }
    for column in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        names = draw(NAMES)
        own[column] = draw(st.just(names) | st.just(json.dumps(names)))
    script = draw(SCRIPTS)
    others = TEXT.filter(lambda name: name not in own.keys() | READ)
    more = draw(st.dictionaries(others, JSON, max_size=3))
    return {**more, **own, **({"eval_script": script} if script else {})}


@st.composite
def lines(draw):
    row = draw(rows())
    text = draw(st.just(row["problem_statement"]) | TEXT)
    source = draw(st.sampled_from(["SumanthRH/SWE-Gym-Subset", "SumanthRH/SWE-bench_Verified", "", "x"]))
    metadata = {"instance": row, "data_source": source}
    if draw(st.booleans()):
        metadata |= draw(st.dictionaries(TEXT.filter(lambda name: name not in metadata), JSON, max_size=2))
    extra = draw(
        st.dictionaries(TEXT.filter(lambda name: name not in ("text", "metadata")), JSON, max_size=2)
    )
    return {"text": text, "metadata": metadata, **extra}


TASKS = st.builds(
    Task,
    id=TEXT,
    prompt=TEXT,
    tests=st.builds(
        Tests,
        command=TEXT,
        parser=TEXT,
        fail_to_pass=st.lists(TEXT, max_size=2).map(tuple),
        pass_to_pass=st.lists(TEXT, max_size=2).map(tuple),
        files=st.dictionaries(TEXT, TEXT, max_size=2),
        patch=TEXT,
        protected=st.lists(TEXT, max_size=2).map(tuple),
    ),
    image=st.sampled_from(["host", "x/y:1"]),
    files=st.dictionaries(TEXT, TEXT, max_size=2),
    hidden=st.lists(TEXT, max_size=2).map(tuple),
    limits=st.builds(Limits, exec_seconds=st.floats(1, 9)),
    trust=st.sampled_from(["", "valid"]),
    meta=st.dictionaries(TEXT, JSON, max_size=3),
)


def stored(line):
    """Through JSON text, as a file would hold it."""
    return json.loads(json.dumps(line))


@given(lines())
@settings(max_examples=150, deadline=None)
def test_a_line_of_the_seeds_comes_back_as_it_was(line):
    task = task_from(task_text(from_seed(line, "here", build)), "there")
    assert stored(to_seed(task, build)) == line


@given(
    rows(), st.sampled_from(["SWE-Gym/SWE-Gym", "princeton-nlp/SWE-bench"]), st.sampled_from(["", "valid"])
)
@settings(max_examples=100, deadline=None)
def test_an_imported_task_comes_back_even_when_it_was_changed(row, source, trust):
    task = dataclasses.replace(build(row, source, ""), trust=trust)
    line = stored(to_seed(task, build))
    assert from_seed(line, "", build) == task
    assert ("patchwright" in line["metadata"]) == bool(trust)
    assert stored(to_seed(from_seed(line, "", build), build)) == line


@given(TASKS)
@settings(max_examples=100, deadline=None)
def test_a_task_of_our_own_comes_back(task):
    line = stored(to_seed(task, build))
    assert from_seed(line, "", build) == task
    assert line["text"] == task.prompt and line["metadata"]["instance"]["instance_id"] == task.id


def test_the_line_is_what_the_seeds_write():
    names = {"instance_id": "pallets__flask-1", "repo": "pallets/flask", "version": "2.3"}
    row = {
        **names,
        "problem_statement": "Mend.",
        "test_patch": "",
        "FAIL_TO_PASS": "[]",
        "PASS_TO_PASS": "[]",
    }
    line = to_seed(build(row, "SumanthRH/SWE-bench_Verified", ""), build)
    source = "SumanthRH/SWE-bench_Verified"
    assert line == {"text": "Mend.", "metadata": {"instance": row, "data_source": source}}
    assert list(line) == ["text", "metadata"]


# --- the reverse of a diff --------------------------------------------------------------------

FILES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "+d\n", "-e\n", "\n"]), max_size=8).map("".join)


@given(FILES, FILES, st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_reversed_diff_undoes_what_git_wrote(tmp_path_factory, old, new, end):
    folder = tmp_path_factory.mktemp("repo")
    new = new if end else new.rstrip("\n")

    def git(*arguments, **more):
        command = ["git", "-c", "user.name=a", "-c", "user.email=b", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout

    git("init", "-q")
    (folder / "kept.txt").write_text(old + "end\n")
    (folder / "gone.txt").write_text("gone\n" + old)
    (folder / "moved.txt").write_text("1\n2\n3\n4\n5\n" + old)
    git("add", "-A")
    git("commit", "-qm", "one")
    (folder / "kept.txt").write_text(new + "end")
    (folder / "gone.txt").unlink()
    (folder / "made.txt").write_text("made\n" + new)
    (folder / "moved.txt").rename(folder / "there.txt")
    (folder / "there.txt").chmod(0o755)
    git("add", "-A")
    diff = git("diff", "--cached", "-M")
    git("commit", "-qm", "two")
    assert reverse(reverse(diff)) == diff
    git("apply", "-", input=reverse(diff))
    git("add", "-A")
    assert git("diff", "--cached", "HEAD~1") == ""
