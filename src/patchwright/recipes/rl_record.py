"""What a step of reinforcement learning was made of, in figures for `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patchwright.types import Outcome, Trajectory, Turn

__all__ = ["Figures", "Staleness", "note", "staleness", "versions"]

Figures = dict[str, float | int | None]
"""What `metrics.jsonl` is told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staleness:
    """How many versions older than the weights they are trained into tokens are, over all that count.

    Example: `Staleness(mean=0.4, most=1, too_old=0.0)`
    """

    mean: float
    most: int
    """Of those that train: tokens beyond `max_staleness` do not."""
    too_old: float
    """Share of the tokens that are beyond it."""


def versions(turn: Turn) -> Sequence[int]:
    """Version of the weights that sampled each token of a turn."""
    return turn.versions or (turn.version,) * len(turn.completion_ids)


def staleness(rollouts: Sequence[Trajectory], version: int, oldest: int) -> Staleness:
    """Of the tokens a step that updates `version` is given; those under `oldest` train nothing."""
    turns = [t for r in rollouts if r.outcome is not Outcome.VOID for t in r.turns if t.train]
    sampled = [number for turn in turns for number in versions(turn)]
    ages = [version - number for number in sampled if number >= oldest]
    return Staleness(
        mean=sum(ages) / max(1, len(ages)),
        most=max(ages, default=0),
        too_old=1 - len(ages) / max(1, len(sampled)),
    )


def note(record: Mapping[str, float | int | None]) -> str:
    """One line on a step, for who watches."""
    flagged = f", flagged {record['cheat_rate']:.2f}" if record["cheat_rate"] else ""
    failed = f", votes failed {record['votes_failed']}" if record.get("votes_failed") else ""
    stale = f", stale {record['staleness_mean']:.1f}" if record["staleness_mean"] else ""
    return f"resolved {record['resolve_rate']:.2f}, void {record['void']}{flagged}{failed}{stale}"
