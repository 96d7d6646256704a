"""OpenHands' software agent SDK, inside the box: terminal and file editor, no condenser.

It drops the thinking of earlier replies and re-serialises arguments; the record keeps what was sampled.
Its packages need Python 3.12 or later.
"""

from __future__ import annotations

from patchwright.agent.command import FOLDER, CommandConfig, Program
from patchwright.agent.harness.parts import DRIVE, DRIVER, python_kit

__all__ = ["PLAN", "program"]

PLAN = python_kit("openhands", ("3.12", "3.13"))


def program(config: CommandConfig) -> Program:
    """How it is driven."""
    return Program(
        name=PLAN.name,
        plan=PLAN,
        command=DRIVE,
        resident=DRIVER,
        keep=(f"{FOLDER}/events.jsonl",),
        statuses={53: "max_turns"},
    )
