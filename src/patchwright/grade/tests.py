"""Grading by tests: a fresh box, the patch applied, the task's test files restored, the command run,
every test's status read from the log."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping

from patchwright.errors import GradeError, SandboxError
from patchwright.grade.parsers import parser
from patchwright.grade.patch import apply_patch
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.tasks.repository import repository_archive
from patchwright.types import Exec, Grade, Task, TestStatus

_GOOD = TestStatus.PASSED

_ENV = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python tells a stale .pyc by the source's size and its time in whole seconds: two edits of equal size
within a second would run the first one's code."""


class Grader:
    """Grades patches; identical patches of one task are graded once.

    Example: `grade = await Grader(backend)(task, patch)`
    """

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._grades: dict[tuple[str, str], asyncio.Future[Grade]] = {}
        self.hits = 0
        """Verdicts answered from an earlier identical patch."""

    async def __call__(self, task: Task, patch: str) -> Grade:
        """The verdict. Raises GradeError or SandboxError when none can be reached."""
        key = (task.id, hashlib.sha256(patch.encode()).hexdigest())
        known = self._grades.get(key)
        if known is not None and not (known.done() and (known.cancelled() or known.exception())):
            self.hits += 1
            return await asyncio.shield(known)
        job = asyncio.ensure_future(self._grade(task, patch))
        job.add_done_callback(_retrieve)
        self._grades[key] = job
        return await asyncio.shield(job)

    async def _grade(self, task: Task, patch: str) -> Grade:
        started = time.monotonic()
        box = await open_box(self._backend, task)
        try:
            problem = await apply_patch(box, task, patch) if patch.strip() else ""
            if problem:
                return Grade(resolved=False, reason=f"patch does not apply: {problem[:500]}")
            for path, content in task.tests.files.items():
                await box.write(path, content.encode())
            done = await box.exec(task.tests.command, timeout=task.limits.test_seconds, cwd=task.workdir)
        finally:
            await box.close()
        return await self._verdict(task, patch, done, time.monotonic() - started)

    async def _verdict(self, task: Task, patch: str, done: Exec, seconds: float) -> Grade:
        log = parser(task.tests.parser)(done.output)
        tests = {name: log.get(name, TestStatus.MISSING) for name in _named(task)}
        if done.timed_out:
            return Grade(resolved=False, tests=tests, reason="the tests timed out", seconds=seconds)
        if not log:
            return await self._silent(task, patch, done, tests)
        return Grade(resolved=_all_good(tests), tests=tests, reason=_reason(tests), seconds=seconds)

    async def _silent(self, task: Task, patch: str, done: Exec, tests: Mapping[str, TestStatus]) -> Grade:
        """No test in the log: the patch's doing when the unpatched code does report, else no verdict."""
        if patch.strip():
            await self(task, "")  # raises GradeError when the unpatched code reports nothing either
            return Grade(
                resolved=False, tests=tests, reason="the patched code ends the tests without a report"
            )
        raise GradeError(
            f"task {task.id}: `{task.tests.command}` reported no test that parser `{task.tests.parser}` "
            f"can read (exit code {done.code}): {done.output[-300:].strip()!r}"
        )


async def open_box(backend: SandboxBackend, task: Task) -> Sandbox:
    """A fresh box with the task's repository in it and its setup done. Raises SandboxError."""
    spec = BoxSpec(
        image=task.image,
        workdir=task.workdir,
        archive=repository_archive(task),
        env=_ENV,
        limits=task.limits,
    )
    box = await backend.open(spec)
    try:
        for command in task.setup:
            done = await box.exec(command, timeout=task.limits.test_seconds, cwd=task.workdir)
            if done.code != 0:
                raise SandboxError(
                    f"task {task.id}: setup `{command}` failed with {done.code}: {done.output[-300:]}"
                )
    except BaseException:
        await box.close()
        raise
    return box


def _named(task: Task) -> tuple[str, ...]:
    return task.tests.fail_to_pass + task.tests.pass_to_pass


def _all_good(tests: Mapping[str, TestStatus]) -> bool:
    return bool(tests) and all(status is _GOOD for status in tests.values())


def _reason(tests: Mapping[str, TestStatus]) -> str:
    bad = [f"{name} {status.value}" for name, status in tests.items() if status is not _GOOD]
    return f"{len(bad)} of {len(tests)} tests: {', '.join(bad)}"[:500] if bad else ""


def _retrieve(job: asyncio.Future[Grade]) -> None:
    """Mark the exception as seen: whoever awaited has it, and nobody may be left waiting."""
    if not job.cancelled():
        job.exception()
