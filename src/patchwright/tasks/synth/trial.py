"""One bug tried in boxes: caught by tests for the right reason, and gone with the solution, every time."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from patchwright.errors import GradeError, SandboxError
from patchwright.tasks.mutation import replacement
from patchwright.tasks.mutation.whole import stub
from patchwright.tasks.synth.bench import LIMITS, OPTIONS, Bench, Failure
from patchwright.tasks.synth.bugs import Bug, repair
from patchwright.tasks.synth.config import LibraryConfig
from patchwright.tasks.synth.issue import template, written
from patchwright.tasks.synth.survey import Survey
from patchwright.tasks.synth.writer import Writer
from patchwright.tasks.validate import Grading
from patchwright.types import Grade, GradeState, Task, Tests, TestStatus

_WRONG_REASONS = frozenset(
    {"SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "MemoryError"}
)
"""A test that fails with one of these shows a library that cannot be loaded, not one that errs."""

_WAITS, _COMPUTES = 60, 5
"""Seconds, by the clock and of the processor, that the tests of a bug may take beside five times what they
take on good code. A busy machine makes the clock run, and must not change which bugs are caught."""

_REWRITE = """Here is a function of a Python library:

```python
{code}
```

Write it as a colleague in a hurry would have: same name, same parameters, plausible and readable, but with
one mistake in its behaviour that the function's tests can see (a case forgotten, a bound wrong, a condition
turned). Do not comment on the mistake. Answer with the whole function in one ```python block.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a bug: a task, or why there is none."""

    bug: Bug
    task: Task | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trials:
    """Everything a trial needs besides its bug."""

    bench: Bench
    survey: Survey
    config: LibraryConfig
    grade: Grading
    """Must run the tests anew every time it is called."""
    writer: Writer | None = None

    async def run(self, bug: Bug) -> Trial:
        """Try one bug. Raises InfraError when the machine or the model leaves it without an outcome."""
        if not bug.changes:
            bug = await self._rewritten(bug)
        try:
            broken = bug.broken(self.bench.library) if bug.changes else {}
        except SyntaxError:
            return Trial(bug, reason="is not Python")
        if not broken:
            return Trial(bug, reason="the model wrote no function of that signature")
        failures = await self._caught(bug, broken)
        if not failures:
            return Trial(bug, reason="no test fails for the right reason")
        try:
            return await self._measured(bug, broken, failures)
        except GradeError as error:
            if isinstance(error.__cause__, SandboxError):
                raise  # the machine's fault: no outcome
            return Trial(bug, reason="the tests end without a report")

    async def _rewritten(self, bug: Bug) -> Bug:
        assert self.writer is not None, "the recipe refuses `rewrite` without a model"
        target = bug.targets[0]
        source = self.bench.library.sources[target.file]
        answer = await self.writer.ask(_REWRITE.format(code=stub(source, target.function)))
        change = replacement(source, target.function, answer)
        return replace(bug, changes=(change,) if change else ())

    async def _caught(self, bug: Bug, broken: Mapping[str, str]) -> dict[str, Failure]:
        """The tests that touch the bug and fail because of it."""
        tests = bug.tests
        usual = 5 * sum(self.survey.seconds[test] for test in tests)
        patience, cpu = _WAITS + usual, ceil(_COMPUTES + usual)  # a bug may wait or loop for ever
        ran = await self.bench.run(
            broken, tests=tests, places=_files(tests), seconds=patience, cpu_seconds=cpu
        )
        if not ran.ended or ran.uncollected:
            return {}
        caught = {test: ran.failed[test] for test in tests if test in ran.failed}
        return {test: why for test, why in caught.items() if why.error not in _WRONG_REASONS}

    # --- measuring ------------------------------------------------------------------------------

    async def _measured(self, bug: Bug, broken: Mapping[str, str], failures: dict[str, Failure]) -> Trial:
        """Fix which tests must pass after and which must still pass, by what they do every time."""
        task = self._draft(bug, broken, list(failures))
        before = await self._statuses(task, "")
        found = _sorted(before, failures)
        reason = self._unfit(found, len(before))
        if reason:
            return Trial(bug, reason=reason)
        task = replace(task, tests=replace(task.tests, fail_to_pass=found[0], pass_to_pass=found[1]))
        for turn in range(self.config.repeat):
            again = before if turn == 0 else await self._statuses(task, "")
            after = await self._statuses(task, task.solution)
            task = _steady(task, again, after)
        if not task.tests.fail_to_pass or not task.tests.pass_to_pass:
            return Trial(bug, reason="not the same every time, or not gone with the solution")
        shown = {test: failures[test] for test in task.tests.fail_to_pass if test in failures}
        if not shown:
            return Trial(bug, reason="no test fails for the right reason every time")
        return Trial(bug, replace(task, prompt=await self._prompt(task, shown)))

    async def _statuses(self, task: Task, patch: str) -> Mapping[str, TestStatus]:
        grade: Grade = await self.grade(task, patch)
        return {} if grade.state is GradeState.TESTS_TIMEOUT else grade.tests

    def _unfit(self, found: tuple[tuple[str, ...], tuple[str, ...]], ran: int) -> str:
        failing, passing = found
        if not failing:
            return "no test fails for the right reason every time"
        functions = {test.partition("[")[0] for test in failing}
        if len(functions) > self.config.most_failing or 2 * len(failing) > max(ran, 4):
            return "too many tests fail"
        if 2 * (len(failing) + len(passing)) < ran:
            return "most tests do not run"
        return "" if passing else "no test still passes"

    def _draft(self, bug: Bug, broken: Mapping[str, str], caught: Sequence[str]) -> Task:
        """The task, with all tests that run taken for ones to mend."""
        bench, survey = self.bench, self.survey
        places, named = self._scope(bug, caught)
        spent = sum(survey.seconds[test] for test in named)
        used = {place.partition("::")[0] for place in places}
        return Task(
            id=f"{bench.name}-{_what(bug)}-{_digest(broken)}",
            prompt="",
            tests=Tests(
                command=bench.command(f"{OPTIONS} {' '.join(map(shlex.quote, places))}"),
                fail_to_pass=tuple(named),
                files=_restored(bench.library.test_files, used),
            ),
            archive=str(bench.library.root),
            files=dict(broken),
            solution=repair(bench.library, broken),
            limits=replace(LIMITS, test_seconds=round(max(LIMITS.test_seconds, 10 + 5 * spent))),
            meta=self._meta(bug),
        )

    def _meta(self, bug: Bug) -> dict[str, Any]:
        functions = ", ".join(target.function for target in bug.targets)
        kinds = "+".join(change.kind for change in bug.changes)
        return {
            "source": "library",
            "library": self.bench.name,
            "function": functions,
            "strategy": bug.strategy,
            "bug": kinds,
        }

    def _scope(self, bug: Bug, caught: Sequence[str]) -> tuple[list[str], list[str]]:
        """What pytest is given, and the tests that run then: whole files as far as the time goes, else the
        tests that touch the bug."""
        by_file: dict[str, list[str]] = {}
        for test in self.survey.seconds:
            by_file.setdefault(test.partition("::")[0], []).append(test)
        cost = {file: sum(self.survey.seconds[test] for test in tests) for file, tests in by_file.items()}
        chosen = _files(caught)
        spent = sum(cost[file] for file in chosen)
        if spent > self.config.test_seconds:
            ids = sorted({test.partition("[")[0] for test in bug.tests})
            return ids, [test for test in self.survey.seconds if test.partition("[")[0] in ids]
        for file in _files(bug.tests):
            if file not in chosen and spent + cost[file] <= self.config.test_seconds:
                chosen, spent = [*chosen, file], spent + cost[file]
        return sorted(chosen), [test for file in sorted(chosen) for test in by_file[file]]

    # --- words ----------------------------------------------------------------------------------

    async def _prompt(self, task: Task, failures: Mapping[str, Failure]) -> str:
        library, name = self.bench.library, self.bench.name
        first = next(iter(failures)).partition("::")[0]
        command = self.bench.command(f"-q {shlex.quote(first)}")
        text = await written(self.writer, library, name, failures, task.solution) if self.writer else ""
        return text or template(library, failures, command, task.solution)


def _files(tests: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def _sorted(
    before: Mapping[str, TestStatus], failures: Mapping[str, Failure]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Failing and passing tests; the ones known to fail for the right reason come first."""
    failing = [test for test, status in before.items() if status is TestStatus.FAILED]
    passing = [test for test, status in before.items() if status is TestStatus.PASSED]
    return tuple(sorted(failing, key=lambda test: test not in failures)), tuple(passing)


def _steady(task: Task, before: Mapping[str, TestStatus], after: Mapping[str, TestStatus]) -> Task:
    """The task without tests that did otherwise in this round."""
    good = [test for test, status in after.items() if status is TestStatus.PASSED]
    failing = [t for t in task.tests.fail_to_pass if t in good and before.get(t) is TestStatus.FAILED]
    passing = [t for t in task.tests.pass_to_pass if t in good and before.get(t) is TestStatus.PASSED]
    return replace(task, tests=replace(task.tests, fail_to_pass=tuple(failing), pass_to_pass=tuple(passing)))


def _restored(test_files: Mapping[str, str], used: set[str]) -> dict[str, str]:
    """The test files that run, and every conftest file: what could be tampered with."""
    return {
        name: text for name, text in test_files.items() if name in used or Path(name).name == "conftest.py"
    }


def _what(bug: Bug) -> str:
    return bug.targets[0].function if len(bug.targets) == 1 else "combined"


def _digest(broken: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(broken.items())).encode()).hexdigest()[:12]
