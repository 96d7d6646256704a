"""Whether a test file stayed what it was while the tests ran, told by what no program can set: its ctime.

Where pytest calls a witness, the witness looks; here it is done for all other commands.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from patchwright.grade.diff import parse_tests
from patchwright.grade.patch import listed
from patchwright.sandbox.base import Sandbox
from patchwright.types import Task

__all__ = ["stamps", "tampered", "watched"]

_MOVES = re.compile(r"(?<![\w-])(?:git|mv)(?![\w-])")


def watched(task: Task) -> tuple[str, ...]:
    """The task's own test modules, which nothing may write to.

    None of a task whose command has git or mv in it: official scripts put test files back themselves, those
    of task folders carry them to where they belong. Conftest files are read before any test runs, and data
    files may be written by tests.
    """
    if _MOVES.search(task.tests.command):
        return ()
    paths = sorted({*task.tests.files, *parse_tests(task.tests.patch).paths})
    return tuple(path for path in paths if path.endswith(".py") and PurePosixPath(path).name != "conftest.py")


async def stamps(box: Sandbox, task: Task) -> dict[str, str]:
    """Inode and ctime of what is watched. Raises SandboxError."""
    paths = watched(task)
    if not paths:
        return {}
    command = "xargs -0 stat -c '%i %z %n' -- 2>/dev/null"
    done = await box.exec(command, timeout=60, cwd=task.workdir, stdin=listed(paths))
    lines = (line.partition(" ./") for line in done.output.splitlines())
    return {path: stamp for stamp, _, path in lines}


def tampered(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """A finding for every test module that was written to."""
    return tuple(f"tampered: {path}" for path, stamp in sorted(before.items()) if after.get(path) != stamp)
