"""Samples -> optimizer steps -> micro-batches, and the one normalisation of the loss. No torch.

epoch (supervised) or minibatches (RL)   which samples share an optimizer step
normalise                                their weights, scaled once for the whole step
micro_batches, plan, dealt               which rows are computed together, and by which rank: changes speed,
                                         not the result
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from patchwright.train.tree import WORTH, Forest, forest_size, shared_parts
from patchwright.types import Sample

__all__ = [
    "MicroBatch",
    "Normalisation",
    "attempts",
    "dealt",
    "epoch",
    "micro_batches",
    "minibatches",
    "normalise",
    "plan",
]

Normalisation = Literal["sequence", "token", "constant"]
"""`sequence`: every trajectory counts the same. `token`: every token counts the same, in this step.
`constant`: a token counts the same in every step, whatever else is in it."""

BUCKET = 512
"""Samples sorted by length together: large enough to waste little padding, small enough to mix lengths."""


FEW = 16
"""Rounds up to which it is tried whether smaller micro-batches keep all ranks busier: over more of them what
the last one leaves idle is little."""

SMALLER = (0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Sizes that are tried, as shares of the largest."""

_NOTHING = Sample(
    token_ids=(0, 0), mask=(0, 0), logprobs=(0.0, 0.0), advantages=(0.0, 0.0), weights=(0.0, 0.0)
)
"""A row without weight: what a rank computes while others have more to do than it."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that are computed at once: padded to one length, or as a forest that holds shared prefixes once.

    Example: `MicroBatch([row, longer_row])`
    """

    rows: list[Sample]
    forest: Forest | None = None

    @property
    def computed(self) -> int:
        """Tokens the model computes, padding included."""
        return len(self.forest) if self.forest else len(self.rows) * max(map(len, self.rows))


def plan(samples: Sequence[Sample], max_tokens: int, *, share: bool) -> list[MicroBatch]:
    """The micro-batches of an optimizer step, at most `max_tokens` each (a longer row goes alone).

    With `share`, rows that begin alike, of one trajectory or of several, compute what they share once, and
    rows of unlike length are packed, one behind the other, instead of padded.
    """
    return [
        MicroBatch(rows, Forest.of([row.token_ids for row in rows]) if packed else None)
        for rows, _, packed in _cut(samples, max_tokens, share=share)
    ]


def _cut(samples: Sequence[Sample], max_tokens: int, *, share: bool) -> list[tuple[list[Sample], int, bool]]:
    """Rows of each micro-batch, the tokens it computes, and whether they are a forest."""
    trees, plain = shared_parts(samples, max_tokens) if share else ([], samples)
    padded = [_laid_out(rows, share=share) for rows in micro_batches(plain, max_tokens)]
    return [*padded, *((rows, size, True) for rows, size in trees)]


def _laid_out(rows: list[Sample], *, share: bool) -> tuple[list[Sample], int, bool]:
    padded = len(rows) * max(map(len, rows))
    size = forest_size(rows) if share else padded
    packed = size <= WORTH * padded
    return rows, size if packed else padded, packed


def dealt(
    samples: Sequence[Sample], max_tokens: int, *, share: bool, rank: int = 0, ranks: int = 1
) -> list[MicroBatch]:
    """The micro-batches of an optimizer step that `rank` computes: all of `plan`, for one rank.

    Several ranks compute in rounds, one micro-batch each, and wait for each other in every layer: those of a
    round are about equally large, and every rank has one in every round, be it of nothing.
    """
    if ranks == 1:
        return plan(samples, max_tokens, share=share)
    max_tokens = _even(samples, max_tokens, share=share, ranks=ranks)
    micros = sorted(plan(samples, max_tokens, share=share), key=lambda micro: micro.computed, reverse=True)
    rounds = [micros[start : start + ranks] for start in range(0, len(micros), ranks)]
    return [found[rank] if rank < len(found) else MicroBatch([_NOTHING]) for found in rounds]


def _even(samples: Sequence[Sample], max_tokens: int, *, share: bool, ranks: int) -> int:
    """The size of micro-batches, `max_tokens` at most, that keeps all ranks busiest: of some smaller ones,
    and of those that share the tokens out in as many rounds, or in one more."""
    sizes = {max_tokens: _sizes(samples, max_tokens, share=share)}
    rounds = math.ceil(len(sizes[max_tokens]) / ranks)
    if not 0 < rounds <= FEW:
        return max_tokens
    each = sum(sizes[max_tokens]) / ranks
    tried = [max_tokens * part for part in SMALLER]
    tried += [each / count * (2 - part) for count in (rounds, rounds + 1) for part in (1.0, *SMALLER[:4])]
    for size in {math.ceil(size) for size in tried if size < max_tokens}:
        sizes[size] = _sizes(samples, size, share=share)
    return min(sizes, key=lambda size: (_longest(sizes[size], ranks), -size))


def _sizes(samples: Sequence[Sample], max_tokens: int, *, share: bool) -> list[int]:
    """Tokens of each micro-batch of `plan`, without making them."""
    return [size for _, size, _ in _cut(samples, max_tokens, share=share)]


def _longest(sizes: Sequence[int], ranks: int) -> int:
    """Tokens that are computed one after the other: of every round the largest micro-batch. Those of a round
    are of similar size, which makes their sum the least."""
    return sum(sorted(sizes, reverse=True)[::ranks])


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Rows of similar length together, at most `max_tokens` with padding (a longer row goes alone)."""
    batches: list[list[Sample]] = []
    for sample in sorted(samples, key=len):
        if batches and (len(batches[-1]) + 1) * len(sample) <= max_tokens:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches


def epoch(samples: Sequence[Sample], max_tokens: int, seed: int) -> list[list[Sample]]:
    """Every sample once, cut into optimizer steps of at most `max_tokens` with padding.

    Samples are shuffled, sorted by length within buckets, cut, and the steps shuffled again: rows of one
    step are about equally long, steps come in random order. The same seed gives the same steps.
    """
    order = random.Random(seed)
    shuffled = order.sample(samples, len(samples))
    buckets = [shuffled[start : start + BUCKET] for start in range(0, len(shuffled), BUCKET)]
    steps = [step for bucket in buckets for step in micro_batches(bucket, max_tokens)]
    order.shuffle(steps)
    return steps


def minibatches(samples: Sequence[Sample], count: int, seed: int) -> list[list[Sample]]:
    """Deal the trajectories at random into `count` optimizer steps; rows of a trajectory stay together.

    Fewer than `count` when there are fewer trajectories. The same seed gives the same deal.
    """
    trajectories = list(_by_trajectory(samples).values())
    random.Random(seed).shuffle(trajectories)
    dealt = [trajectories[start::count] for start in range(min(count, len(trajectories)))]
    return [[sample for rows in part for sample in rows] for part in dealt]


def normalise(samples: Sequence[Sample], kind: Normalisation, *, constant: float = 1.0) -> list[Sample]:
    """Scale the weights of one optimizer step so that the loss is a plain sum over all its tokens.

    After it the weights add up to 1 (by `constant`: each is divided by `constant`), so gradients accumulated
    over any cut into micro-batches, or added up over ranks, equal those of the whole. Rows of one trajectory
    (chains after a compaction, sub-agents) count as one sequence.
    """
    if kind == "constant":
        return [replace(row, weights=tuple(w / constant for w in row.weights)) for row in samples]
    groups = list(_by_trajectory(samples).values()) if kind == "sequence" else [list(samples)]
    totals = [sum(sum(row.weights) for row in rows) for rows in groups]
    trained = sum(total > 0 for total in totals)
    scaled: dict[int, Sample] = {}
    for rows, total in zip(groups, totals, strict=True):
        scale = 1 / (total * trained) if total > 0 else 0.0
        scaled |= {id(row): replace(row, weights=tuple(w * scale for w in row.weights)) for row in rows}
    return [scaled[id(sample)] for sample in samples]


def attempts(samples: Sequence[Sample]) -> int:
    """Number of trajectories the samples are of."""
    return len(_by_trajectory(samples))


def _by_trajectory(samples: Sequence[Sample]) -> dict[Hashable, list[Sample]]:
    """Rows of each trajectory, in order; a sample without a trajectory id stands alone."""
    groups: defaultdict[Hashable, list[Sample]] = defaultdict(list)
    for index, sample in enumerate(samples):
        groups[sample.trajectory_id or index].append(sample)
    return groups
