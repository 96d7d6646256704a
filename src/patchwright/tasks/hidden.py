"""What an agent must not see of a box that its task's set-up has made, R2E-Gym's tests for one."""

from __future__ import annotations

import shlex

from patchwright.errors import SandboxError
from patchwright.sandbox.base import Sandbox
from patchwright.types import Task

__all__ = ["remove_hidden"]


async def remove_hidden(box: Sandbox, task: Task) -> None:
    """Take `Task.hidden` out of the agent's box; the grader's has it. Raises SandboxError when it stays."""
    if not task.hidden:
        return
    paths = " ".join(map(shlex.quote, task.hidden))
    done = await box.exec(f"rm -rf -- {paths}", timeout=task.limits.test_seconds, cwd=task.workdir)
    if done.code != 0:
        raise SandboxError(
            f"task {task.id}: its hidden tests cannot be taken out of the agent's box: {done.output[-300:]}"
        )
