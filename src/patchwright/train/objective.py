"""One step's policy loss as the trainer runs it: what is measured and folded in before the updates, the loss
of a micro-batch, and the figures. Between the trainer, which owns the model, and the pure functions of
`loss.py` and `ratio.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from patchwright.errors import EngineError
from patchwright.train.algorithm import PolicyLoss
from patchwright.train.loss import kl_loss, policy_loss
from patchwright.train.model import Batch
from patchwright.train.ratio import Drift, Scores, corrected, sequence_clipped
from patchwright.types import Sample

__all__ = ["Figures", "PolicyStep"]


@dataclass(slots=True)
class Figures:
    """Sums over tokens of all updates. Example: `Figures(kl=0.5) + Figures(kl=0.25, masked=1)`"""

    drift: Drift = field(default_factory=Drift)
    clipped: float = 0.0
    kl: float = 0.0
    reference_kl: float = 0.0
    masked: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.drift + other.drift,
            self.clipped + other.clipped,
            self.kl + other.kl,
            self.reference_kl + other.reference_kl,
            self.masked + other.masked,
        )


class PolicyStep:
    """The policy loss of one `Trainer.step`.

    `score` gives the model's log-probs of the tokens that train, as it is at the time; `reference` those of
    the reference model for a micro-batch, where the loss has a KL term.

    Where the model is spread over ranks, each has all rows but only its own micro-batches: `gathered` gives
    the figures of every rank's micro-batches.
    """

    def __init__(
        self,
        how: PolicyLoss,
        score: Callable[[Sequence[Sample]], Scores],
        reference: Callable[[Batch], Tensor] | None = None,
        gathered: Callable[[Figures], list[Figures]] = lambda mine: [mine],
    ) -> None:
        self.how = how
        self._score, self._reference, self._gathered = score, reference, gathered
        self._updates = 0
        self._rows = Figures()
        """Of all rows: the same on every rank."""
        self._mine = Figures()
        """Of the micro-batches computed here."""

    def figures(self) -> Figures:
        """Of all ranks."""
        return sum(self._gathered(self._mine), self._rows)

    # --- before the loss ----------------------------------------------------------------------

    def started(self, rows: Sequence[Sample]) -> list[Sample]:
        """The step's rows, corrected for what engine and trainer disagree on."""
        if self.how.correction == "none" or not rows:
            return list(rows)
        current = self._score(rows)
        self._measure(rows, current)
        fixed, self._rows.masked = corrected(rows, current, self.how)
        return fixed

    def updated(self, rows: Sequence[Sample]) -> list[Sample]:
        """The rows of the next optimizer step."""
        self._updates += 1
        if self.how.surrogate != "gspo":
            return list(rows)
        current = self._score(rows)
        if self._measures():
            self._measure(rows, current)
        folded, clipped = sequence_clipped(rows, current, self.how)
        self._rows.clipped += clipped
        return folded

    def _measures(self) -> bool:
        """Whether log-probs seen now are still those of the weights the engine sampled with, and new."""
        return self._updates == 1 and self.how.correction == "none"

    def _measure(self, rows: Sequence[Sample], current: Scores) -> None:
        for row, scores in zip(rows, current, strict=True):
            old = [log for log, weight in zip(row.logprobs[1:], row.weights[1:], strict=True) if weight > 0]
            gaps = [new - log for new, log in zip(scores, old, strict=True)]
            self._rows.drift = self._rows.drift.with_gaps(gaps)

    # --- the loss -----------------------------------------------------------------------------

    def loss(self, batch: Batch, logprobs_N: Tensor, entropy_N: Tensor) -> Tensor:
        """The loss of a micro-batch."""
        how, mine = self.how, self._mine
        if self._measures() and how.surrogate != "gspo":
            gaps_N = logprobs_N.detach() - batch.old_logprobs_N
            mine.drift = mine.drift.with_gaps(gaps_N.tolist())
        value, sums = policy_loss(logprobs_N, batch.old_logprobs_N, batch.advantages_N, batch.weights_N, how)
        mine.clipped += sums["clip_fraction"].item()
        mine.kl += sums["kl"].item()
        if self._reference is not None:
            value = value + how.kl_coef * self._penalty(batch, logprobs_N, self._reference(batch))
        if how.entropy_coef:
            value = value - how.entropy_coef * (batch.weights_N * entropy_N).sum()
        return value

    def _penalty(self, batch: Batch, logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
        ones_N = logprobs_N.new_ones(logprobs_N.shape)
        self._mine.reference_kl += kl_loss(logprobs_N.detach(), reference_N, ones_N, self.how.kl).item()
        return kl_loss(logprobs_N, reference_N, batch.weights_N, self.how.kl)

    def check(self) -> None:
        """Called before an optimizer step is taken. Raises EngineError when engine and trainer disagree by
        more than the loss's `max_drift`."""
        drift, bound = self.figures().drift, self.how.max_drift
        if math.isfinite(bound) and not drift.mean <= bound:  # it may be no number
            raise EngineError(
                f"engine and trainer disagree by {drift.mean:.3f} nats a token "
                f"(at most {drift.largest:.2f}) on what was sampled, more than rl.max_drift "
                f"({bound:g}): nothing was trained on it; make the sampling settings and the "
                "precisions of both alike, or raise the bound"
            )
