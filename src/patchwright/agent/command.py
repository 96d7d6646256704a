"""Any program as an agent: a command that is told the task and the model's address, and does the rest.

It runs in the task's box, from a read-only kit, and reaches the model over a port of the box; or on this
machine, and reaches the box over a socket (`box_socket.py`). `harness/` describes the programs that come
with Patchwright.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import Field

from patchwright.agent.box_socket import served_box
from patchwright.agent.inside import inside
from patchwright.agent.kit import KIT, PYTHON, Plan, find_kit, hold
from patchwright.config import Config
from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox.base import BoxSpec, Resident, Sandbox
from patchwright.sandbox.process import ProcessBackend
from patchwright.types import AgentExit, Endpoint, Exec, Limits, Step, Task

__all__ = ["FOLDER", "CommandAgent", "CommandConfig", "Program", "generic"]

FOLDER = ".agent"
"""Folder in the home of the program, for the task's text and what the program leaves to be kept."""
_CANNOT_START = (126, 127)
"""What bash says of a program that it cannot start."""
_MOST_KEPT = 16 * 2**20
"""Bytes of one file that is kept."""
_LEAST = Limits(memory_mb=4096, processes=512, disk_mb=2048)
"""What a box has at least when a program of somebody else's works in it."""


class CommandConfig(Config):
    """A program that works as an agent. Its command line finds, as variables: `TASK_FILE` (the task's text),
    `OUT` (a folder), `WORKDIR`, `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `OPENAI_MODEL`, `ANTHROPIC_BASE_URL`,
    `ANTHROPIC_API_KEY`, `MAX_TURNS`, `EXEC_SECONDS`, `ATTEMPT_SECONDS`, `KIT`, and outside `BOX_SOCKET`."""

    command: str = ""
    """What bash runs, for `use = "command"`; the others have their own."""
    outside: bool = False
    """Run it on this machine instead of in the box: the box is reached over the socket `BOX_SOCKET`."""
    kit: str = ""
    """For `use = "command"`: the installed agent whose kit is shown at `KIT`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further variables."""
    keep: list[str] = Field(default_factory=list)
    """Files that are kept as artefacts, relative to the program's home (`.agent` is `OUT`)."""
    max_sampled: int | None = Field(default=None, ge=1)
    """Tokens an attempt may sample, all replies together; recorded sessions only."""
    resident: bool = True
    """Namespace boxes only: load `openhands` and `mini-swe-agent` once, with the rights of what makes boxes,
    and fork them in each. False: load them in the box, which takes seconds for every attempt."""
    system: str = ""
    """System prompt in place of the program's own; `mini-swe-agent` and `qwen-code` take one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """How one program is driven.

    Example: `Program(name="qwen-code", plan=PLAN, command="node $KIT/qwen/cli.js ...")`
    """

    name: str
    command: str
    """What bash runs in the working directory, with the variables of `CommandConfig`."""
    plan: Plan | None = None
    """The kit it is in; None when it needs none."""
    resident: str = ""
    """The kit's Python file that `command` runs, if it takes long to load: boxes that can, hold it loaded."""
    outside: bool = False
    files: Callable[[Endpoint], Mapping[str, str]] = lambda _: {}
    """Its settings: path below its home -> text."""
    env: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    """Files it leaves, relative to its home, that are kept."""
    statuses: Mapping[int, str] = field(default_factory=dict)
    """Exit status -> `AgentExit.reason`, where it is neither 0 (`submitted`) nor `exit_STATUS`."""


def generic(config: CommandConfig, plan: Plan | None) -> Program:
    """The program of a user's own command. Raises ConfigError when there is none."""
    if not config.command.strip():
        raise ConfigError('`harness.command` is empty; give the command line that `use = "command"` runs')
    return Program(name="command", command=config.command, plan=plan)


class CommandAgent:
    """Runs a `Program` on every task; its boxes see the kit (`Furnishing`), its session is `Bounded`.

    Example: `CommandAgent(generic(CommandConfig(command="my-agent \\"$(cat $TASK_FILE)\\""), None))`
    """

    def __init__(
        self,
        program: Program,
        config: CommandConfig | None = None,
        *,
        max_turns: int = 30,
        exec_seconds: float | None = None,
    ) -> None:
        """Bounds are told to the program, and hold as far as it minds them: the session's bounds hold always.
        Raises ConfigError when its kit is not installed."""
        config = config or CommandConfig()
        own = {**program.env, **config.env}
        self.program = replace(program, env=own, keep=(*program.keep, *config.keep))
        self.max_calls: int | None = max_turns
        self.max_sampled = config.max_sampled
        self._exec_seconds = exec_seconds
        self._resident = config.resident
        self._kit = find_kit(program.plan) if program.plan else None
        self._hold = hold(self._kit) if self._kit else None
        self._here = ProcessBackend() if program.outside else None

    def furnish(self, spec: BoxSpec) -> BoxSpec:
        """A box in which the program can work: it sees the kit, and there is room."""
        if self.program.outside:
            return spec
        mounts = {**spec.mounts, **({KIT: str(self._kit)} if self._kit else {})}
        limits = {name: max(getattr(spec.limits, name), getattr(_LEAST, name)) for name in _BOUNDS}
        wide = replace(spec, mounts=mounts, limits=replace(spec.limits, **limits))
        if not (self.program.resident and self._resident):
            return wide
        files = {"python": f"{KIT}/{PYTHON}", "program": f"{KIT}/{self.program.resident}"}
        return replace(wide, resident=Resident(command=self.program.command, **files))

    async def run(self, task: Task, box: Sandbox, model: Endpoint) -> AgentExit:
        """Run the program until it ends or `attempt_seconds` are over, then kill what is left of it.

        Raises SandboxError when it cannot be started, ConfigError when boxes of this kind cannot serve it.
        """
        ends = time.monotonic() + task.limits.attempt_seconds
        async with self._place(box, model) as place:
            home = await self._lay_out(task, place)
            env = self._variables(task, place, home)
            left = max(0.1, ends - time.monotonic())
            done = await place.box.exec(self.program.command, timeout=left, env=env)
            if done.code in _CANNOT_START and not done.timed_out:
                said = done.output[-300:].strip()
                raise SandboxError(f"{self.program.name} cannot start in this box: {said}")
            return AgentExit(
                reason=self._reason(done),
                steps=(Step(command=self.program.name, exec=done),),
                detail="" if done.code == 0 else done.output[-300:].strip(),
                files=await self._kept(place.box, home),
            )

    async def close(self) -> None:
        """End what runs on this machine, and let go of the kit. Closing twice is allowed."""
        if self._hold is not None:
            self._hold.release()
        if self._here is not None:
            await self._here.close()

    @asynccontextmanager
    async def _place(self, box: Sandbox, model: Endpoint) -> AsyncIterator[_Place]:
        """Where the program runs."""
        if self._here is None:
            yield _Place(box, await inside(box, model), KIT, {})
            return
        here = await self._here.open(BoxSpec())
        try:
            async with served_box(box) as socket:
                yield _Place(here, model, str(self._kit or ""), {"BOX_SOCKET": socket})
        finally:
            await here.close()

    async def _lay_out(self, task: Task, place: _Place) -> str:
        """Write the task and the settings; the program's home."""
        made = await place.box.exec(f'mkdir -p "$HOME/{FOLDER}" && printf %s "$HOME"')
        if made.code:
            raise SandboxError(f"the box's home cannot be written: {made.output[-300:]}")
        texts = {f"{FOLDER}/task.md": task.prompt, **self.program.files(place.model)}
        for path, text in texts.items():
            await place.box.write(f"{made.output}/{path}", text.encode("utf-8", "replace"))
        return made.output

    def _variables(self, task: Task, place: _Place, home: str) -> dict[str, str]:
        model = place.model
        return {
            "TASK_FILE": f"{home}/{FOLDER}/task.md",
            "OUT": f"{home}/{FOLDER}",
            "WORKDIR": task.workdir,
            "KIT": place.kit,
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": model.api_key,
            "OPENAI_MODEL": model.model,
            "ANTHROPIC_BASE_URL": model.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": model.api_key,
            "MAX_TURNS": str(self.max_calls),
            "EXEC_SECONDS": f"{self._exec_seconds or task.limits.exec_seconds:g}",
            "ATTEMPT_SECONDS": f"{task.limits.attempt_seconds:g}",
            **place.env,
            **self.program.env,
        }

    def _reason(self, done: Exec) -> str:
        if done.timed_out:
            return "time_limit"
        return self.program.statuses.get(done.code, "submitted" if done.code == 0 else f"exit_{done.code}")

    async def _kept(self, box: Sandbox, home: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for path in self.program.keep:
            with contextlib.suppress(OSError):  # it left none
                found[Path(path).name] = (await box.read(f"{home}/{path}"))[:_MOST_KEPT]
        return found


_BOUNDS = ("memory_mb", "processes", "disk_mb")


@dataclass(frozen=True, slots=True)
class _Place:
    """The box a program runs in (for one outside, a folder of this machine), and what it finds there."""

    box: Sandbox
    model: Endpoint
    kit: str
    env: Mapping[str, str]
