"""Graded attempts of a round -> what the policy is trained on: rewards, advantages, samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from patchwright.recipes.cheats import OnCheat, earned
from patchwright.recipes.verifier_model import verifier_score
from patchwright.train.advantage import STEP, advantages, informative, step_advantages, step_rewards
from patchwright.train.algorithm import Algorithm
from patchwright.train.reward import length_rewards, overlong
from patchwright.train.samples import samples as samples_of
from patchwright.types import Outcome, Sample, Trajectory

__all__ = ["Advantage", "Rewards", "rewards", "samples", "shares", "turn_scores"]

Rewards = Mapping[Outcome, float]
"""What an outcome is worth; void is worth nothing, and is not in it."""

Advantage = float | Mapping[int, float]
"""Of an attempt, or of its turns by their ids."""


def turn_scores(trajectory: Trajectory) -> dict[int, float]:
    """Scores of turns by their ids, as the grade holds them; turns nobody scored are absent."""
    given = trajectory.grade.turn_scores if trajectory.grade else ()
    return {turn: score for turn, score in enumerate(given) if score is not None}


def rewards(
    group: Sequence[Trajectory], worth: Rewards, algorithm: Algorithm, on_cheat: OnCheat
) -> list[float | None]:
    """Reward of each attempt of a group; None where it is void.

    Its outcome's worth, and the terms of the algorithm beside it (`train/reward.py`).
    """
    outcomes = [earned(t, on_cheat) for t in group]
    valid = [i for i, outcome in enumerate(outcomes) if outcome is not Outcome.VOID]
    tokens = [_sampled(group[i]) for i in valid]
    lengths = length_rewards(tokens, [outcomes[i] is Outcome.RESOLVED for i in valid])
    judged = _usual([_mean_score(group[i]) for i in valid])
    verified = _usual([verifier_score(group[i]) for i in valid])
    coef = 0.0 if algorithm.advantage == STEP else algorithm.prm_coef  # there every turn gets its own
    found: list[float | None] = [None] * len(group)
    for i, count, length, score, whole in zip(valid, tokens, lengths, judged, verified, strict=True):
        relative = algorithm.length_coef * length + coef * score + algorithm.verifier_coef * whole
        found[i] = worth[outcomes[i]] + relative + _terms(group[i], count, algorithm)
    return found


def _mean_score(trajectory: Trajectory) -> float | None:
    scores = turn_scores(trajectory)
    return fmean(scores.values()) if scores else None


def _usual(scores: Sequence[float | None]) -> list[float]:
    """A group's scores. An attempt nobody scored (the judge failed) has the mean of the others', 0 without
    any: it gains and loses nothing by it."""
    given = [score for score in scores if score is not None]
    usual = fmean(given) if given else 0.0
    return [usual if score is None else score for score in scores]


def _terms(trajectory: Trajectory, tokens: int, algorithm: Algorithm) -> float:
    """What an attempt's own doing adds to its reward, whatever the others did."""
    total = 0.0
    if algorithm.overlong_limit:
        total += overlong(tokens, limit=algorithm.overlong_limit, buffer=algorithm.overlong_buffer)
    if trajectory.grade is not None and trajectory.grade.findings:
        total -= algorithm.integrity_penalty
    return total


def _sampled(trajectory: Trajectory) -> int:
    return sum(len(turn.completion_ids) for turn in trajectory.turns if turn.train)


def samples(
    groups: Sequence[Sequence[Trajectory]],
    worth: Rewards,
    algorithm: Algorithm,
    on_cheat: OnCheat,
    *,
    oldest: int = 0,
) -> list[Sample]:
    """The samples of a round, in the order of its groups; tokens of weights under `oldest` pull on nothing.

    Void attempts give none. Attempts without an advantage carry no gradient and are left out, unless the loss
    pulls on them too (a KL term), or counts them (`constant`): then they have rows, of no weight.
    """
    kept = [group for group in groups if not algorithm.dynamic_sampling or _mixed(group, on_cheat)]
    found = shares(kept, worth, algorithm, on_cheat)
    pairs = [pair for group, row in zip(kept, found, strict=True) for pair in zip(group, row, strict=True)]
    return [row for trajectory, share in pairs for row in _rows(trajectory, share, algorithm, oldest)]


def shares(
    groups: Sequence[Sequence[Trajectory]], worth: Rewards, algorithm: Algorithm, on_cheat: OnCheat
) -> list[list[Advantage | None]]:
    """The advantage of each attempt of each group, or of its turns by their ids; None where it is void."""
    given = [rewards(group, worth, algorithm, on_cheat) for group in groups]
    if algorithm.advantage == STEP:
        pairs = zip(groups, given, strict=True)
        return [_by_step(group, found, algorithm.prm_coef) for group, found in pairs]
    return [list(row) for row in advantages(given, kind=algorithm.advantage)]


def _mixed(group: Sequence[Trajectory], on_cheat: OnCheat) -> bool:
    worth = {Outcome.RESOLVED: 1.0, Outcome.UNRESOLVED: 0.0}
    return informative([worth.get(earned(t, on_cheat)) for t in group])


def _by_step(
    group: Sequence[Trajectory], found: Sequence[float | None], coef: float
) -> list[Advantage | None]:
    turns = [[turn.id for turn in t.turns if turn.train and turn.completion_ids] for t in group]
    values = step_advantages(step_rewards(found, turns, [turn_scores(t) for t in group], coef=coef))
    return [
        None if row is None else dict(zip(ids, row, strict=True))
        for ids, row in zip(turns, values, strict=True)
    ]


def _rows(trajectory: Trajectory, share: Advantage | None, algorithm: Algorithm, oldest: int) -> list[Sample]:
    if share is None:
        return []
    moves = any(share.values()) if isinstance(share, Mapping) else share != 0
    if moves or algorithm.loss.pulls_everywhere:
        return samples_of(trajectory, advantage=share, oldest=oldest)
    if algorithm.loss.normalise != "constant":
        return []
    return [replace(row, weights=(0.0,) * len(row)) for row in samples_of(trajectory)]
