"""Rewards of a group -> advantages: small pure functions, found by name, no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from patchwright.config import pick

__all__ = ["ADVANTAGES", "group_advantages", "grpo", "mean"]

EPSILON = 1e-4
"""Added to the deviation, so that rewards a hair apart do not become huge advantages."""


def grpo(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / (std + 1e-4), GRPO (arXiv 2402.03300), with the sample deviation (ddof=1)."""
    centred = mean(rewards)
    if len(rewards) < 2:
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred) / (len(centred) - 1))
    return [value / (deviation + EPSILON) for value in centred]


def mean(rewards: Sequence[float]) -> list[float]:
    """r - mean, Dr. GRPO (arXiv 2503.20783): easy and hard groups keep their smaller spread."""
    if len(set(rewards)) < 2:  # exactly 0, whatever the rounding of the mean
        return [0.0] * len(rewards)
    centre = math.fsum(rewards) / len(rewards)
    return [reward - centre for reward in rewards]


ADVANTAGES: Mapping[str, Callable[[Sequence[float]], list[float]]] = {"grpo": grpo, "mean": mean}
"""Advantage functions by name; they see the rewards of the group's valid attempts only."""


def group_advantages(rewards: Sequence[float | None], *, kind: str = "grpo") -> list[float | None]:
    """Advantages of one group of attempts; None is a void attempt: no part of any mean, no advantage.

    A group whose valid rewards are all equal gets zeros. Raises ConfigError for an unknown `kind`.
    """
    function = pick(kind, ADVANTAGES, key="advantage")
    valid = iter(function([reward for reward in rewards if reward is not None]))
    return [None if reward is None else next(valid) for reward in rewards]
