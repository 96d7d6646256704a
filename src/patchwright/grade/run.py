"""One run of a task's tests: a fresh box, set up, patched, the tests put back, the command under its time.

No verdict here: `grade/rules.py` reads the log, `grade/tests.py` says what an ending means.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from patchwright.errors import MissingImage, SandboxError
from patchwright.grade.diff import Diff
from patchwright.grade.frame import framed
from patchwright.grade.patch import apply_patch
from patchwright.grade.restore import restore_tests
from patchwright.grade.settings import changed_settings, read_settings
from patchwright.grade.stamps import stamps, tampered, watched
from patchwright.grade.witness import Testimony, Witness
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.sandbox.output import render
from patchwright.tasks.history import without_history
from patchwright.tasks.repository import repository_archive
from patchwright.tasks.specs.script import with_exit_code
from patchwright.types import GradeState, Task

__all__ = ["Ran", "open_box", "run_tests", "script"]

LOG_HEAD, LOG_TAIL = 8 * 2**20, 8 * 2**20
"""Bytes of a log that are kept, of its start and of its end."""

_ENV = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python tells a stale .pyc by the source's size and its time in whole seconds: two edits of equal size
within a second would run the first one's code."""

_KILLED = 137
_EXIT_CODE_RULES = ("swebench", "swebench-fail-only")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What came of a run. Example: `Ran(log="PASSED t.py::a\\n", seconds=1.2)`"""

    failed: GradeState | None = None
    """Why the command was never started: `apply_failed`, or `env_broken` for the task's own tests."""
    problem: str = ""
    """That in words."""
    log: str = ""
    """What the test patch and the command wrote, at most `LOG_HEAD` + `LOG_TAIL` bytes; framed when there was
    a witness."""
    settings: tuple[str, ...] = ()
    """Findings on settings of the tests that the patch changed."""
    meddling: tuple[str, ...] = ()
    """Findings on what was done to the run: by the `strict` rules such a run resolves nothing."""
    sessions: int | None = None
    """How often the runner called the witness; None when none was wanted."""
    code: int = 0
    timed_out: bool = False
    command_seconds: float = 0.0
    """Wall time of the command alone."""
    seconds: float = 0.0
    """Wall time of everything, from opening the box to closing it."""

    @property
    def killed(self) -> bool:
        """Whether something other than its clock killed the command: the lack of memory, most of the time."""
        return self.code == _KILLED and not self.timed_out


async def run_tests(backend: SandboxBackend, task: Task, diff: Diff) -> Ran:
    """Run a task's tests over a patch, empty for the untouched code. Raises SandboxError."""
    started = time.monotonic()
    box = await open_box(backend, task)
    try:
        ran = await _run(*await _bare(box, task), diff)
    except OSError as error:  # the box could not take a file: disk full, most of the time
        raise SandboxError(f"task {task.id}: the box refused a file: {error.strerror}") from error
    finally:
        await box.close()
    return replace(ran, seconds=time.monotonic() - started)


async def _bare(box: Sandbox, task: Task) -> tuple[Sandbox, Task]:
    """Before the patch goes in: by our own rules its code finds no commit to read the answer in. Official
    scripts name commits, so those stay where they are run."""
    return await without_history(box, task) if task.tests.rules == "strict" else (box, task)


async def _run(box: Sandbox, task: Task, diff: Diff) -> Ran:
    before = await read_settings(box, task, diff)
    problem = await apply_patch(box, task, diff) if diff.sections else ""
    if problem:
        return Ran(failed=GradeState.APPLY_FAILED, problem=f"patch does not apply: {problem[:500]}")
    settings = await changed_settings(box, task, before)
    said, problem = await restore_tests(box, task, diff.paths)
    if problem:
        return Ran(failed=GradeState.ENV_BROKEN, problem=problem, log=said)
    return replace(await _tested(box, task, diff, said), settings=settings)


async def _tested(box: Sandbox, task: Task, diff: Diff, said: str) -> Ran:
    """The command run, watched from beside it."""
    command, log = script(task), _Log()
    wanted = Witness.wanted(task, command)
    witness = await Witness.placed(box, task, watched(task)) if wanted else None
    stamped = {} if wanted else await stamps(box, task)
    done = await box.exec(
        witness.command(command) if witness else command,
        timeout=task.limits.test_seconds,
        cwd=task.workdir,
        on_output=log.add,
    )
    heard = await witness.heard(box, task, diff) if witness else Testimony()
    written = said + (log.text() or done.output)
    return Ran(
        log=framed(written, heard.statuses) if heard.sessions else written,
        meddling=heard.findings + (tampered(stamped, await stamps(box, task)) if stamped else ()),
        sessions=heard.sessions if witness else None,
        code=done.code,
        timed_out=done.timed_out,
        command_seconds=done.seconds,
    )


async def open_box(
    backend: SandboxBackend, task: Task, furnish: Callable[[BoxSpec], BoxSpec] = lambda spec: spec
) -> Sandbox:
    """A fresh box with the task's repository in it and its setup done; `furnish` says what it has besides.
    Raises SandboxError."""
    spec = BoxSpec(
        image=task.image,
        workdir=task.workdir,
        archive=repository_archive(task),
        env=_ENV,
        limits=task.limits,
    )
    try:
        box = await backend.open(furnish(spec))
    except MissingImage as error:  # runs look before they start: it was removed since
        raise SandboxError(f"task {task.id}: {error}") from error
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


def script(task: Task) -> str:
    """The test command as it is run: scripts of SWE-bench record the exit code of their tests, which
    swebench 5 adds to them and reads (a script's own code is that of its last clean-up)."""
    command = task.tests.command
    return with_exit_code(command) if task.tests.rules in _EXIT_CODE_RULES else command


class _Log:
    """The output as it comes, start and end kept in bounded memory."""

    def __init__(self) -> None:
        self._head, self._tail, self._omitted = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        room = max(0, LOG_HEAD - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * LOG_TAIL:
            self._cut()

    def text(self) -> str:
        self._cut()
        return render(bytes(self._head), self._omitted, bytes(self._tail))

    def _cut(self) -> None:
        over = max(0, len(self._tail) - LOG_TAIL)
        del self._tail[:over]
        self._omitted += over
