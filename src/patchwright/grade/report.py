"""The official `report.json` and `test_output.txt` of a graded patch, made from a verdict."""

from __future__ import annotations

import json
from typing import Any

from patchwright.grade.rules import Split, Verdict
from patchwright.types import GradeState, Task

__all__ = ["log_text", "official_report", "report_text"]


def official_report(task: Task, patch: str | None, verdict: Verdict | None) -> dict[str, Any]:
    """What the harness of `task.tests.rules` reports, `strict` in swebench's shape: `{task.id: {...}}`.

    `patch` None: the prediction has none. `verdict` None: the patch did not apply, so that no test ran.
    """
    report: dict[str, Any] = {
        "patch_is_None": False,
        "patch_exists": patch is not None,
        "patch_successfully_applied": verdict is not None and verdict.read,
        "resolved": verdict is not None and verdict.state is GradeState.RESOLVED,
    }
    if patch is None:
        # SWE-Gym's fork writes it under a key of its own
        report |= {"none": True} if task.tests.rules == "swegym" else {"patch_is_None": True}
    if _classifies(task) and (verdict is not None or patch is None):
        report["infra_failure"] = verdict is not None and verdict.environment
    if verdict is not None and verdict.fault:
        report["infra_failure_reason"] = verdict.fault
    if verdict is not None and verdict.read:
        report["tests_status"] = _tests_status(verdict)
    return {task.id: report}


def report_text(report: dict[str, Any]) -> str:
    """The report as its file holds it."""
    return json.dumps(report, indent=4)


def log_text(log: str, stopped_after: float | None = None) -> str:
    """The log as `test_output.txt`: valid UTF-8, on which official graders insist, and with their note when
    the tests were stopped after so many seconds."""
    note = "" if stopped_after is None else f"\n\nTimeout error: {stopped_after:.0f} seconds exceeded."
    return log.encode("utf-8", "replace").decode() + note


def _classifies(task: Task) -> bool:
    return task.tests.rules in ("strict", "swebench", "swebench-fail-only")


def _tests_status(verdict: Verdict) -> dict[str, Any]:
    """The last two lists are always empty: no task names tests that may fail."""
    return {
        "FAIL_TO_PASS": _lists(verdict.fail_to_pass),
        "PASS_TO_PASS": _lists(verdict.pass_to_pass),
        "FAIL_TO_FAIL": _lists(Split()),
        "PASS_TO_FAIL": _lists(Split()),
    }


def _lists(split: Split) -> dict[str, list[str]]:
    return {"success": list(split.success), "failure": list(split.failure)}
