"""Validation of a task in real boxes: it fails as it says, for the right reason, and can be solved.

The grader lives above this package, so it is passed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from patchwright.types import Grade, Task, TestStatus

Grading = Callable[[Task, str], Awaitable[Grade]]
"""`grade.tests.Grader`: a task and a patch in, a verdict out."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Whether a task is sound. Example: `Validation(False, "t.py::test_a is passed before the fix")`"""

    ok: bool
    reason: str = ""
    """What is wrong, in words; empty when nothing is."""


async def validate(task: Task, grade: Grading) -> Validation:
    """Grade the untouched code and the solution.

    Without a patch every `fail_to_pass` test must run and fail (an error while collecting, as a syntax
    error gives, is not a failing test) and every `pass_to_pass` test must pass; with the solution all must
    pass. Raises InfraError as `grade` does.
    """
    if not task.solution.strip() or not task.tests.fail_to_pass:
        return Validation(False, "it has no solution or no fail_to_pass test")
    before = await grade(task, "")
    problem = (
        _other(before, task.tests.fail_to_pass, TestStatus.FAILED, "before the fix")
        or _other(before, task.tests.pass_to_pass, TestStatus.PASSED, "before the fix")
        or ("it is resolved before the fix" if before.resolved else "")
    )
    if problem:
        return Validation(False, problem)
    after = await grade(task, task.solution)
    return Validation(
        after.resolved, "" if after.resolved else f"the solution does not solve it: {after.reason}"
    )


def _other(grade: Grade, tests: Iterable[str], wanted: TestStatus, when: str) -> str:
    """The first test whose status is not the wanted one, in words."""
    for test in tests:
        status = grade.tests.get(test, TestStatus.MISSING)
        if status is not wanted:
            return f"{test} is {status.value} {when}, not {wanted.value}"
    return ""
