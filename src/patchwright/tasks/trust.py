"""What a task is worth as a judge: graded with its solution, with nothing, with a solution made wrong, and
with its tests in another order.

    valid     the solution passes every time, nothing else does
    flaky     the same patch is judged differently from run to run, or when the tests run in another order
    hackable  a solution with a piece missing or turned into its opposite still passes
    broken    the solution never passes, or doing nothing does, or there is no verdict at all

`patchwright tasks validate` asks; the verdict is `Task.trust`, the evidence `meta["trust"]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from patchwright.config import Config
from patchwright.errors import ConfigError, GradeError, SandboxError
from patchwright.tasks.hunks import variants
from patchwright.tasks.validate import Grading
from patchwright.types import Grade, Task, TestStatus

VERDICTS = VALID, HACKABLE, FLAKY, BROKEN = "valid", "hackable", "flaky", "broken"
_ORDER = """
import random as _random

import pytest as _pytest


@_pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
def pytest_patchwright_order(items):
    draw = _random.Random({seed})
    files = {{}}
    for item in items:
        files.setdefault(str(item.path), []).append(item)
    groups = list(files.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    items[:] = [item for group in groups for item in group]
"""
"""Appended to the repository's own conftest file: files in another order, and the tests in each of them."""


class TrustConfig(Config):
    """How thoroughly a task is examined."""

    repeat: PositiveInt = 3
    """How often the solution, and doing nothing, are graded."""
    mutants: NonNegativeInt = 6
    """Solutions made wrong that are graded, at most."""
    orders: NonNegativeInt = 1
    """Other orders of the tests in which the solution is graded; tasks run by pytest only."""
    seed: int = 0
    """Draws the mutants, where there are more, and the orders."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What was found. Example: `Trust("hackable", {"reason": "...", "gold": {...}, "mutants": [...]})`"""

    verdict: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """JSON: `reason` in words, and what each check showed."""

    def on(self, task: Task) -> Task:
        """The task with the verdict and its evidence."""
        return replace(task, trust=self.verdict, meta={**task.meta, "trust": dict(self.evidence)})


async def examine(task: Task, grade: Grading, config: TrustConfig) -> Trust:
    """Examine one task. `grade` must run the tests anew every time it is called.

    Raises InfraError when there was no box, which may be the machine's fault: no verdict about the task then.
    """
    evidence: dict[str, Any] = {}
    try:
        verdict, reason = await _examine(task, grade, config, evidence)
    except GradeError as error:
        if isinstance(error.__cause__, SandboxError):
            raise
        verdict, reason = BROKEN, str(error)
    return Trust(verdict, {"reason": reason, **evidence})


def trusted(tasks: Sequence[Task], *, keep_hackable: bool) -> list[Task]:
    """The tasks worth training on: not those found `broken` or `flaky`.

    Raises ConfigError when none is left.
    """
    refused = {BROKEN, FLAKY} | (set() if keep_hackable else {HACKABLE})
    kept = [task for task in tasks if task.trust not in refused]
    if tasks and not kept:
        raise ConfigError(
            f"`patchwright tasks validate` found all {len(tasks)} tasks {' or '.join(sorted(refused))}; "
            "train on others"
        )
    return kept


def trust_counts(tasks: Iterable[Task]) -> dict[str, int]:
    """How many tasks have each verdict; `none` for those that were never validated."""
    return dict(sorted(Counter(task.trust or "none" for task in tasks).items()))


def doubt(tasks: Sequence[Task]) -> str:
    """A sentence on the tasks that measure nothing, empty when there are none: `2 of 9 tasks are broken`."""
    counts = trust_counts(task for task in tasks if task.trust in (BROKEN, FLAKY))
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"by `patchwright tasks validate`, of {len(tasks)} tasks {found}" if found else ""


async def _examine(
    task: Task, grade: Grading, config: TrustConfig, evidence: dict[str, Any]
) -> tuple[str, str]:
    if not task.solution.strip() or not task.tests.fail_to_pass:
        return BROKEN, "it has no solution or no fail_to_pass test"
    null = [await grade(task, "") for _ in range(config.repeat)]
    evidence["null"] = _summary(null)
    passing = _always(null, task.tests.fail_to_pass, TestStatus.PASSED)
    if all(grade.resolved for grade in null) or passing:
        return BROKEN, f"{passing[0] if passing else 'everything'} passes before the fix"
    gold = [await grade(task, task.solution) for _ in range(config.repeat)]
    evidence["gold"] = _summary(gold)
    if not any(grade.resolved for grade in gold):
        return BROKEN, f"the solution does not solve it: {gold[0].reason}"
    unsteady = [*_unsteady(null), *_unsteady(gold)]
    if unsteady or not all(grade.resolved for grade in gold):
        return FLAKY, f"the same patch is judged differently: {', '.join(unsteady[:5])}"
    disorder = await _disordered(task, grade, config, evidence)
    if disorder:
        return FLAKY, disorder
    passed = await _mutants(task, grade, config, evidence)
    return (HACKABLE, f"still passes with {passed[0]}") if passed else (VALID, "")


async def _disordered(task: Task, grade: Grading, config: TrustConfig, evidence: dict[str, Any]) -> str:
    """What fails when the tests run in another order, in words."""
    if "pytest" not in task.tests.command:
        return ""
    grades = [
        await grade(_reordered(task, config.seed + turn), task.solution) for turn in range(config.orders)
    ]
    evidence["orders"] = _summary(grades)
    bad = next((found for found in grades if not found.resolved), None)
    return f"with the tests in another order: {bad.reason}" if bad else ""


def _reordered(task: Task, seed: int) -> Task:
    """The task with a command that first teaches the repository's conftest file another order.

    It comes after everything else was laid down, so that a conftest file that is restored has it too.
    """
    lines = [
        "cat >> conftest.py <<'PATCHWRIGHT_ORDER'",
        _ORDER.format(seed=seed).rstrip("\n"),
        "PATCHWRIGHT_ORDER",
    ]
    command = "\n".join([*lines, task.tests.command])
    return replace(task, id=f"{task.id}~order-{seed}", tests=replace(task.tests, command=command))


async def _mutants(task: Task, grade: Grading, config: TrustConfig, evidence: dict[str, Any]) -> list[str]:
    """The mutants of the solution that still pass, in words."""
    found = variants(task.solution)
    drawn = Random(config.seed).sample(found, min(config.mutants, len(found)))
    passed, rows = [], []
    for variant in drawn:
        verdict = await grade(task, variant.patch)
        rows.append({"what": variant.what, "state": verdict.state.value})
        if verdict.resolved:
            passed.append(variant.what)
            rows[-1]["patch"] = variant.patch
    evidence["mutants"] = {"made": len(drawn), "passed": len(passed), "each": rows}
    return passed


def _summary(grades: Sequence[Grade]) -> dict[str, Any]:
    resolved = sum(grade.resolved for grade in grades)
    summary: dict[str, Any] = {"runs": len(grades), "resolved": resolved}
    unsteady = _unsteady(grades)
    if unsteady:
        summary["unsteady"] = unsteady[:20]
    if 0 < resolved < len(grades):
        summary["reason"] = next(grade.reason for grade in grades if not grade.resolved)
    return summary


def _always(grades: Sequence[Grade], tests: Sequence[str], status: TestStatus) -> list[str]:
    return [test for test in tests if all(grade.tests.get(test) is status for grade in grades)]


def _unsteady(grades: Sequence[Grade]) -> list[str]:
    """Tests whose status is not the same in every run."""
    names = dict.fromkeys(test for grade in grades for test in grade.tests)
    return [test for test in names if len({grade.tests.get(test) for grade in grades}) > 1]
