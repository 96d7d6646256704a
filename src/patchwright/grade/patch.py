"""The patch of a box: taken out as a git diff, put into another box with `git apply`."""

from __future__ import annotations

import shlex

from patchwright.sandbox.base import Sandbox
from patchwright.types import Task

PATCH_FILE = "/tmp/patchwright.diff"

# What running tests leaves behind is not part of anybody's fix.
_LEAVINGS = "':(exclude,glob)**/__pycache__/**' ':(exclude,glob)**/.pytest_cache/**'"


async def take_patch(box: Sandbox, task: Task) -> str:
    """Everything that differs from `task.base_commit`: new, deleted, binary and renamed files too.

    Empty when nothing changed, or when the agent destroyed the repository (then there is no fix to
    grade). Raises SandboxError when the box is gone.
    """
    data = await _diff(box, task, "")
    if data is None:
        return ""
    try:
        return data.decode()
    except UnicodeDecodeError:  # a text file in another encoding: ask for it as a binary diff, pure ASCII
        return ((await _diff(box, task, "echo '* -diff' > .git/info/attributes && ")) or b"").decode()


async def _diff(box: Sandbox, task: Task, before: str) -> bytes | None:
    base = shlex.quote(task.base_commit)
    done = await box.exec(
        f"mkdir -p .git/info && {before}git add -A -- . {_LEAVINGS} && "
        f"git --no-pager diff --cached --binary --no-color --no-ext-diff {base} > {PATCH_FILE}",
        timeout=task.limits.test_seconds,
        cwd=task.workdir,
    )
    return await box.read(PATCH_FILE) if done.code == 0 else None


async def apply_patch(box: Sandbox, task: Task, patch: str) -> str:
    """Apply a patch in the box's workdir: `git apply`, else `patch --fuzz=5` as SWE-bench's harness
    does, but never backwards. Returns "" when it went in, else what git said about it."""
    await box.write(PATCH_FILE, _tidy(patch).encode())
    first = await box.exec(f"git apply --whitespace=nowarn {PATCH_FILE}", cwd=task.workdir)
    if first.code == 0:
        return ""
    second = await box.exec(f"patch --batch --forward --fuzz=5 -p1 -i {PATCH_FILE}", cwd=task.workdir)
    return "" if second.code == 0 else first.output.strip()


def _tidy(patch: str) -> str:
    """Drop what a model wrote before the diff, and end with a newline, without which git refuses."""
    start = patch.find("diff --git ")
    body = patch[start:] if start > 0 else patch
    return body if body.endswith("\n") else body + "\n"
