"""Every way a grading can end, in real boxes, and what is kept of it."""

from dataclasses import replace

import pytest
from tests.boxes import in_boxes
from tests.grade.test_grader import FIX, TASK, TEST

from patchwright.errors import GradeError, SandboxError
from patchwright.grade.cache import GradeCache, fingerprint
from patchwright.grade.run import script
from patchwright.grade.tests import Grader
from patchwright.types import GradeState, Limits, TestStatus

NEW_TEST = (
    "diff --git a/tests/test_new.py b/tests/test_new.py\nnew file mode 100644\n--- /dev/null\n"
    "+++ b/tests/test_new.py\n@@ -0,0 +1,4 @@\n+from mod import double\n+\n+def test_five():\n"
    "+    assert double(5) == 10\n"
    "diff --git a/test_mod.py b/test_mod.py\n--- a/test_mod.py\n+++ b/test_mod.py\n@@ -5,3 +5,6 @@\n \n"
    " def test_three():\n     assert double(3) == 6\n+\n+def test_four():\n+    assert double(4) == 8\n"
)
PATCHED = replace(
    TASK,
    files={
        **TASK.files,
        "conftest.py": "",
        "tests/old.py": "",
        "pytest.ini": "[pytest]\n",
    },
    tests=replace(
        TASK.tests,
        command="python3 -m pytest -q -rA --tb=no -p no:cacheprovider test_mod.py tests/test_new.py",
        fail_to_pass=("test_mod.py::test_four", "tests/test_new.py::test_five"),
        pass_to_pass=("test_mod.py::test_two",),
        files={},
        patch=NEW_TEST,
        protected=("**/conftest.py", "pytest.ini"),
    ),
)


def new(path: str, *lines: str) -> str:
    body = "".join(f"+{line}\n" for line in lines)
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}"


def link(path: str, target: str) -> str:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 120000\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1 @@\n+{target}\n\\ No newline at end of file\n"
    )


def state(task, patch, **options):
    return in_boxes(lambda backend: Grader(backend, **options)(task, patch))


def test_the_test_patch_goes_in_after_the_fix():
    grade = state(PATCHED, FIX)
    assert grade.resolved and set(grade.tests) == {*PATCHED.tests.fail_to_pass, *PATCHED.tests.pass_to_pass}
    assert state(PATCHED, "").state is GradeState.TESTS_FAILED


GONE = (
    "diff --git a/test_mod.py b/test_mod.py\ndeleted file mode 100644\n--- a/test_mod.py\n+++ /dev/null\n"
    "@@ -1,7 +0,0 @@\n" + "".join(f"-{line}\n" for line in TEST.splitlines())
)
RENAMED = (
    "diff --git a/test_mod.py b/test_moved.py\nsimilarity index 100%\n"
    "rename from test_mod.py\nrename to test_moved.py\n"
)


@pytest.mark.parametrize(
    "meddling",
    [
        new("tests/test_new.py", "def test_five(): pass"),
        new("tests/test_new.py/inside.txt", "x"),
        link("tests/test_new.py", "/dev/null"),
        GONE,
        "diff --git a/tests/old.py b/tests/old.py\ndeleted file mode 100644\n" + link("tests", "/tmp"),
        RENAMED,
    ],
    ids=["same name", "folder", "link", "deleted", "parent link", "renamed"],
)
def test_what_a_patch_does_to_the_tests_does_not_count(meddling):
    """The fix beside it still resolves, and alone it does not."""

    async def work(backend):
        grader = Grader(backend)
        return await grader(PATCHED, FIX + meddling), await grader(PATCHED, meddling)

    fixed, alone = in_boxes(work)
    assert fixed.resolved, fixed
    assert alone.state is GradeState.TESTS_FAILED, alone


def test_test_files_are_written_over_links_and_folders():
    async def work(backend):
        grader = Grader(backend)
        return [
            await grader(TASK, FIX + GONE + link("test_mod.py", "/dev/null")),
            await grader(TASK, FIX + GONE + new("test_mod.py/x.py", "pass")),
        ]

    assert all(grade.resolved for grade in in_boxes(work))


def test_protected_files_stay_and_the_patch_is_flagged():
    cheat = new("tests/conftest.py", "import os; os._exit(0)") + new("other.py", "x = 1")
    ini = (
        "diff --git a/pytest.ini b/pytest.ini\n--- a/pytest.ini\n+++ b/pytest.ini\n"
        "@@ -1 +1,2 @@\n [pytest]\n+addopts = -k no\n"
    )

    async def work(backend):
        return await Grader(backend).grading(PATCHED, FIX + cheat + ini)

    found = in_boxes(work)
    assert found.grade.resolved
    assert found.grade.findings == ("protected: tests/conftest.py", "protected: pytest.ini")
    assert "other.py" in found.patch and "conftest" not in found.patch


def test_patches_that_never_reach_a_box():
    up = state(TASK, new("../x", "x"), skip_empty=True)
    assert up.state is GradeState.APPLY_FAILED and up.findings == ("outside: ../x",)
    assert state(TASK, "I could not do it, sorry.").state is GradeState.APPLY_FAILED
    assert state(TASK, " \n", skip_empty=True).state is GradeState.EMPTY_PATCH
    assert state(TASK, "").tests["test_mod.py::test_two"] is TestStatus.PASSED  # asked for: it is run


def test_half_a_surrogate_pair_is_no_crash():
    assert state(TASK, FIX + new("x.py", "s = '\ud800'")).resolved


def test_a_test_patch_that_does_not_go_in_is_void():
    broken = replace(
        PATCHED, tests=replace(PATCHED.tests, patch=NEW_TEST.replace("double(3) == 6", "nothing"))
    )
    with pytest.raises(GradeError, match="test patch") as found:
        state(broken, FIX)
    assert found.value.state == GradeState.ENV_BROKEN


def test_killed_tests_are_void_where_the_untouched_code_is_killed_too():
    killed = replace(TASK, tests=replace(TASK.tests, command="kill -9 $$"))
    with pytest.raises(GradeError, match="task double") as found:
        state(killed, FIX)
    assert found.value.state in (GradeState.ENV_BROKEN, GradeState.NO_TESTS_PARSED)
    suicide = FIX.replace("+    return x * 2", "+    import os; os.kill(os.getppid(), 9)")
    assert not state(TASK, suicide).resolved


class Failing:
    """A real backend whose first boxes die before they can be used."""

    name = "failing"

    def __init__(self, backend, deaths):
        self.backend, self.deaths, self.opened = backend, deaths, 0

    async def open(self, spec):
        self.opened += 1
        box = await self.backend.open(spec)
        if self.opened <= self.deaths:
            await box.close()
        return box

    async def close(self):
        await self.backend.close()


def test_a_dead_box_is_tried_once_more_and_then_void():
    async def work(backend):
        once, always = Failing(backend, 1), Failing(backend, 99)
        grade = await Grader(once)(TASK, FIX)
        try:
            await Grader(always)(TASK, FIX)
        except GradeError as error:
            return grade, error, always.opened
        raise AssertionError("no verdict can come of dead boxes")

    grade, error, opened = in_boxes(work)
    assert grade.resolved and opened == 2
    assert error.state == GradeState.ENV_BROKEN and isinstance(error.__cause__, SandboxError)


def test_verdicts_are_kept_on_disk_and_void_is_not(tmp_path):
    async def work(backend):
        cache = GradeCache(tmp_path / "grades.db")
        first = Failing(backend, 0)
        made = await Grader(first, cache=cache).grading(TASK, FIX)
        again = Failing(backend, 99)
        other = GradeCache(tmp_path / "grades.db")
        kept = await Grader(again, cache=other).grading(TASK, "Here:\n" + FIX.replace("\n", "\r\n"))
        void = Failing(backend, 2)
        grader = Grader(void, cache=cache)
        try:
            await grader(TASK, "")
        except GradeError:
            pass
        return made, kept, again.opened, await grader(TASK, "")

    made, kept, opened, later = in_boxes(work)
    assert kept == made and opened == 0 and "test_three" in kept.log
    assert later.state is GradeState.TESTS_FAILED


def test_what_decides_a_verdict_is_in_the_key_and_nothing_else():
    assert fingerprint(TASK) == fingerprint(
        replace(TASK, prompt="x", solution="", trust="valid", hidden=("x",), meta={"a": 1})
    )
    others = [
        replace(TASK, files={}),
        replace(TASK, setup=("true",)),
        replace(TASK, image="other"),
        replace(TASK, limits=Limits()),
        replace(TASK, tests=replace(TASK.tests, rules="swebench")),
        replace(TASK, tests=replace(TASK.tests, protected=("x",))),
    ]
    assert len({fingerprint(task) for task in [TASK, *others]}) == 7


def test_a_long_log_keeps_its_end_and_a_flood_is_bounded():
    """The report is far behind the 64 KiB that a command's result keeps."""
    noisy = replace(TASK, tests=replace(TASK.tests, command=f"seq 200000; {TASK.tests.command}; seq 200000"))
    grade = state(noisy, FIX)
    assert grade.resolved


def test_scripts_of_swebench_record_the_exit_code_of_their_tests():
    command = "set -x\n: '>>>>> Start Test Output'\npytest -rA\n: '>>>>> End Test Output'\ngit checkout x"
    task = replace(TASK, tests=replace(TASK.tests, command=command, rules="swebench"))
    lines = script(task).split("\n")
    assert lines[3:6] == [
        "SWEBENCH_TEST_EXIT_CODE=$?",
        ": '>>>>> End Test Output'",
        'echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"',
    ]
    again = replace(task, tests=replace(task.tests, command=script(task)))
    assert script(again) == script(task)
    assert script(replace(task, tests=replace(task.tests, rules="swegym"))) == command


OFFICIAL = f"""#!/bin/bash
set -uxo pipefail
cd /testbed
git status
git -c core.fileMode=false diff HEAD
git checkout HEAD test_mod.py
git apply -v - <<'EOF_114329324912'
{NEW_TEST}
EOF_114329324912
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider test_mod.py tests/test_new.py
: '>>>>> End Test Output'
git checkout HEAD test_mod.py
"""


@pytest.mark.parametrize(
    ("rules", "parser"), [("swebench", "parse_log_pytest"), ("swegym", "parse_log_pytest")]
)
def test_an_official_script_is_run_and_read_by_its_rules(rules, parser):
    tests = replace(PATCHED.tests, command=OFFICIAL, patch="", rules=rules, parser=parser)
    task = replace(PATCHED, tests=tests)

    async def work(backend):
        grader = Grader(backend)
        liar = FIX + new("conftest.py", "def pytest_sessionfinish(session):", "    session.exitstatus = 3")
        unprotected = replace(
            task, files={**TASK.files, "tests/old.py": ""}, tests=replace(tests, protected=())
        )
        return await grader(task, FIX), await grader(task, ""), await grader(unprotected, liar)

    fixed, untouched, contradicted = in_boxes(work)
    assert fixed.resolved, fixed
    assert untouched.state is GradeState.TESTS_FAILED
    # the exit code is recorded and read by swebench 5, not by SWE-Gym's fork
    assert contradicted.state is (GradeState.NO_REPORT if rules == "swebench" else GradeState.RESOLVED)
