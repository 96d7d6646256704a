"""Verdicts from real test runs in real boxes."""

import asyncio
from dataclasses import replace

import pytest
from tests.boxes import in_boxes

from patchwright.errors import GradeError
from patchwright.grade.patch import take_patch
from patchwright.grade.tests import Grader, open_box
from patchwright.sandbox.base import SandboxBackend
from patchwright.types import GradeState, Limits, Task, Tests, TestStatus

GOOD = "def double(x):\n    return x * 2\n"
BAD = "def double(x):\n    return x + 2\n"
TEST = (
    "from mod import double\n\ndef test_two():\n    assert double(2) == 4\n\n"
    "def test_three():\n    assert double(3) == 6\n"
)
FIX = (
    "diff --git a/mod.py b/mod.py\n--- a/mod.py\n+++ b/mod.py\n@@ -1,2 +1,2 @@\n"
    " def double(x):\n-    return x + 2\n+    return x * 2\n"
)
TASK = Task(
    id="double",
    prompt="double(3) returns 5, expected 6.",
    files={"mod.py": BAD, "test_mod.py": TEST},
    tests=Tests(
        command="pytest -q -rA --tb=no -p no:cacheprovider test_mod.py",
        fail_to_pass=("test_mod.py::test_three",),
        pass_to_pass=("test_mod.py::test_two",),
        files={"test_mod.py": TEST},
    ),
    solution=FIX,
    limits=Limits(exec_seconds=60, test_seconds=120),
)


def grade(task: Task, patch: str):
    return in_boxes(lambda backend: Grader(backend)(task, patch))


def test_the_fix_resolves_and_nothing_else_does():
    async def work(backend: SandboxBackend):
        grader = Grader(backend)
        return await grader(TASK, FIX), await grader(TASK, ""), grader

    fixed, untouched, _ = in_boxes(work)
    assert fixed.resolved and set(fixed.tests.values()) == {TestStatus.PASSED}
    assert not untouched.resolved
    assert untouched.tests == {
        "test_mod.py::test_three": TestStatus.FAILED,
        "test_mod.py::test_two": TestStatus.PASSED,
    }


def test_identical_patches_are_graded_once():
    async def work(backend: SandboxBackend):
        grader = Grader(backend)
        grades = await asyncio.gather(*(grader(TASK, FIX) for _ in range(5)))
        return grades, grader.hits

    grades, hits = in_boxes(work)
    assert all(found == grades[0] for found in grades) and hits == 4


def test_a_patch_that_does_not_apply_is_unresolved_and_says_so():
    found = grade(TASK, FIX.replace("return x + 2", "return something else"))
    assert not found.resolved and "does not apply" in found.reason


def test_a_patch_to_the_tests_does_not_count():
    cheat = (
        "diff --git a/test_mod.py b/test_mod.py\n--- a/test_mod.py\n+++ b/test_mod.py\n@@ -1,7 +1,7 @@\n"
        " from mod import double\n \n def test_two():\n     assert double(2) == 4\n \n"
        " def test_three():\n-    assert double(3) == 6\n+    assert double(3) == 5\n"
    )
    assert not grade(TASK, cheat).resolved


def test_a_command_that_prints_nothing_gives_no_verdict():
    silent = replace(TASK, tests=replace(TASK.tests, command="true"))
    with pytest.raises(GradeError, match="reported no test"):
        grade(silent, "")


def test_a_patch_that_silences_the_tests_is_unresolved_not_void():
    mute = FIX.replace("+    return x * 2", "+    return x * 2\n+__import__('os')._exit(0)")
    mute = mute.replace("@@ -1,2 +1,2 @@", "@@ -1,2 +1,3 @@")
    found = grade(TASK, mute)
    assert not found.resolved and "without a report" in found.reason


def test_tests_that_never_end_are_unresolved():
    loop = FIX.replace("+    return x * 2", "+    while True: pass")
    slow = replace(TASK, limits=Limits(test_seconds=8))
    found = grade(slow, loop)
    assert not found.resolved and "timed out" in found.reason


def test_a_syntax_error_is_unresolved():
    assert not grade(TASK, FIX.replace("+    return x * 2", "+    return (")).resolved


def test_a_setup_that_fails_is_infrastructure():
    with pytest.raises(GradeError, match="setup") as found:
        grade(replace(TASK, setup=("exit 3",)), FIX)
    assert found.value.state == GradeState.ENV_BROKEN


def test_text_before_the_diff_and_a_missing_newline_are_forgiven():
    assert grade(TASK, "Here is my patch:\n" + FIX.rstrip("\n")).resolved


def test_a_patch_holds_new_deleted_binary_and_renamed_files_and_no_leavings():
    async def work(backend: SandboxBackend) -> tuple[str, str]:
        box = await open_box(backend, TASK)
        await box.exec(
            "git mv test_mod.py test_moved.py; printf 'a\\0b' > data.bin; printf 'caf\\xe9\\n' > latin.txt"
        )
        await box.exec("rm mod.py; mkdir -p __pycache__ && touch __pycache__/x.pyc")
        patch = await take_patch(box, TASK)
        await box.close()
        other = await open_box(backend, TASK)
        await other.write("/tmp/p", patch.encode())
        done = await other.exec("git apply /tmp/p && ls && od -c data.bin latin.txt | head -3")
        await other.close()
        return patch, done.output

    patch, listing = in_boxes(work)
    assert "pycache" not in patch
    assert "test_moved.py" in listing and "data.bin" in listing and "mod.py" not in listing.split()
    assert "351" in listing  # the latin-1 byte survived


def test_an_agent_that_destroys_the_repository_leaves_no_patch():
    async def work(backend: SandboxBackend) -> str:
        box = await open_box(backend, TASK)
        await box.exec("rm -rf .git")
        patch = await take_patch(box, TASK)
        await box.close()
        return patch

    assert in_boxes(work) == ""
