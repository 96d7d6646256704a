"""The harnesses by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from patchwright.agent.command import CommandConfig, Program, generic
from patchwright.agent.harness import codex, mini_swe_agent, opencode, openhands, qwen_code
from patchwright.agent.kit import Plan
from patchwright.config import nearest
from patchwright.errors import ConfigError

__all__ = ["PLANS", "find_plan", "program_of"]

_MODULES = (mini_swe_agent, qwen_code, openhands, codex, opencode)
PLANS: Mapping[str, Plan] = {module.PLAN.name: module.PLAN for module in _MODULES}
"""Name -> what its kit is made of."""
_PROGRAMS: Mapping[str, Callable[[CommandConfig], Program]] = {
    module.PLAN.name: module.program for module in _MODULES
}
_OUTSIDE = ("command", "mini-swe-agent")
_SYSTEM = ("mini-swe-agent", "qwen-code")


def find_plan(name: str) -> Plan:
    """Raises ConfigError, with the nearest name, when there is none."""
    if name not in PLANS:
        close = nearest(name, tuple(PLANS))
        hint = f"did you mean {close!r}?" if close else f"there are {', '.join(PLANS)}"
        raise ConfigError(f"no agent {name!r} can be installed; {hint}")
    return PLANS[name]


def program_of(name: str, config: CommandConfig) -> Program:
    """The program of `command` or of a harness. Raises ConfigError when it cannot be as the config wants."""
    if config.outside and name not in _OUTSIDE:
        raise ConfigError(f"{name!r} works in the box only; leave `harness.outside` out")
    if config.system and name not in _SYSTEM:
        raise ConfigError(f"{name!r} takes no system prompt; leave `harness.system` out")
    if name == "command":
        return generic(config, find_plan(config.kit) if config.kit else None)
    if config.command or config.kit:
        raise ConfigError(f'`harness.command` and `harness.kit` are for `use = "command"`, not for {name!r}')
    return _PROGRAMS[name](config)
