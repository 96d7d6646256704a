"""Our verdicts on real logs are the official grader's, to the byte of its report."""

import json
from collections import Counter

from tests.grade.realdata import Case, cases

from patchwright.grade.report import official_report, report_text
from patchwright.grade.rules import judge
from patchwright.types import GradeState, TestStatus


def verdict(case: Case):
    return None if case.log is None else judge(case.task, case.log)


def test_every_report_is_equal_to_the_byte():
    different = []
    for case in cases():
        patch = (case.folder / "patch.diff").read_text()
        if report_text(official_report(case.task, patch, verdict(case))) != case.report:
            different.append(case.name)
    assert different == []


def test_verdicts_and_tests_agree_with_the_reports():
    states: Counter[GradeState] = Counter()
    for case in cases():
        found = verdict(case)
        official = json.loads(case.report)[case.task.id]
        if found is None:
            assert not official["resolved"]
            continue
        states[found.state] += 1
        assert (found.state is GradeState.RESOLVED) == official["resolved"], case.name
        for lists in official.get("tests_status", {}).values():
            assert all(found.tests[test] is TestStatus.PASSED for test in lists["success"]), case.name
            assert all(found.tests[test] is not TestStatus.PASSED for test in lists["failure"]), case.name
    assert states[GradeState.RESOLVED] >= 20 and states[GradeState.TESTS_TIMEOUT] == 3


def test_a_forged_run_with_exit_code_0_is_resolved_as_officially_and_one_with_1_is_not():
    states = {case.folder.name: verdict(case).state for case in cases() if "spoof" in case.name}
    assert states == {
        "spoof_conftest_exit0": GradeState.RESOLVED,
        "spoof_conftest": GradeState.NO_REPORT,
    }
