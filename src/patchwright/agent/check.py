"""Conformance of agents: what any `Agent` must do, shown with scripted models in real boxes.

The checks need no model and no gateway. The caller says how a script is served, so that an agent is tested
against the endpoint it will meet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwright.agent.base import Agent, Furnishing
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.types import AgentExit, CheckResult, Endpoint, Limits, Task, Tests

__all__ = ["BASH", "BUSY", "STOP", "Dialect", "Script", "Serve", "check_agent"]

STOP = "<stop signal>"
"""In a script: answer with the stop signal (404, `not_found_error`) from here on."""
BUSY = "<busy>"
"""In a script: answer once with 503."""

Script = Sequence[str]
"""What the endpoint answers, call by call: a reply, `STOP` or `BUSY`. After its end: `STOP`."""
Serve = Callable[[Script], AbstractAsyncContextManager[Endpoint]]

_PATIENCE = 60.0
"""Seconds one check may take; past it the agent hangs."""
_TURNS = 100
"""How often, every tenth of a second, what is left running is looked for."""
_EDIT = "sed -i 's/x + 1/x + 2/' mod.py"
_TASK = Task(
    id="check-agent",
    prompt="Fix mod.py: f(2) returns 3, expected 4.",
    tests=Tests(command="python3 -c 'import mod; assert mod.f(2) == 4'", fail_to_pass=("t",)),
    limits=Limits(exec_seconds=20),
)
# without bytecode: an edit within a second of another, of equal size, would run the old code
_SPEC = BoxSpec(env={"PYTHONDONTWRITEBYTECODE": "1"}, limits=_TASK.limits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How an agent's model words its wishes.

    Example: `Dialect(run=lambda command: f"```bash\\n{command}\\n```", submit="...")`
    """

    run: Callable[[str], str]
    """The reply that runs a command."""
    submit: str
    """The reply that ends the work."""


BASH = Dialect(
    run=lambda command: f"THOUGHT: go on.\n\n```bash\n{command}\n```",
    submit="```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```",
)
"""The built-in agent's."""


async def check_agent(
    agent: Agent, backend: SandboxBackend, serve: Serve, dialect: Dialect = BASH
) -> list[CheckResult]:
    """Run every check in turn. A check that fails says why; nothing is raised."""
    run, submit = dialect.run, dialect.submit
    checks: list[tuple[str, Script, bool]] = [
        ("fixes a toy bug and submits", [run(_EDIT), submit], True),
        ("works on after a command that fails", [run("cat nothing.py"), run(_EDIT), submit], True),
        ("stops on the stop signal", [STOP], False),
        ("survives a busy engine", [BUSY, run(_EDIT), submit], True),
        ("ends on replies without a command", ["I wonder."] * 200, False),
        ("ends on replies with ten commands", ["\n".join([run("true")] * 10)] * 200, False),
        ("takes a reply of a megabyte", ["x" * 2**20, STOP], False),
        ("takes an unprintable reply", ["\ufffd\u0000\u202e", STOP], False),
    ]
    results = [await _check(*check, agent, backend, serve) for check in checks]
    return [*results, await _no_leftovers(agent, backend, serve, run)]


async def _check(
    name: str, script: Script, fixed: bool, agent: Agent, backend: SandboxBackend, serve: Serve
) -> CheckResult:
    """The agent must return in time, and the bug must be `fixed` or not."""
    box = await _open(agent, backend)
    try:
        _, trouble = await _run(agent, box, serve, script)
        if trouble:
            return CheckResult(name=name, ok=False, detail=trouble)
        test = await box.exec(_TASK.tests.command)
        ok = (test.code == 0) == fixed
        detail = "" if ok else f"the bug is {'still there' if fixed else 'gone'}: {test.output[-200:]}"
        return CheckResult(name=name, ok=ok, detail=detail)
    finally:
        await box.close()


async def _no_leftovers(
    agent: Agent, backend: SandboxBackend, serve: Serve, run: Callable[[str], str]
) -> CheckResult:
    """What an agent leaves running could act on a box that is being graded."""
    box = await _open(agent, backend)
    tasks, processes = asyncio.all_tasks(), _children()
    try:
        _, trouble = await _run(agent, box, serve, [run("true"), STOP])
        left = await _still_running(tasks, processes)
        detail = trouble or (f"still running: {', '.join(left)}" if left else "")
        return CheckResult(name="leaves nothing running", ok=not detail, detail=detail)
    finally:
        await box.close()


async def _still_running(tasks: set[asyncio.Task[Any]], processes: set[str]) -> list[str]:
    """What is there besides these, once it had time to end: a busy machine takes seconds for it."""
    left: list[str] = []
    for _ in range(_TURNS):
        await asyncio.sleep(0.1)
        left = [task.get_name() for task in asyncio.all_tasks() - tasks if not task.done()]
        left += [f"process {pid}" for pid in sorted(_children() - processes)]
        if not left:
            break
    return left


def _children() -> set[str]:
    """Process ids of this process's living children (Linux; elsewhere none are seen)."""
    found: set[str] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(file.read_text().split())
    return found


async def _run(agent: Agent, box: Sandbox, serve: Serve, script: Script) -> tuple[AgentExit | None, str]:
    """The agent's exit, or what went wrong."""
    async with serve(script) as endpoint:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await agent.run(_TASK, box, endpoint), ""
        except TimeoutError:
            return None, f"it did not return within {_PATIENCE:.0f} s"
        except Exception as error:  # whatever it is: the suite reports, and goes on
            return None, f"it raised {type(error).__name__}: {error}"


async def _open(agent: Agent, backend: SandboxBackend) -> Sandbox:
    box = await backend.open(agent.furnish(_SPEC) if isinstance(agent, Furnishing) else _SPEC)
    await box.write(f"{_SPEC.workdir}/mod.py", b"def f(x):\n    return x + 1\n")
    return box
