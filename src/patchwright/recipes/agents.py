"""Agents by name: which program works on the tasks, and how it is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from patchwright.agent.base import Agent
from patchwright.agent.bash import BashAgent, BashConfig
from patchwright.agent.command import CommandAgent, CommandConfig
from patchwright.agent.harness.names import PLANS, program_of
from patchwright.agent.kit import Plan, find_kit
from patchwright.config import pick
from patchwright.errors import ConfigError

__all__ = ["AGENTS", "AgentConfig", "Listed", "listing", "open_agent", "refuse_absent"]


class AgentConfig(BashConfig):
    """Who works on the tasks."""

    use: str = "bash"
    """`bash` (one block a reply), `tools` (the same with tool calls), `command` (any program), one of
    `patchwright agents list`, or `module:Class`, called with this table."""
    harness: CommandConfig = CommandConfig()
    """For `command` and the agents of `patchwright agents list`."""


def _command(config: AgentConfig) -> CommandAgent:
    """A program as an agent. Raises ConfigError."""
    program = program_of(config.use, config.harness)
    return CommandAgent(program, config.harness, max_turns=config.max_turns, exec_seconds=config.exec_timeout)


AGENTS: Mapping[str, Callable[[AgentConfig], Agent] | str] = {
    "bash": BashAgent,
    "tools": lambda config: BashAgent(config.model_copy(update={"tools": True})),
    "command": _command,
    **dict.fromkeys(PLANS, _command),
}
"""What `use` may name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """An agent of `patchwright agents list`. Example: `Listed(name="codex", version="0.169.0", state="")`"""

    name: str
    version: str
    state: str


def listing() -> list[Listed]:
    """The agents that come with Patchwright, and whether they can be used at once."""
    found = [Listed(name=name, version="", state="built in") for name in ("bash", "tools", "command")]
    kits = PLANS.values()
    return found + [Listed(name=plan.name, version=_version(plan), state=_state(plan)) for plan in kits]


def _version(plan: Plan) -> str:
    """Of the package that gives the kit its name, or begins with that."""
    npm = [package.version.partition("-linux")[0] for package in plan.npm[-1:]]
    wheels = [wheel.partition("==")[2] for wheel in plan.wheels if wheel.startswith(plan.name)]
    return [*npm, *wheels][0]


def _state(plan: Plan) -> str:
    try:
        return f"installed in {find_kit(plan)}"
    except ConfigError as error:
        return str(error)


def refuse_absent(config: AgentConfig) -> None:
    """Raises ConfigError when `open_agent` would: no such agent, one that cannot be as told, or whose kit is
    not installed. Opens nothing."""
    if pick(config.use, AGENTS, key="line.agent.use") is _command:
        plan = program_of(config.use, config.harness).plan
        if plan is not None:
            find_kit(plan)


@asynccontextmanager
async def open_agent(config: AgentConfig) -> AsyncIterator[Agent]:
    """The agent of a configuration, closed at the end where it can be. Raises ConfigError."""
    make: Callable[[AgentConfig], Agent] = pick(config.use, AGENTS, key="line.agent.use")
    agent = make(config)
    try:
        yield agent
    finally:
        close = getattr(agent, "close", None)
        if close is not None:
            await close()
