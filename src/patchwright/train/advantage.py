"""Rewards -> advantages: small pure functions, found by name, no torch.

None is a void attempt everywhere: part of no mean, no deviation and no count, and without an advantage.
Rewards that are all equal, where they are compared, give advantages of exactly 0.

`docs/algorithms.md` has the formulas side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from patchwright.config import pick

__all__ = ["ADVANTAGES", "STEP", "advantages", "informative", "step_advantages", "step_rewards"]

EPSILON = 1e-4
"""Added to a deviation, so that rewards a hair apart do not become huge advantages."""

STEP = "step"
"""The estimator that gives every turn its own advantage (`step_advantages`)."""

Groups = Sequence[Sequence[float]]
"""The valid rewards of a round, group by group."""


# --- one advantage per attempt ----------------------------------------------------------------


def mean(rewards: Sequence[float]) -> list[float]:
    """r - mean, Dr. GRPO (arXiv 2503.20783): easy and hard groups keep their smaller spread."""
    if len(set(rewards)) < 2:  # exactly 0, whatever the rounding of the mean
        return [0.0] * len(rewards)
    centre = math.fsum(rewards) / len(rewards)
    return [reward - centre for reward in rewards]


def std(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / (std + 1e-4), GRPO (arXiv 2402.03300), with the sample deviation (ddof=1)."""
    return _over_deviation(mean(rewards))


def rloo(rewards: Sequence[float]) -> list[float]:
    """r - mean of the others, RLOO (arXiv 2402.14740): a baseline the attempt itself has no part in.

    Equal to n / (n - 1) times `mean`; an attempt alone in its group has no others, and 0.
    """
    count = len(rewards)
    return [value * count / (count - 1) for value in mean(rewards)] if count > 1 else mean(rewards)


def batch(groups: Groups) -> list[list[float]]:
    """(r - mean of the round) / (std of the round + 1e-4), REINFORCE++ (arXiv 2501.03262).

    The baseline is the round's: a group of equal rewards that differ from it does carry a gradient.
    """
    return _regrouped(std([reward for group in groups for reward in group]), groups)


def batch_baseline(groups: Groups) -> list[list[float]]:
    """(r - mean of the group) / (std of those differences over the round + 1e-4), REINFORCE++ with baseline
    (arXiv 2501.03262). The differences add up to 0 in every group, so their mean is 0."""
    centred = [value for group in groups for value in mean(group)]
    return _regrouped(_over_deviation(centred), groups)


def _over_deviation(centred: Sequence[float]) -> list[float]:
    if len(centred) < 2:
        return list(centred)
    deviation = math.sqrt(math.fsum(value * value for value in centred) / (len(centred) - 1))
    return [value / (deviation + EPSILON) for value in centred]


def _regrouped(flat: Iterable[float], groups: Groups) -> list[list[float]]:
    values = iter(flat)
    return [[next(values) for _ in group] for group in groups]


def _each(function: Callable[[Sequence[float]], list[float]]) -> Callable[[Groups], list[list[float]]]:
    """What a function of one group makes of a round."""
    return lambda groups: [function(group) for group in groups]


ADVANTAGES: Mapping[str, Callable[[Groups], list[list[float]]]] = {
    "std": _each(std),
    "mean": _each(mean),
    "rloo": _each(rloo),
    "batch": batch,
    "batch_baseline": batch_baseline,
}
"""Advantage functions by name; they see the valid rewards of all groups of a round."""


def advantages(groups: Sequence[Sequence[float | None]], *, kind: str = "std") -> list[list[float | None]]:
    """Advantages of a round's attempts, group by group.

    `kind` is a name of `ADVANTAGES`, or `module:function` for one's own. Raises ConfigError for another.

    Example: `advantages([[1.0, None, -1.0], [1.0, 1.0]], kind="mean") == [[1.0, None, -1.0], [0.0, 0.0]]`
    """
    function = pick(kind, ADVANTAGES, key="advantage")
    valid = function([[reward for reward in group if reward is not None] for group in groups])
    return [_with_void(group, values) for group, values in zip(groups, valid, strict=True)]


def _with_void(group: Sequence[float | None], valid: Sequence[float]) -> list[float | None]:
    values = iter(valid)
    return [None if reward is None else next(values) for reward in group]


def informative(outcomes: Sequence[float | None]) -> bool:
    """Whether a group's valid outcomes differ: the filter of DAPO's dynamic sampling (arXiv 2503.14476)."""
    return len({outcome for outcome in outcomes if outcome is not None}) > 1


# --- one advantage per turn -------------------------------------------------------------------


def step_rewards(
    outcomes: Sequence[float | None],
    turns: Sequence[Sequence[int]],
    scores: Sequence[Mapping[int, float]],
    *,
    coef: float = 1.0,
) -> list[list[float] | None]:
    """Reward of every step: the attempt's outcome + coef * the score of its turn.

    One entry per attempt of a group: its outcome, the ids of its turns that train, in order, and the scores
    that were given, by turn id. A turn that nobody scored (the judge failed) counts with the mean score of
    the group's turns at its place, 0 where none has one: it gains and loses nothing by it.
    """
    usual = _mean_scores(
        [ids for ids, o in zip(turns, outcomes, strict=True) if o is not None],
        [given for given, o in zip(scores, outcomes, strict=True) if o is not None],
    )
    rewards: list[list[float] | None] = []
    for outcome, ids, given in zip(outcomes, turns, scores, strict=True):
        if outcome is None:
            rewards.append(None)
        else:
            rewards.append([outcome + coef * given.get(i, usual.get(k, 0.0)) for k, i in enumerate(ids)])
    return rewards


def _mean_scores(turns: Sequence[Sequence[int]], scores: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Mean of the scores given at each place."""
    places: dict[int, list[float]] = {}
    for ids, given in zip(turns, scores, strict=True):
        for place, turn in enumerate(ids):
            if turn in given:
                places.setdefault(place, []).append(given[turn])
    return {place: math.fsum(found) / len(found) for place, found in places.items()}


def step_advantages(group: Sequence[Sequence[float] | None]) -> list[list[float] | None]:
    """z-score of each step's reward among the group's steps of the same index: (r - mean) / (std + 1e-4),
    with the population's deviation (ddof=0), as OpenClaw-RL's step-wise estimator.

    A step that only one attempt reached has nothing to be compared with: 0, and not its raw reward.
    """
    longest = max((len(rewards) for rewards in group if rewards is not None), default=0)
    columns = [_zscores([r[k] for r in group if r is not None and len(r) > k]) for k in range(longest)]
    values = [iter(column) for column in columns]
    return [None if rewards is None else [next(values[k]) for k in range(len(rewards))] for rewards in group]


def _zscores(rewards: Sequence[float]) -> list[float]:
    centred = mean(rewards)
    deviation = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return [value / (deviation + EPSILON) for value in centred]
