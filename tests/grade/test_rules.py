"""Each rule on small logs of our own, shaped like the real ones."""

import pytest

from patchwright.errors import ConfigError
from patchwright.grade.report import log_text, official_report, report_text
from patchwright.grade.rules import RULES, judge
from patchwright.types import GradeState, Task, Tests, TestStatus

START, END = "+ : '>>>>> Start Test Output'", "+ : '>>>>> End Test Output'"


def task(rules="swebench", f2p=("t.py::a",), p2p=("t.py::b",), parser="parse_log_pytest") -> Task:
    tests = Tests(command="pytest -rA", parser=parser, fail_to_pass=f2p, pass_to_pass=p2p, rules=rules)
    return Task(id="x__y-1", prompt="", tests=tests)


def framed(*lines: str, code: int | None = None, before: str = "Applied patch t.py cleanly.") -> str:
    tail = [] if code is None else [f">>>>> Test Exit Code: {code}"]
    return "\n".join([before, START, "+ pytest -rA t.py", *lines, END, *tail, "Updated 1 path"])


GOOD = framed("PASSED t.py::a", "PASSED t.py::b", code=0)


@pytest.mark.parametrize("rules", [*RULES, "strict"])
def test_what_passes_resolves_and_what_fails_does_not(rules):
    given = task(rules)
    assert judge(given, GOOD).state is GradeState.RESOLVED
    bad = judge(given, framed("FAILED t.py::a - assert 0", "PASSED t.py::b", code=1))
    assert bad.state is GradeState.TESTS_FAILED and bad.tests["t.py::a"] is TestStatus.FAILED
    assert bad.reason == "1 of 2 tests: t.py::a failed"


def test_the_reason_names_the_tests_of_the_issue_first():
    found = judge(task(), framed("FAILED t.py::b", "FAILED t.py::a"))
    assert found.reason == "2 of 2 tests: t.py::a failed, t.py::b failed"


def test_a_test_that_the_log_does_not_name_failed():
    found = judge(task(), framed("PASSED t.py::a"))
    assert found.pass_to_pass.failure == ("t.py::b",) and found.tests["t.py::b"] is TestStatus.MISSING


def resolved(rules: str, *lines: str, **given) -> bool:
    return judge(task(rules, **given), framed(*lines)).state is GradeState.RESOLVED


def test_skipped_tests():
    skipped_fix = ("SKIPPED t.py::a", "PASSED t.py::b")
    skipped_other = ("PASSED t.py::a", "SKIPPED t.py::b")
    assert [resolved(rules, *skipped_fix) for rules in ("swebench", "swebench4", "swegym", "strict")] == [
        *(False, True, True, False)
    ]
    assert [resolved(rules, *skipped_other) for rules in ("swebench", "swebench4", "swegym", "strict")] == [
        *(True, True, True, False)
    ]


@pytest.mark.parametrize("rules", [name for name in RULES if "fail-only" not in name])
def test_expected_failures_pass(rules):
    known = rules != "swerebench2"  # SWE-rebench V2 knows no such word
    assert resolved(rules, "XFAIL t.py::a", "PASSED t.py::b") == known


def test_ids_that_were_cut_off_in_their_brackets_stand_for_all_that_begin_so():
    cut = {"f2p": ("t.py::a[log(x",), "p2p": ()}
    assert resolved("swebench", "PASSED t.py::a[log(x-1)]", "XFAIL t.py::a[log(x-2)]", **cut)
    assert not resolved("swebench", "PASSED t.py::a[log(x-1)]", "FAILED t.py::a[log(x-2)]", **cut)
    assert not resolved("swebench", "PASSED t.py::b[log(x-1)]", **cut)
    assert not resolved("swebench4", "PASSED t.py::a[log(x-1)]", **cut)
    assert not resolved("swebench", "PASSED t.py::ab", f2p=("t.py::a",), p2p=())


def test_a_failed_command_whose_log_reports_no_failure_is_not_believed():
    log = framed("PASSED t.py::a", "PASSED t.py::b", code=1)
    assert judge(task(), log).state is GradeState.NO_REPORT
    assert judge(task("swebench4"), log).state is GradeState.RESOLVED
    assert judge(task(), framed("PASSED t.py::a", "PASSED t.py::b", "ERROR t.py::c", code=1)).read


def test_results_past_the_markers_are_read_when_none_stand_between():
    log = "PASSED t.py::a\nPASSED t.py::b\n" + framed("nothing")
    assert judge(task(), log).state is GradeState.RESOLVED
    assert judge(task("swebench4"), log).state is GradeState.RESOLVED
    assert judge(task("swerebench"), log).state is GradeState.TESTS_FAILED
    assert judge(task(), "PASSED t.py::b\n" + framed("PASSED t.py::a")).pass_to_pass.failure == ("t.py::b",)


@pytest.mark.parametrize(
    ("log", "state", "fault"),
    [
        ("", GradeState.NO_TESTS_PARSED, ""),
        (GOOD.replace(END, ""), GradeState.NO_TESTS_PARSED, ""),
        (GOOD + "\n>>>>> Patch Apply Failed", GradeState.APPLY_FAILED, ""),
        (GOOD + "\n>>>>> Tests Timed Out", GradeState.TESTS_TIMEOUT, ""),
        (GOOD + "\n>>>>> Reset Failed", GradeState.NO_TESTS_PARSED, ""),
        (log_text(START, stopped_after=25), GradeState.TESTS_TIMEOUT, "tests_timed_out"),
        (framed("Traceback", "ModuleNotFoundError: x"), GradeState.NO_TESTS_PARSED, "missing_module"),
        (framed("collected 0 items"), GradeState.NO_TESTS_PARSED, "no_tests_collected"),
        (framed("Cannot allocate memory", "no tests ran"), GradeState.NO_TESTS_PARSED, "out_of_memory"),
    ],
)
def test_logs_that_are_not_read(log, state, fault):
    found = judge(task(), log)
    assert (found.read, found.state, found.fault) == (False, state, fault)
    assert found.environment == (fault == "out_of_memory")
    assert set(found.tests.values()) == {TestStatus.MISSING}


def test_a_suite_that_names_failures_only():
    only = task("swebench-fail-only", parser="parse_log_marked")
    assert judge(only, framed("3 specs, 0 failures")).state is GradeState.RESOLVED
    assert judge(only, framed("0 specs, 0 failures")).state is GradeState.NO_TESTS_PARSED
    assert judge(only, framed("1) t.py::a")).fail_to_pass.failure == ("t.py::a",)


def test_swegym_reads_everything_once_the_test_patch_is_in():
    log = "PASSED t.py::a\nPASSED t.py::b\n"
    assert judge(task("swegym"), log).state is GradeState.NO_TESTS_PARSED
    assert judge(task("swegym"), "Applied patch t.py cleanly.\n" + log).state is GradeState.RESOLVED
    after = "applied patch\nFAILED t.py::c\n>>>>> Applied Patch (pred)\n" + log
    assert judge(task("swegym", f2p=("t.py::c",)), after).tests["t.py::c"] is TestStatus.MISSING


@pytest.mark.parametrize("rules", [*RULES, "strict"])
def test_a_run_that_was_stopped_timed_out_whatever_it_printed(rules):
    found = judge(task(rules), GOOD, timed_out=True)
    assert found.state is GradeState.TESTS_TIMEOUT and not found.read
    assert not official_report(task(rules), "", found)["x__y-1"]["resolved"]


def test_a_log_that_kills_the_official_parser_is_no_report():
    found = judge(task(parser="parse_log_django"), framed("a ... ok", "FAIL:"))
    assert found.state is GradeState.NO_TESTS_PARSED and "FAIL:" in found.reason
    assert judge(task("strict", parser="parse_log_django"), "FAIL:").state is GradeState.NO_TESTS_PARSED
    huge = GOOD.replace("Code: 0", "Code: " + "1" * 5000)
    assert judge(task(), huge).state is GradeState.NO_TESTS_PARSED


def test_lines_may_end_as_they_do_on_windows():
    assert judge(task("strict", parser="pytest"), "PASSED t.py::a\r\nPASSED t.py::b\r\n").read
    assert judge(task(), GOOD.replace("\n", "\r\n")).state is GradeState.RESOLVED


def test_rules_that_do_not_exist_are_named():
    with pytest.raises(ConfigError, match=r"x__y-1.*`swebnch`.*swebench"):
        judge(task("swebnch"), GOOD)


def test_reports_have_the_official_shape():
    given = task()
    assert official_report(given, None, None)["x__y-1"] == {
        **dict.fromkeys(("patch_exists", "patch_successfully_applied", "resolved", "infra_failure"), False),
        "patch_is_None": True,
    }
    assert "infra_failure" not in official_report(given, "diff", None)["x__y-1"]
    assert official_report(task("swegym"), None, None)["x__y-1"]["none"] is True
    found = official_report(given, "diff", judge(given, framed("no", "Killed")))["x__y-1"]
    assert found["infra_failure"] is True and found["infra_failure_reason"] == "out_of_memory"
    text = report_text(official_report(given, "diff", judge(given, GOOD)))
    assert text.startswith('{\n    "x__y-1": {\n        "patch_is_None": false,\n') and '"t.py::a"' in text


def test_a_test_output_is_valid_utf8():
    assert log_text("a\udce9b", stopped_after=1800) == "a?b\n\nTimeout error: 1800 seconds exceeded."
