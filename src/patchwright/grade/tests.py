"""Grading by tests: a patch and a task in, a verdict or a void ending out.

`diff` cleans the patch, `run` runs the tests in a fresh box, `rules` reads the log; here it is decided what
an ending means, and who is to blame when no verdict can be read: the patch, or the task's environment.
"""

from __future__ import annotations

import asyncio
import dataclasses

from patchwright.errors import GradeError, SandboxError
from patchwright.grade.cache import GradeCache, Grading, fingerprint, key
from patchwright.grade.diff import Diff, parse
from patchwright.grade.frame import unframed
from patchwright.grade.integrity import screened, weighed
from patchwright.grade.rules import judge
from patchwright.grade.run import Ran, open_box, run_tests
from patchwright.grade.witness import Witness
from patchwright.sandbox.base import SandboxBackend
from patchwright.types import Grade, GradeState, Task

__all__ = ["Grader", "Grading", "open_box"]

_UNTOUCHED = Diff()


class Grader:
    """Grades patches; identical patches of one task are graded once.

    Example: `grade = await Grader(backend)(task, patch)`
    """

    def __init__(
        self, backend: SandboxBackend, *, cache: GradeCache | None = None, skip_empty: bool = False
    ) -> None:
        """`cache` keeps verdicts and logs on disk. With `skip_empty` an empty patch is unresolved without a
        run, as official harnesses have it; else the untouched code is tested, for its tests' statuses."""
        self._backend, self._cache, self._skip_empty = backend, cache, skip_empty
        self._jobs: dict[str, asyncio.Future[Grading]] = {}
        self._known: dict[str, Grading] = {}
        self._fingerprints: dict[str, tuple[Task, str]] = {}
        self.hits = 0
        """Verdicts answered from an earlier identical patch."""

    async def __call__(self, task: Task, patch: str) -> Grade:
        """The verdict. Raises GradeError, which says how it ended, when none can be reached."""
        return (await self.grading(task, patch)).grade

    async def grading(self, task: Task, patch: str) -> Grading:
        """The verdict with its log. Raises GradeError when none can be reached."""
        diff, findings = screened(task, parse(patch))
        refused = self._refused(diff)
        if refused is not None:
            found = Grading(grade=refused, patch=diff.shown)
        else:
            found = await self._graded(task, diff)
        grade = dataclasses.replace(found.grade, findings=findings + found.grade.findings)
        return dataclasses.replace(found, grade=grade)

    def _refused(self, diff: Diff) -> Grade | None:
        """The verdict on a patch that never reaches a box."""
        if diff.outside:
            reason = f"patch does not apply: it reaches out of the repository, to {diff.outside}"[:500]
            finding = f"outside: {diff.outside}"[:500]
            return Grade(state=GradeState.APPLY_FAILED, reason=reason, findings=(finding,))
        if diff.wanted and not diff.cut and not diff.sections:
            return Grade(state=GradeState.APPLY_FAILED, reason="patch does not apply: there is no diff in it")
        if self._skip_empty and not diff.sections:
            return Grade(state=GradeState.EMPTY_PATCH, reason="there is nothing to apply")
        return None

    async def _graded(self, task: Task, diff: Diff) -> Grading:
        name = key(self._fingerprint(task), diff.data)
        known = self._remembered(name)
        if known is not None:
            self.hits += 1
            return known
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = asyncio.ensure_future(self._grade(task, diff, name))
            job.add_done_callback(lambda done: self._forget(name, done))
        else:
            self.hits += 1
        return await asyncio.shield(job)

    def _remembered(self, name: str) -> Grading | None:
        return self._cache.get(name) if self._cache is not None else self._known.get(name)

    def _keep(self, name: str, grading: Grading) -> None:
        if self._cache is not None:
            self._cache.put(name, grading)
        else:
            self._known[name] = dataclasses.replace(grading, log="")  # logs are large, memory is not

    def _forget(self, name: str, job: asyncio.Future[Grading]) -> None:
        """An error is for those who wait for it; whoever asks next tries again."""
        del self._jobs[name]
        if not job.cancelled():
            job.exception()

    def _fingerprint(self, task: Task) -> str:
        known = self._fingerprints.get(task.id)
        if known is None or known[0] is not task:
            known = self._fingerprints[task.id] = (task, fingerprint(task))
        return known[1]

    async def _grade(self, task: Task, diff: Diff, name: str) -> Grading:
        ran = await self._ran(task, diff)
        grade = weighed(task, await self._verdict(task, diff, ran), ran)
        done = Grading(
            grade=dataclasses.replace(grade, seconds=ran.seconds),
            log=ran.log,
            patch=diff.shown,
            command_seconds=ran.command_seconds,
            sessions=ran.sessions,
        )
        self._keep(name, done)
        return done

    async def _ran(self, task: Task, diff: Diff) -> Ran:
        """One run; a second one after a fault that may be the machine's."""
        try:
            ran = await run_tests(self._backend, task, diff)
        except SandboxError:
            ran = None
        if ran is not None and not ran.killed and ran.failed is not GradeState.ENV_BROKEN:
            return ran
        try:
            return await run_tests(self._backend, task, diff)
        except SandboxError as error:
            raise GradeError(str(error), state=GradeState.ENV_BROKEN) from error

    async def _verdict(self, task: Task, diff: Diff, ran: Ran) -> Grade:
        if ran.failed is GradeState.APPLY_FAILED:
            return Grade(state=GradeState.APPLY_FAILED, reason=ran.problem)
        if ran.failed is not None:
            await self._blame(task, diff, ran.problem, GradeState.ENV_BROKEN)
            return Grade(state=GradeState.TESTS_FAILED, reason=ran.problem[:500])
        found = judge(task, ran.log, timed_out=ran.timed_out)
        grade = Grade(state=found.state, tests=found.tests, reason=found.reason)
        if found.state is GradeState.NO_TESTS_PARSED:
            said = (
                f"`{task.tests.command[:200]}` reported no test that parser `{task.tests.parser}` can read "
                f"(exit code {ran.code}, {found.reason}): {unframed(ran.log)[0][-300:].strip()!r}"
            )
            await self._blame(task, diff, said, GradeState.NO_TESTS_PARSED)
            reason = "the patched code ends the tests without a report"
            return dataclasses.replace(grade, state=GradeState.NO_REPORT, reason=reason)
        if ran.killed and not grade.resolved:
            await self._blame(
                task, diff, "the tests were killed, out of memory perhaps", GradeState.ENV_BROKEN
            )
        return await self._witnessed(task, diff, ran, grade) if grade.resolved else grade

    async def _witnessed(self, task: Task, diff: Diff, ran: Ran, grade: Grade) -> Grade:
        """Resolved only if the runner called the witness as often as its command says, or else as often as
        with the untouched code: never, when the command starts pytest in a way of its own."""
        if ran.sessions is None or 0 < ran.sessions <= Witness.sessions(task.tests.command):
            return grade
        if not diff.sections or ran.sessions == (must := (await self._graded(task, _UNTOUCHED)).sessions):
            return grade
        reason = (
            f"unwitnessed: there are results of {ran.sessions} runs of pytest, of the untouched code {must}"
        )
        return dataclasses.replace(grade, state=GradeState.NO_REPORT, reason=reason, findings=(reason,))

    async def _blame(self, task: Task, diff: Diff, problem: str, state: GradeState) -> None:
        """Return when it is the patch's doing: the untouched code does better. Else raise GradeError."""
        if not diff.sections:
            raise GradeError(f"task {task.id}: {problem}", state=state)
        await self._graded(task, _UNTOUCHED)
