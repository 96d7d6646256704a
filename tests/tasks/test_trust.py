"""Verdicts about tasks, found in real boxes."""

import asyncio
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from patchwright.errors import ConfigError, SandboxError
from patchwright.grade.tests import Grader
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.hunks import variants
from patchwright.tasks.mutation import file_diff
from patchwright.tasks.trust import TrustConfig, examine, trusted
from patchwright.types import Task, Tests

GOOD = "def grade(points):\n    if points >= 50:\n        return 'pass'\n    return 'fail'\n"
BAD = GOOD.replace(">= 50", "> 50")
TESTS = "from mod import grade\n\n\ndef test_edge():\n    assert grade(50) == 'pass'\n\n\n"
TESTS += "def test_far():\n    assert grade(0) == 'fail' and grade(99) == 'pass'\n"


def task(
    name="t", good=GOOD, bad=BAD, tests=TESTS, to_mend=("test_edge",), to_keep=("test_far",), extra=None
):
    return Task(
        id=name,
        prompt="The pass mark is 50.",
        files={"mod.py": bad, "test_mod.py": tests, **(extra or {})},
        solution=file_diff("mod.py", bad, good),
        tests=Tests(
            command="pytest -q -rA --tb=no -p no:cacheprovider test_mod.py",
            fail_to_pass=tuple(f"test_mod.py::{test}" for test in to_mend),
            pass_to_pass=tuple(f"test_mod.py::{test}" for test in to_keep),
            files={"test_mod.py": tests},
        ),
    )


CHANCE = "from mod import grade\n\n\ndef test_edge():\n    assert grade(50) == 'pass'\n\n\n"
CHANCE += "def test_far():\n    assert int(open('turn').read()) % 2\n"
ORDERED = "import mod\n\nseen = []\n\n\n"
ORDERED += "def test_edge():\n    assert mod.grade(50) == 'pass'\n    seen.append(1)\n\n\n"
ORDERED += "".join(f"def test_after_{i}():\n    assert seen\n\n\n" for i in range(6))
TWO = GOOD + "\n\n\ndef half(x):\n    return x / 2\n"
TWO_BAD = BAD + "\n\n\ndef half(x):\n    return x // 2\n"
MORE = GOOD.replace(">= 50", ">= 50 or points == 1")
LOOSE = TESTS.partition("def test_far")[0] + "def test_far():\n    pass\n"

CASES = {
    "valid": (task(), "valid", ""),
    "an own conftest": (
        task(extra={"conftest.py": "def pytest_collection_modifyitems(items):\n    items.reverse()\n"}),
        "valid",
        "",
    ),
    "chance": (task(tests=CHANCE), "flaky", "judged differently: test_mod.py::test_far"),
    "order": (
        task(tests=ORDERED, to_keep=[], bad=BAD),
        "valid",
        "",
    ),
    "order kept": (
        task(tests=ORDERED, to_mend=("test_edge", *(f"test_after_{i}" for i in range(6))), to_keep=()),
        "flaky",
        "with the tests in another order: ",
    ),
    "untested half": (task(good=TWO, bad=TWO_BAD), "hackable", "piece 2 of 2 (mod.py) dropped"),
    "loose": (task(tests=LOOSE, good=MORE), "hackable", "turned: `if points >= 50 or poi"),
    "no solution": (dataclasses.replace(task(), solution=""), "broken", "no solution"),
    "nothing wrong": (
        task(bad=BAD, good=BAD + "\nx = 1\n"),
        "broken",
        "does not solve it: 1 of 2",
    ),
    "passes before": (
        task(to_mend=("test_edge", "test_far"), to_keep=()),
        "broken",
        "passes before",
    ),
    "no tests": (
        dataclasses.replace(task(), tests=dataclasses.replace(task().tests, command="true")),
        "broken",
        "",
    ),
}


def counted(backend):
    """Grades anew every time; the file `turn` says how often that was done before."""
    turns = itertools.count()

    async def grade(task, patch):
        files = {**task.files, "turn": str(next(turns))}
        return await Grader(backend)(dataclasses.replace(task, files=files), patch)

    return grade


@pytest.fixture(scope="module")
def examined():
    async def run():
        backend = NamespaceBackend()
        config = TrustConfig(repeat=6, mutants=20, orders=2)
        try:
            cases = (examine(given, counted(backend), config) for given, _, _ in CASES.values())
            return await asyncio.gather(*cases)
        finally:
            await backend.close()

    return dict(zip(CASES, asyncio.run(run()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_verdicts(examined, name):
    _, verdict, reason = CASES[name]
    found = examined[name]
    assert (found.verdict, reason in found.evidence["reason"]) == (verdict, True), found
    json.dumps(found.evidence)


def test_the_evidence_says_what_was_run(examined):
    evidence = examined["valid"].evidence
    assert evidence["null"] == {"runs": 6, "resolved": 0} and evidence["gold"] == {"runs": 6, "resolved": 6}
    assert evidence["orders"] == {"runs": 2, "resolved": 2}
    assert evidence["mutants"]["made"] >= 2 and evidence["mutants"]["passed"] == 0
    assert examined["untested half"].evidence["mutants"]["passed"] > 0
    assert examined["chance"].evidence["gold"]["unsteady"] == ["test_mod.py::test_far"]
    marked = examined["loose"].on(task())
    assert marked.trust == "hackable" and marked.meta["trust"]["reason"].startswith("still passes with")


def test_a_fault_of_the_machine_is_no_verdict():
    async def grade(task, patch):
        raise SandboxError("no box")

    with pytest.raises(SandboxError):
        asyncio.run(examine(task(), grade, TrustConfig()))


def test_training_leaves_out_what_was_found_wanting():
    tasks = [
        dataclasses.replace(task(), id=name, trust=name) for name in ("valid", "flaky", "hackable", "broken")
    ]
    unasked = dataclasses.replace(task(), id="unasked")
    names = [kept.id for kept in trusted([*tasks, unasked], keep_hackable=True)]
    assert names == ["valid", "hackable", "unasked"]
    assert [kept.id for kept in trusted([*tasks, unasked], keep_hackable=False)] == ["valid", "unasked"]
    with pytest.raises(ConfigError, match="found all 2 tasks broken or flaky; train on others"):
        trusted([tasks[1], tasks[3]], keep_hackable=True)


# --- patches taken apart --------------------------------------------------------------------------

MANY = "".join(f"x{i} = {i}\n" for i in range(40))
PARTS = {
    3: "y = a and b\n",
    5: "x5 = 5\n# only a remark\n",
    9: "",
    20: "z = 1\nz = not z\n",
    38: "last = a == b\n",
}


def test_pieces_are_dropped_and_turned_and_still_apply(tmp_path):
    lines = MANY.splitlines(keepends=True)
    new = "".join(PARTS.get(i, line) for i, line in enumerate(lines))
    patch = file_diff("pkg/mod.py", MANY, new) + file_diff("notes.md", "a\n", "b == c\n")
    found = variants(patch)
    dropped = [v for v in found if v.what.endswith("dropped")]
    assert len(dropped) == 4 == len(PARTS) - 1, "the remark and the prose are no pieces of code"
    results = {apply(tmp_path / str(i), variant.patch) for i, variant in enumerate(found)}
    assert len(results) == len(found), "all differ"
    assert new not in results and MANY not in results
    assert new.replace("y = a and b\n", lines[3]) in results
    assert new.replace("a and b", "a or b") in results and new.replace("z = not z", "z = z") in results
    assert new.replace("a == b", "a != b") in results


def apply(folder, patch):
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg/mod.py").write_text(MANY)
    (folder / "notes.md").write_text("a\n")
    subprocess.run(["git", "apply", "-"], cwd=folder, input=patch.encode(), check=True)
    assert (folder / "notes.md").read_text() == "b == c\n"
    return (folder / "pkg/mod.py").read_text()


@pytest.mark.parametrize(
    "patch",
    [
        "",
        "no diff",
        "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        "diff --git a/x b/x\nnew file mode 100644\nGIT binary patch\nliteral 0\nHcmV?d00001\n\n",
    ],
)
def test_a_patch_without_pieces_has_no_variants(patch):
    assert variants(patch) == []


def test_new_and_deleted_files_can_be_dropped():
    new = "diff --git a/n.py b/n.py\nnew file mode 100644\n"
    new += "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+x = a < b\n"
    old = "diff --git a/o.py b/o.py\ndeleted file mode 100644\n"
    old += "--- a/o.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-y = 1\n"
    found = {variant.what: variant.patch for variant in variants(new + old)}
    assert found["piece 1 of 2 (n.py) dropped"].startswith("diff --git a/o.py")
    assert found["piece 2 of 2 (o.py) dropped"].startswith("diff --git a/n.py")
    assert "+x = a >= b\n" in found["piece 1 of 2 (n.py) turned: `x = a >= b`"]


# --- the command ----------------------------------------------------------------------------------


def test_verdicts_are_written_into_the_file_after_a_kill_too(tmp_path):
    file, journal = tmp_path / "tasks.jsonl", tmp_path / "tasks.jsonl.trust.journal"
    tasks = [task(f"t{number}") for number in range(5)]
    tasks += [dataclasses.replace(task("gone"), solution="")]
    tasks += [dataclasses.replace(task("no-environment"), setup=("exit 3",))]
    dump_tasks(file, tasks)
    before = file.read_bytes()
    arguments = [sys.executable, "-m", "patchwright.cli", "tasks", "validate", str(file), "--workers", "1"]
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert file.read_bytes() == before, "absent or complete"
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1 and done.stdout.endswith("5 valid, 2 broken\n"), done.stdout + done.stderr
    assert "broken   gone: it has no solution" in done.stdout
    assert (
        "no-environment: task no-environment: setup `exit 3` failed" in done.stdout and not journal.exists()
    )
    found = load_tasks(file)
    assert [each.trust for each in found] == ["valid"] * 5 + ["broken"] * 2
    assert found[0].meta["trust"]["gold"] == {"runs": 3, "resolved": 3}
    assert [dataclasses.replace(each, trust="", meta={}) for each in found] == tasks


@pytest.mark.parametrize(
    ("path", "line", "turned"),
    [
        ("a.py", "x = 'a and b'  # is it == or not", set()),
        (
            "a.py",
            "x = y // z if 'is' == y else w",
            {"x = y // z if 'is' != y else w", "x = y // z if not 'is' == y else w"},
        ),
        (
            "a.js",
            "return a == b // and <= or",
            {"return a != b // and <= or", "return not a == b // and <= or"},
        ),
        ("a.py", 'return """a and b', set()),
    ],
)
def test_prose_is_not_turned(path, line, turned):
    found = variants(file_diff(path, "pass\n", f"{line}\n"))
    assert {variant.what.partition("`")[2][:-1] for variant in found} == turned
