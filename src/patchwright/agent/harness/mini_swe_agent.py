"""mini-swe-agent: one tool, `bash`; the history it sends only grows. Inside the box, or outside of it.

It drops a reply that it cannot read and says so to the model: the record names that `dropped_turn`.
"""

from __future__ import annotations

from patchwright.agent.command import FOLDER, CommandConfig, Program
from patchwright.agent.harness.parts import DRIVE, DRIVER, python_kit

__all__ = ["PLAN", "program"]

PLAN = python_kit("mini-swe-agent", ("", "3.12", "3.13", "3.11"))


def program(config: CommandConfig) -> Program:
    """How it is driven."""
    env = {"SYSTEM_PROMPT": config.system} if config.system else {}
    return Program(
        name=PLAN.name,
        plan=PLAN,
        command=DRIVE,
        resident=DRIVER,
        outside=config.outside,
        env=env,
        keep=(f"{FOLDER}/trajectory.json",),
        statuses={53: "max_turns", 54: "format_errors", 55: "time_limit"},
    )
