"""Trajectory -> samples: one pure function, no torch. Sits between the recorded turns and the trainer.

Turns form a forest: a turn extends its parent, or starts a chain. Each leaf of the forest becomes one row,
made of the ids exactly as the engine saw them. A turn that lies on several rows trains in the first one only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from patchwright.errors import InfraError
from patchwright.types import Sample, Trajectory, Turn

__all__ = ["samples"]


def samples(
    trajectory: Trajectory,
    *,
    advantage: float | Mapping[int, float] = 0.0,
    context_weight: float = 0.0,
    oldest: int = 0,
) -> list[Sample]:
    """The training rows of an attempt; empty when infrastructure failed it or it sampled nothing to train.

    `advantage` goes to every sampled token; a mapping gives each turn its own by the turn's id, 0 where it
    has none. Sampled tokens have weight 1 (0 in turns marked `train=False`), all other tokens
    `context_weight` (supervised training copies observations better with about 0.3).
    Tokens sampled by weights older than version `oldest` have advantage 0; they keep their weight, so that
    the others of the attempt count no more for it.
    Leaves that train nothing (side calls, empty completions) make no row.
    Raises InfraError when the recorded turns do not fit together.
    """
    if trajectory.failure is not None:
        return []
    rows: list[Sample] = []
    claimed: set[int] = set()
    for leaf in _leaves(trajectory):
        chain = _chain(trajectory.turns, leaf)
        rows.append(_row(trajectory.id, chain, claimed, advantage, context_weight, oldest))
        claimed.update(turn.id for turn in chain)
    return rows


def _leaves(trajectory: Trajectory) -> list[Turn]:
    """Turns that train something and have no descendant that does, oldest first."""
    extended: set[int | None] = set()
    leaves: list[Turn] = []
    for index, turn in reversed(list(enumerate(trajectory.turns))):
        _check(trajectory, index, turn)
        trains = turn.train and len(turn.completion_ids) > 0
        if trains and turn.id not in extended:
            leaves.append(turn)
        if trains or turn.id in extended:
            extended.add(turn.parent)
    return leaves[::-1]


def _check(trajectory: Trajectory, index: int, turn: Turn) -> None:
    parent_ok = turn.parent is None or 0 <= turn.parent < index
    if turn.id != index or not parent_ok or len(turn.logprobs) != len(turn.completion_ids):
        raise InfraError(
            f"turn {index} of trajectory {trajectory.id!r} is damaged (id {turn.id}, parent {turn.parent}, "
            f"{len(turn.completion_ids)} ids, {len(turn.logprobs)} log-probs); leave the trajectory out"
        )


def _chain(turns: Sequence[Turn], leaf: Turn) -> list[Turn]:
    """From the root to `leaf`."""
    chain = [leaf]
    while (parent := chain[-1].parent) is not None:
        chain.append(turns[parent])
    return chain[::-1]


def _row(
    name: str,
    chain: Sequence[Turn],
    claimed: AbstractSet[int],
    advantage: float | Mapping[int, float],
    context_weight: float,
    oldest: int,
) -> Sample:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    advantages: list[float] = []
    weights: list[float] = []
    for turn in chain:
        prompt, sampled = len(turn.prompt_ids), len(turn.completion_ids)
        fresh = turn.id not in claimed
        ids += (*turn.prompt_ids, *turn.completion_ids)
        mask += [0] * prompt + [1] * sampled
        logprobs += [0.0] * prompt + list(turn.logprobs)
        own = advantage.get(turn.id, 0.0) if isinstance(advantage, Mapping) else advantage
        versions = turn.versions or (turn.version,) * sampled
        advantages += [0.0] * prompt + [own if version >= oldest else 0.0 for version in versions]
        weights += [context_weight * fresh] * prompt + [float(fresh and turn.train)] * sampled
    weights[0] = 0.0  # nothing comes before the first token, so nothing predicts it
    return Sample(
        trajectory_id=name,
        token_ids=tuple(ids),
        mask=tuple(mask),
        logprobs=tuple(logprobs),
        advantages=tuple(advantages),
        weights=tuple(weights),
    )
