"""Options of reinforcement learning (`rl.py`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from pydantic import Field, model_validator

from patchwright.config import Config
from patchwright.recipes.cheats import OnCheat
from patchwright.recipes.scores import ScoresConfig
from patchwright.train.advantage import STEP
from patchwright.train.algorithm import Algorithm, AlgorithmConfig
from patchwright.train.config import TrainConfig

__all__ = ["RlConfig"]


class RlConfig(Config):
    """Group-relative policy optimisation on rewards from real test runs."""

    steps: int = 20
    """Optimizer rounds."""
    tasks_per_step: int = 16
    """Tasks (groups) per round."""
    samples_per_task: int = 8
    """Attempts per task: the group an advantage is relative to."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The algorithm."""
    reward_resolved: float = 1.0
    """Reward of a resolved attempt."""
    reward_unresolved: float = -1.0
    """Reward of an unresolved attempt (0 for rewards of 0 and 1). Void attempts have none."""
    on_cheat: OnCheat = "unresolved"
    """What an attempt with an integrity finding earns: `unresolved`, whatever its tests say, or `keep`, the
    reward of its verdict."""
    scores: ScoresConfig = ScoresConfig()
    """Scores beside the outcome: a judge of turns, trained verifiers."""
    max_staleness: int = Field(default=0, ge=0)
    """Versions of the weights that a token may be older than those it is trained into. 0: attempts wait for
    the weights, and the trainer for all attempts of its round. Above: attempts go on while the trainer works,
    and a step trains on the first groups that are whole (`docs/algorithms.md`)."""
    over_sample: int | None = Field(default=None, ge=1)
    """Groups in the works beyond those of a step; left out: all that `max_staleness` allows, which is so many
    rounds of them."""
    straggler_seconds: float | None = Field(default=None, ge=0)
    """How long a step that has enough to train on waits for groups that would grow older than
    `max_staleness`. Past it they are left to a later step, whole, and their tokens that are too old by then
    are left out of the loss. Left out: as long as it takes."""
    max_load_seconds: float = Field(default=600.0, gt=0)
    """How long the engine may take to load new weights; past it the run stops, and resumes there. Attempts go
    on meanwhile."""
    keep_hackable: bool = True
    """Train on tasks that `patchwright tasks validate` found hackable too; flaky and broken ones are never
    trained on."""
    max_logprob_gap: float = 0.05
    """Largest difference between the engine's and the trainer's log-prob of a probe's tokens that is
    tolerated after a weight update; float32 on one machine differs by about 1e-5."""
    max_drift: float = Field(default=0.2, gt=0)
    """Largest mean difference between the log-prob the engine recorded of a token and the trainer's before
    its first update, over all tokens of a round that were sampled with the weights to be updated (of up to 16
    attempts, where the round has tokens of older weights too); past it the run stops, untrained. float32 on
    one machine differs by about 1e-6, bfloat16 engines by about 0.01."""
    train: TrainConfig = TrainConfig(lr=1e-6)
    """Optimizer."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.train.normalise != TrainConfig().normalise:
            raise ValueError("train.normalise is for supervised training; use algorithm.normalise")
        if not self.max_staleness and (self.over_sample or self.straggler_seconds is not None):
            raise ValueError(
                "over_sample and straggler_seconds are for attempts that run ahead of training; give "
                "max_staleness too, as 1"
            )
        if self.over_sample and self.over_sample > self.max_staleness * self.tasks_per_step:
            raise ValueError(
                f"over_sample is {self.over_sample}, and {self.max_staleness} rounds of tasks_per_step are "
                f"{self.max_staleness * self.tasks_per_step} groups: more would grow older than max_staleness"
            )
        algorithm, scores = self.algorithm.algorithm(), self.scores
        if algorithm.verifier_coef and not scores.verifiers:
            raise ValueError("verifier_coef rewards a verifier's score; give one in rl.scores.verifiers")
        scored = scores.judge.base_url or scores.verifiers or algorithm.advantage == STEP
        if algorithm.prm_coef and not scored:
            raise ValueError(
                "prm_coef rewards scores of turns; give who makes them: rl.scores.judge.base_url, or "
                "rl.scores.verifiers"
            )
        return self

    @property
    def method(self) -> Algorithm:
        """The algorithm. Where tokens may be stale it corrects for that: by `tis`, unless told otherwise."""
        found = self.algorithm.algorithm()
        if self.max_staleness and self.algorithm.correction is None:
            return replace(found, loss=replace(found.loss, correction="tis"))
        return found
