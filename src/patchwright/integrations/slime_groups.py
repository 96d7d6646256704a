"""Rewards and advantages of slime's samples, group by group and attempt by attempt. Pure.

slime's own normalisation reshapes a flat list of rewards, which mixes groups as soon as attempts are several
samples each. Here a group is what shares a `group_index`, an attempt what shares a `rollout_id`; an attempt
counts once, and a void one not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from patchwright.config import nearest
from patchwright.errors import ConfigError
from patchwright.integrations.slime_args import Args, settings
from patchwright.integrations.slime_rows import SlimeSample, attempt_of, is_void, turn_of
from patchwright.recipes.cheats import earned
from patchwright.recipes.policy import Rewards, rewards, turn_scores
from patchwright.recipes.rl import RlConfig
from patchwright.train.advantage import STEP, advantages, informative, step_advantages, step_rewards
from patchwright.types import Outcome, Trajectory

__all__ = ["normalised", "reward_of", "uninformative", "void_reward"]

_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""slime's estimators that take rewards relative to their group; the others take them as they are."""


@dataclass
class _Attempt:
    """The samples of one attempt, and their places in what slime handed over."""

    places: list[int] = field(default_factory=list)
    samples: list[SlimeSample] = field(default_factory=list)

    @property
    def void(self) -> bool:
        return any(is_void(sample) for sample in self.samples)


# --- one attempt ------------------------------------------------------------------------------


def reward_of(args: Args, sample: SlimeSample) -> float | dict[str, float]:
    """The reward of a sample's attempt by itself.

    A number, or, where `--reward-key` or `--eval-reward-key` is given, a table of `score` (the reward) and
    `resolved` (1 or 0). Raises ConfigError for another key."""
    attempt = attempt_of(sample)
    if attempt is None:
        raise ConfigError(
            "a sample that `patchwright.integrations.slime.generate` did not make has no verdict"
        )
    rl = settings(args).rl
    found = _alone(attempt, rl)
    resolved = float(earned(attempt, rl.on_cheat) is Outcome.RESOLVED)
    return _shaped(args, {"score": found or 0.0, "resolved": resolved})


def void_reward(args: Args) -> float | dict[str, float]:
    """A number where slime's metrics want one; it is in no statistics of a group."""
    return _shaped(args, {"score": 0.0, "resolved": 0.0})


def _shaped(args: Args, table: dict[str, float]) -> float | dict[str, float]:
    keys = [key for name in ("reward_key", "eval_reward_key") if (key := getattr(args, name, None))]
    for key in keys:
        if key not in table:
            hint = nearest(key, list(table)) or "score"
            raise ConfigError(f"a reward has no {key!r}: it has score and resolved; did you mean {hint!r}?")
    return table if keys else table["score"]


def _worth(rl: RlConfig) -> Rewards:
    return {Outcome.RESOLVED: rl.reward_resolved, Outcome.UNRESOLVED: rl.reward_unresolved}


def _alone(attempt: Trajectory, rl: RlConfig) -> float | None:
    return rewards([attempt], _worth(rl), rl.algorithm.algorithm(), rl.on_cheat)[0]


def _value(args: Args, sample: SlimeSample) -> float:
    """The number among a sample's rewards that is trained on."""
    key, reward = getattr(args, "reward_key", None), sample.reward
    found = reward.get(str(key)) if isinstance(reward, Mapping) else reward
    if not isinstance(found, int | float):
        raise ConfigError(f"sample {sample.index} has no reward; is its reward function another's?")
    return float(found)


# --- a group ----------------------------------------------------------------------------------


def _groups(samples: Sequence[SlimeSample]) -> list[list[_Attempt]]:
    """Attempts by `rollout_id`, in groups by `group_index`; a sample without an id is its own attempt."""
    found: dict[Any, dict[Any, _Attempt]] = {}
    for place, sample in enumerate(samples):
        key = ("", place) if sample.rollout_id is None else sample.rollout_id
        attempt = found.setdefault(sample.group_index, {}).setdefault(key, _Attempt())
        attempt.places.append(place)
        attempt.samples.append(sample)
    return [list(group.values()) for group in found.values()]


def _totals(args: Args, group: Sequence[_Attempt]) -> list[float | None]:
    """Reward of each attempt: its sample's, and what only the group can tell (a length reward, the mean of
    the others for a score nobody gave)."""
    given = [None if one.void else _value(args, one.samples[0]) for one in group]
    known = [t for one in group if (t := attempt_of(one.samples[0])) is not None]
    if len(known) < len(group):
        return given
    rl = settings(args).rl
    together = rewards(known, _worth(rl), rl.algorithm.algorithm(), rl.on_cheat)
    return [
        None if value is None or whole is None else value + whole - (_alone(attempt, rl) or 0.0)
        for value, whole, attempt in zip(given, together, known, strict=True)
    ]


def _by_step(
    totals: Sequence[float | None], group: Sequence[_Attempt], coef: float
) -> list[Mapping[int, float] | None]:
    """Each attempt's advantages by turn. Raises ConfigError for samples of others, which have no turns."""
    attempts = [attempt_of(one.samples[0]) for one in group]
    known = [attempt for attempt in attempts if attempt is not None]
    if len(known) < len(attempts):
        raise ConfigError(
            "step-wise advantages need the samples of `patchwright.integrations.slime.generate`"
        )
    turns = [[turn.id for turn in attempt.turns if turn.train] for attempt in known]
    made = step_rewards(totals, turns, [turn_scores(attempt) for attempt in known], coef=coef)
    return [
        None if row is None else dict(zip(ids, row, strict=True))
        for ids, row in zip(turns, step_advantages(made), strict=True)
    ]


def _kind(args: Args) -> str:
    """How rewards become advantages: Patchwright's file, where it says so, else slime's flags; empty for not
    at all."""
    config = settings(args).rl.algorithm
    if config.advantage is not None or config.name != "grpo":
        return config.algorithm().advantage
    estimator = getattr(args, "advantage_estimator", "grpo")
    if estimator not in _NORMALISED or not getattr(args, "rewards_normalization", True):
        return ""
    deviates = estimator != "reinforce_plus_plus_baseline" and getattr(args, "grpo_std_normalization", True)
    return "std" if deviates else "mean"


def normalised(args: Args, samples: Sequence[SlimeSample]) -> tuple[list[float], list[float]]:
    """Raw rewards and advantages, sample by sample. A void attempt has an advantage of 0, and as its raw
    reward the mean of its group, so that slime's logged mean is that of the others."""
    groups = _groups(samples)
    totals = [_totals(args, group) for group in groups]
    raw, shares = [0.0] * len(samples), [0.0] * len(samples)
    for group, row, given in zip(groups, totals, _shares(args, groups, totals), strict=True):
        valid = [total for total in row if total is not None]
        usual = fmean(valid) if valid else 0.0
        for attempt, total, share in zip(group, row, given, strict=True):
            for place, sample in zip(attempt.places, attempt.samples, strict=True):
                raw[place] = usual if total is None else total
                shares[place] = _of(share, sample)
    return raw, shares


Share = float | Mapping[int, float] | None


def _shares(
    args: Args, groups: Sequence[Sequence[_Attempt]], totals: Sequence[Sequence[float | None]]
) -> list[list[Share]]:
    kind = _kind(args)
    if not kind:
        return [list(row) for row in totals]
    if kind != STEP:
        return [list(row) for row in advantages(totals, kind=kind)]
    coef = settings(args).rl.algorithm.algorithm().prm_coef
    return [list(_by_step(row, group, coef)) for row, group in zip(totals, groups, strict=True)]


def _of(share: Share, sample: SlimeSample) -> float:
    if isinstance(share, Mapping):
        turn = turn_of(sample)
        return 0.0 if turn is None else share.get(turn, 0.0)
    return share or 0.0


def uninformative(args: Args, samples: Sequence[SlimeSample]) -> str:
    """Why a group would move nothing: fewer than two attempts that count, or no difference between them.
    Empty for one that does."""
    (group,) = _groups(samples) or [[]]
    totals = _totals(args, group)
    valid = [total for total in totals if total is not None]
    if len(valid) < 2:
        return "void"
    if _kind(args) == STEP:
        coef = settings(args).rl.algorithm.algorithm().prm_coef
        differs = any(share and any(share.values()) for share in _by_step(totals, group, coef))
    else:
        differs = informative(totals)
    return "" if differs else f"same_reward_{valid[0]:.1f}"
