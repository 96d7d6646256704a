"""Reinforcement learning algorithms by name: what an advantage is, and which loss goes with it. No torch.

An algorithm is a set of choices, each a small pure function elsewhere: `advantage.py` and `reward.py` turn a
round of attempts into advantages, `loss.py` (with `ratio.py`) is what the trainer is told by a `PolicyLoss`.
The trainer itself knows no algorithm. `docs/algorithms.md` has formulas and sources; its tables are made from
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, field_validator

from patchwright.config import Config, nearest
from patchwright.train.batch import Normalisation

__all__ = ["PRESETS", "Algorithm", "AlgorithmConfig", "Correction", "Kl", "PolicyLoss", "Surrogate"]

Surrogate = Literal["ppo", "gspo", "cispo", "reinforce"]
"""What is differentiated; see `docs/algorithms.md`."""
Kl = Literal["none", "k1", "k2", "k3"]
"""Estimator of the KL divergence from the reference (John Schulman, "Approximating KL Divergence", 2020)."""
Correction = Literal["none", "tis", "icepop", "sequence_tis", "sequence_mask"]
"""What is done about log-probs on which engine and trainer disagree under the same weights."""

CORRECTION_BOUNDS: Mapping[Correction, tuple[float, float]] = MappingProxyType(
    {
        "none": (0.0, float("inf")),
        "tis": (0.0, 2.0),
        "icepop": (0.5, 5.0),
        "sequence_tis": (0.0, 2.0),
        "sequence_mask": (0.5, 2.0),
    }
)
"""Bounds of trainer / engine probability, where the algorithm is not told others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLoss:
    """The loss of an optimizer step, as the trainer is told it. `AlgorithmConfig` says what each field means.

    Example: `PolicyLoss(surrogate="cispo", clip_low=1.0, clip_high=4.0, normalise="token")`
    """

    surrogate: Surrogate = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    normalise: Normalisation = "sequence"
    constant_tokens: int = 4096
    kl: Kl = "none"
    kl_coef: float = 0.001
    entropy_coef: float = 0.0
    correction: Correction = "none"
    correction_low: float | None = None
    correction_high: float | None = None
    max_drift: float = float("inf")
    """`rl.max_drift`."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest trainer / engine probability the correction lets through."""
        low, high = CORRECTION_BOUNDS[self.correction]
        return (
            low if self.correction_low is None else self.correction_low,
            high if self.correction_high is None else self.correction_high,
        )

    @property
    def pulls_everywhere(self) -> bool:
        """Whether tokens without an advantage have a gradient too (a KL term, an entropy bonus)."""
        return self.kl != "none" or self.entropy_coef != 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """Every choice made. `AlgorithmConfig` says what each field means; the defaults are `grpo`."""

    advantage: str = "std"
    dynamic_sampling: bool = False
    overlong_limit: int = 0
    overlong_buffer: int = 4096
    length_coef: float = 0.0
    integrity_penalty: float = 0.0
    prm_coef: float = 0.0
    verifier_coef: float = 0.0
    loss: PolicyLoss = PolicyLoss()


PRESETS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "grpo": Algorithm(),
        "dr_grpo": Algorithm(advantage="mean", loss=PolicyLoss(clip_high=0.2, normalise="constant")),
        "rloo": Algorithm(advantage="rloo", loss=PolicyLoss(surrogate="reinforce", normalise="constant")),
        "reinforce++": Algorithm(advantage="batch", loss=PolicyLoss(clip_high=0.2, normalise="token")),
        "reinforce++_baseline": Algorithm(
            advantage="batch_baseline", loss=PolicyLoss(clip_high=0.2, normalise="token")
        ),
        "dapo": Algorithm(dynamic_sampling=True, overlong_limit=20_480, loss=PolicyLoss(normalise="token")),
        "gspo": Algorithm(loss=PolicyLoss(surrogate="gspo", clip_low=3e-4, clip_high=4e-4)),
        "cispo": Algorithm(
            loss=PolicyLoss(surrogate="cispo", clip_low=1.0, clip_high=4.0, normalise="token")
        ),
        "step": Algorithm(advantage="step", prm_coef=1.0),
    }
)
"""The named algorithms."""


class AlgorithmConfig(Config):
    """An algorithm by name; every field but the name, left out, is as that algorithm has it (the table in
    `docs/algorithms.md`)."""

    name: str = Field(default="grpo", validate_default=True)
    """`grpo`, `dr_grpo`, `rloo`, `reinforce++`, `reinforce++_baseline`, `dapo`, `gspo`, `cispo` or `step`."""
    advantage: str | None = None
    """How rewards become advantages: `std` (GRPO, arXiv 2402.03300), `mean` (Dr. GRPO, arXiv 2503.20783),
    `rloo` (arXiv 2402.14740), `batch` and `batch_baseline` (REINFORCE++, arXiv 2501.03262), `step` (per turn,
    as OpenClaw-RL), or `module:function` of one's own."""
    dynamic_sampling: bool | None = None
    """Leave groups out whose outcomes are all equal (DAPO, arXiv 2503.14476): of the loss, and of the
    statistics of a round."""
    overlong_limit: int | None = Field(default=None, ge=0)
    """Sampled tokens of an attempt at which its reward is 1 lower (DAPO, arXiv 2503.14476); 0: no such
    term."""
    overlong_buffer: int | None = Field(default=None, ge=1)
    """Tokens before `overlong_limit` over which the reward falls, from 0 to -1 (DAPO, arXiv 2503.14476)."""
    length_coef: float | None = Field(default=None, ge=0)
    """Weight of the length reward of Kimi k1.5 (arXiv 2501.12599): the shortest attempt of a group gains 0.5
    of it, the longest loses 0.5; unresolved attempts gain nothing. 0: no such term."""
    integrity_penalty: float | None = Field(default=None, ge=0)
    """Taken off the reward of an attempt with an integrity finding, beyond what `rl.on_cheat` does to its
    outcome. 0: no such term."""
    prm_coef: float | None = Field(default=None, ge=0)
    """Weight of the turns' scores (process reward), where the grade holds such: their mean is added to the
    attempt's reward, or, by `advantage = "step"`, each to its own turn (OpenClaw-RL)."""
    verifier_coef: float | None = Field(default=None, ge=0)
    """Weight of the score a verifier gave the attempt (`rl.scores.verifiers`), from 0 to 1, in its reward."""
    surrogate: Surrogate | None = None
    """What is differentiated: `ppo` (the clipped ratio, arXiv 1707.06347), `gspo` (the same with the ratio of
    the whole attempt, arXiv 2507.18071), `cispo` (log-probs weighted by the clipped ratio, arXiv 2506.13585),
    `reinforce` (log-probs, no ratio: Williams 1992)."""
    clip_low: float | None = Field(default=None, ge=0, le=1)
    """The ratio counts down to 1 - clip_low (PPO, arXiv 1707.06347); 1: no lower bound."""
    clip_high: float | None = Field(default=None, ge=0)
    """The ratio counts up to 1 + clip_high; above `clip_low` it is DAPO's clip-higher (arXiv 2503.14476)."""
    normalise: Normalisation | None = None
    """What counts the same in the loss: every attempt (`sequence`, GRPO), every token (`token`, DAPO), or
    every token in proportion to nothing but constants (`constant`, Dr. GRPO, arXiv 2503.20783)."""
    constant_tokens: int | None = Field(default=None, ge=1)
    """By `constant`, each attempt's sum over tokens is divided by this (Dr. GRPO takes the most an attempt
    may have) and by the number of attempts."""
    kl: Kl | None = None
    """Penalty for leaving the model the run started from: estimator `k1`, `k2` or `k3` (Schulman 2020; GRPO
    has k3), or `none`, which also spares the memory and time of that second model."""
    kl_coef: float | None = Field(default=None, ge=0)
    """Weight of that penalty; GRPO's paper has 0.04 (arXiv 2402.03300)."""
    entropy_coef: float | None = None
    """Weight of the entropy bonus (PPO, arXiv 1707.06347, equation 9); below 0 it is a penalty."""
    correction: Correction | None = None
    """What is done where engine and trainer disagree under the same weights: `tis` (truncated importance
    sampling; Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"),
    `icepop` (tokens out of bounds are masked; arXiv 2510.18855), `sequence_tis` and `sequence_mask` (the same
    with the ratio of the whole attempt; Liu, Li et al. 2025, "When speed kills stability"), or `none`. Costs
    one more forward pass."""
    correction_low: float | None = Field(default=None, ge=0, le=1)
    """Lowest trainer / engine probability that is not masked; left out: 0.5 for masks, 0 for truncation."""
    correction_high: float | None = Field(default=None, ge=1)
    """Highest such ratio, truncated or masked above; left out: 5 for `icepop`, 2 for the others."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name in PRESETS:
            return name
        close = nearest(name, list(PRESETS))
        hint = f"did you mean `{close}`?" if close else f"known names: {', '.join(PRESETS)}"
        raise ValueError(f"there is no such algorithm; {hint}")

    def algorithm(self) -> Algorithm:
        """The named algorithm with what is overridden here."""
        given: dict[str, Any] = self.model_dump(exclude={"name"}, exclude_none=True)
        preset = PRESETS[self.name]
        of_loss = {key: value for key, value in given.items() if key in _LOSS_FIELDS}
        others = {key: value for key, value in given.items() if key not in _LOSS_FIELDS}
        return replace(preset, **others, loss=replace(preset.loss, **of_loss))


_LOSS_FIELDS = frozenset(field.name for field in fields(PolicyLoss))
