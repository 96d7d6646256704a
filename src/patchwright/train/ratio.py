"""Weights of tokens that need more than one log-prob at once: ratios of whole attempts, and of trainer to
engine. Pure functions over samples, no torch.

What they find is folded into the samples' advantages before rows are cut into micro-batches. So the loss
stays a sum over tokens, and comes out the same however rows are packed, cut or spread over ranks, also where
an attempt has several rows.

`current` everywhere: per sample, the log-probs its model gives every token that trains (weight > 0), in
order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from patchwright.train.algorithm import PolicyLoss
from patchwright.types import Sample

__all__ = ["Drift", "Scores", "corrected", "sequence_clipped"]

MAX_LOG_RATIO = 20.0
"""Bound on |log ratio| before the exponential: beyond it a token is noise, and float32 overflows at 88."""

Scores = Sequence[Sequence[float]]
"""Per sample, log-probs of its tokens that train."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the trainer's log-probs are from the engine's, over tokens.

    Example: `Drift().with_gaps([0.1, -0.3])` has `mean` 0.2 and `largest` 0.3
    """

    tokens: int = 0
    total: float = 0.0
    """Sum of |trainer - engine|, nats."""
    largest: float = 0.0
    divergence: float = 0.0
    """Sum of ratio - 1 - log ratio (k3)."""

    def with_gaps(self, gaps: Sequence[float]) -> Drift:
        """With further tokens, given as trainer - engine."""
        kept = [max(-MAX_LOG_RATIO, min(MAX_LOG_RATIO, gap)) for gap in gaps]
        return Drift(
            self.tokens + len(gaps),
            self.total + math.fsum(map(abs, gaps)),
            max([self.largest, *map(abs, gaps)]),
            self.divergence + math.fsum(math.exp(gap) - 1 - gap for gap in kept),
        )

    def __add__(self, other: Drift) -> Drift:
        """Over the tokens of both."""
        return Drift(
            self.tokens + other.tokens,
            self.total + other.total,
            max(self.largest, other.largest),
            self.divergence + other.divergence,
        )

    @property
    def mean(self) -> float:
        """Mean |trainer - engine|, nats."""
        return self.total / max(1, self.tokens)

    @property
    def kl(self) -> float:
        """Estimate of KL(engine || trainer), nats."""
        return self.divergence / max(1, self.tokens)


def corrected(samples: Sequence[Sample], current: Scores, loss: PolicyLoss) -> tuple[list[Sample], int]:
    """Correct for the engine having sampled with other probabilities than the trainer computes.

    `current` is the trainer's before the first update. Each token's advantage is multiplied by
    w = trainer / engine probability where that is in `loss.bounds`; above, it is cut to the bound (`tis`) or
    0 (`icepop`: 0 on both sides); the `sequence_` forms take one w for the attempt, the product over its
    tokens. The sample's log-probs become the trainer's, so that the policy ratio holds nothing but the
    updates since: what is trained is w * min(r * A, clip(r) * A), the decoupled objective (arXiv 2110.00641).

    Masked tokens still count in the normalisation, as in IcePop. Also returns how many tokens were masked or
    truncated.
    """
    low, high = loss.bounds
    ratios = [_ratios(sample, scores) for sample, scores in zip(samples, current, strict=True)]
    if loss.correction.startswith("sequence"):
        ratios = _of_sequences(samples, ratios, mean=False)
    masks = loss.correction in ("icepop", "sequence_mask")
    rows, changed = [], 0
    for sample, scores, logs in zip(samples, current, ratios, strict=True):
        whole = [math.exp(_capped(log)) for log in logs]
        weights = [_bounded(ratio, low, high, masks=masks) for ratio in whole]
        changed += sum(weight != ratio for weight, ratio in zip(weights, whole, strict=True))
        rows.append(replace(_scaled(sample, weights), logprobs=_placed(sample, scores, sample.logprobs)))
    return rows, changed


def _bounded(ratio: float, low: float, high: float, *, masks: bool) -> float:
    if masks:
        return ratio if low <= ratio <= high else 0.0
    return max(low, min(high, ratio))


def sequence_clipped(
    samples: Sequence[Sample], current: Scores, loss: PolicyLoss
) -> tuple[list[Sample], int]:
    """GSPO (arXiv 2507.18071): fold s * [not clipped] into the advantages, for the loss `reinforce`.

    s = exp(mean over the attempt's tokens of log(current / sampled probability)). The gradient of
    min(s * A, clip(s) * A) is s * A times the mean gradient of the log-probs, or 0 where the clipped term is
    the smaller one; this is also its token form (GSPO-token), which lets advantages differ between turns.
    Also returns how many tokens were clipped.
    """
    ratios = [_ratios(sample, scores) for sample, scores in zip(samples, current, strict=True)]
    rows, clipped = [], 0
    for sample, logs in zip(samples, _of_sequences(samples, ratios, mean=True), strict=True):
        weights = []
        for place, log in zip(_trained(sample), logs, strict=True):
            ratio, advantage = math.exp(_capped(log)), sample.advantages[place]
            bound = max(1 - loss.clip_low, min(1 + loss.clip_high, ratio))
            stops = bound * advantage < ratio * advantage
            clipped += stops
            weights.append(0.0 if stops else ratio)
        rows.append(_scaled(sample, weights))
    return rows, clipped


# --- parts ------------------------------------------------------------------------------------


def _trained(sample: Sample) -> Iterator[int]:
    """Where a sample trains; the order of `current`."""
    return (place for place in range(1, len(sample)) if sample.weights[place] > 0)


def _ratios(sample: Sample, scores: Sequence[float]) -> list[float]:
    """log(current / sampled probability) of the tokens that train."""
    return [score - sample.logprobs[place] for place, score in zip(_trained(sample), scores, strict=True)]


def _of_sequences(samples: Sequence[Sample], ratios: Scores, *, mean: bool) -> list[list[float]]:
    """The sum, or mean, of log ratios over all rows of an attempt, for each of its tokens."""
    names: list[Hashable] = [sample.trajectory_id or index for index, sample in enumerate(samples)]
    found: defaultdict[Hashable, list[float]] = defaultdict(list)
    for name, logs in zip(names, ratios, strict=True):
        found[name] += logs
    totals = {name: math.fsum(logs) / (max(1, len(logs)) if mean else 1) for name, logs in found.items()}
    return [[totals[name]] * len(logs) for name, logs in zip(names, ratios, strict=True)]


def _capped(log: float) -> float:
    return max(-MAX_LOG_RATIO, min(MAX_LOG_RATIO, log))


def _scaled(sample: Sample, factors: Sequence[float]) -> Sample:
    """The advantages of the tokens that train, times `factors`."""
    values = [sample.advantages[place] * f for place, f in zip(_trained(sample), factors, strict=True)]
    return replace(sample, advantages=_placed(sample, values, sample.advantages))


def _placed(sample: Sample, values: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    """`others` with `values` where the sample trains."""
    placed = list(others)
    for place, value in zip(_trained(sample), values, strict=True):
        placed[place] = value
    return tuple(placed)
