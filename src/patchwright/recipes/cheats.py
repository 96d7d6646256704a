"""What an integrity finding costs: the share of flagged attempts, and what a flagged one may still earn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from patchwright.types import Outcome, Trajectory

__all__ = ["OnCheat", "attempted_cheats", "cheat_rate", "earned"]

OnCheat = Literal["unresolved", "keep"]
"""`unresolved`: a flagged attempt counts as unresolved. `keep`: as its tests say."""


def cheat_rate(findings: Iterable[Sequence[str]]) -> float:
    """Share of graded attempts with a finding; 0.0 when none was graded.

    Example: `cheat_rate([(), ("protected: conftest.py",)]) == 0.5`
    """
    flagged = [bool(found) for found in findings]
    return sum(flagged) / max(1, len(flagged))


def attempted_cheats(trajectories: Iterable[Trajectory]) -> float:
    """The `cheat_rate` of attempts; void ones were not graded."""
    return cheat_rate(t.grade.findings for t in trajectories if t.grade is not None and t.failure is None)


def earned(trajectory: Trajectory, on_cheat: OnCheat) -> Outcome:
    """The outcome that is rewarded and trained on."""
    flagged = trajectory.grade is not None and bool(trajectory.grade.findings)
    if flagged and on_cheat == "unresolved" and trajectory.outcome is Outcome.RESOLVED:
        return Outcome.UNRESOLVED
    return trajectory.outcome
