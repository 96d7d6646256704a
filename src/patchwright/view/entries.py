"""What lists know of an attempt, and its outcome as the pages tell it: one of the three, or `ungraded`.

An attempt in which nothing failed and which nobody graded is no fault of the infrastructure: it is told apart
from void ones, and is part of no rate either.
"""

from __future__ import annotations

from dataclasses import dataclass

from patchwright.store import Entry
from patchwright.types import Outcome, Trajectory

__all__ = ["OUTCOMES", "RECORDED", "UNGRADED", "AnyEntry", "FileEntry", "listed", "outcome_of"]

UNGRADED = "ungraded"
OUTCOMES = (*(outcome.value for outcome in Outcome), UNGRADED)
RECORDED = "recorded"
"""Stage of the sessions that `patchwright gateway serve` recorded (`recipes/serve.py`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """As `Entry`, of an attempt in a file.

    Example: `FileEntry(id="a-0", task_id="a", group="a", outcome="ungraded", seconds=0.0)`
    """

    id: str
    task_id: str
    group: str
    outcome: str
    seconds: float
    stage: str = "file"
    step: int = 0
    version: int = 0


AnyEntry = Entry | FileEntry


def outcome_of(trajectory: Trajectory) -> str:
    """The outcome of an attempt that was read."""
    if trajectory.failure is None and trajectory.grade is None:
        return UNGRADED
    return trajectory.outcome.value


def listed(stage: str, outcome: str) -> str:
    """The outcome of an entry: the index of a run has void for what was recorded and never graded."""
    return UNGRADED if stage == RECORDED and outcome == Outcome.VOID else str(outcome)
