"""OpenHands' software agent SDK, inside the box: terminal and file editor, no condenser.

It drops the thinking of earlier replies and re-serialises arguments; the record keeps what was sampled.
Its packages need Python 3.12 or later.
"""

from __future__ import annotations

from patchwright.agent.command import FOLDER, CommandConfig, Program
from patchwright.agent.harness.parts import DRIVE, LAUNCHER, driver, wheels
from patchwright.agent.kit import Plan

__all__ = ["PLAN", "program"]

PLAN = Plan(
    name="openhands",
    pythons=("3.12", "3.13"),
    wheels=wheels("openhands"),
    files=LAUNCHER,
    programs=tuple(LAUNCHER),
)


def program(config: CommandConfig) -> Program:
    """How it is driven."""
    return Program(
        name=PLAN.name,
        plan=PLAN,
        command=DRIVE,
        files=lambda _: driver("openhands"),
        keep=(f"{FOLDER}/events.jsonl",),
        statuses={53: "max_turns"},
    )
