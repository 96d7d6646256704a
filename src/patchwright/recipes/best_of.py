"""Best-of-n in figures: what a score that ranks the attempts at a task is worth. Pure; used by `rerank`.

Estimators are exact expectations over all choices of k attempts, so they need no trials. A run that is
missing (never made, or void) counts as a failure that is chosen last.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from patchwright.metrics import pass_at_k

__all__ = [
    "Band",
    "BestOf",
    "Point",
    "Scored",
    "auc",
    "best_at_k",
    "best_of",
    "bootstrap",
    "calibration_error",
]

MOST = 16
"""Largest k that is reported."""
RESAMPLES = 1000
"""Bootstrap resamples: the ends of a band move by about a hundredth of its width beyond that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One attempt with its score. Example: `Scored(task_id="toy-1", score=0.9, resolved=True)`"""

    task_id: str
    score: float
    resolved: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A mean over tasks with its 95 % band. Example: `Band(mean=0.4, low=0.3, high=0.5)`"""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.1%} [{self.low:.1%}, {self.high:.1%}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What k attempts are worth."""

    k: int
    chance: Band
    """Unbiased Pass@k: one of them is resolved."""
    best: Band
    """Best@k: the one with the highest score is resolved."""
    lift: Band
    """Best@k less Pass@1, paired by task: what ranking gains over one attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BestOf:
    """All figures of one ranking."""

    tasks: int
    runs: int
    """Attempts every task should have."""
    missing: int
    """Of these, how many there are not; they count as failures."""
    auc: float | None
    """Chance that a resolved attempt scores above an unresolved one; None without both kinds."""
    calibration_error: float
    points: tuple[Point, ...]

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


# --- estimators -------------------------------------------------------------------------------


def best_at_k(attempts: Sequence[tuple[float, bool]], k: int) -> float:
    """Chance that, of k attempts drawn from these (score, resolved), the one with the highest score resolved.

    Sorted by falling score, the first drawn is at place i in C(n-i, k-1) of C(n, k) draws. Equal scores are
    broken at random: a block of them counts by its mean. Raises ValueError unless 1 <= k <= n.
    """
    n = len(attempts)
    if not 1 <= k <= n:
        raise ValueError(f"best@{k} is not defined for {n} attempts")
    chance, above = 0.0, 0
    ordered = sorted(attempts, key=lambda attempt: -attempt[0])
    for _, block in groupby(ordered, key=lambda attempt: attempt[0]):
        good = [resolved for _, resolved in block]
        draws = math.comb(n - above, k) - math.comb(n - above - len(good), k)
        chance += draws / math.comb(n, k) * (sum(good) / len(good))
        above += len(good)
    return chance


def auc(attempts: Iterable[tuple[float, bool]]) -> float | None:
    """Area under the ROC curve: chance that a resolved attempt scores above an unresolved one, ties half
    (Mann-Whitney U over the number of pairs). None when one kind is missing."""
    ordered = sorted(attempts)
    good, bad, above = sum(resolved for _, resolved in ordered), 0, 0.0
    for _, block in groupby(ordered, key=lambda attempt: attempt[0]):
        verdicts = [resolved for _, resolved in block]
        here = sum(verdicts)
        below, bad = bad, bad + len(verdicts) - here
        above += here * (below + bad) / 2
    return above / (good * bad) if good and bad else None


def calibration_error(attempts: Sequence[tuple[float, bool]], bins: int = 10) -> float:
    """Expected calibration error (Guo et al. 2017, arXiv 1706.04599): mean over attempts of
    |share resolved - mean score| of the bin an attempt's score is in; bins of equal width on [0, 1]."""
    cells: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for score, resolved in attempts:
        cells[min(bins - 1, int(score * bins))].append((score, resolved))
    gaps = (abs(sum(r for _, r in cell) - math.fsum(s for s, _ in cell)) for cell in cells.values())
    return math.fsum(gaps) / len(attempts) if attempts else 0.0


def bootstrap(
    columns: Sequence[Sequence[float]], *, resamples: int = RESAMPLES, seed: int = 0
) -> list[tuple[float, float]]:
    """95 % percentile bootstrap band of each column's mean (Efron 1979); rows are resampled, the same ones
    for every column. Attempts at one task are not independent, so a row is a task."""
    rng, n = random.Random(seed), len(columns[0])
    draws: list[list[float]] = [[] for _ in columns]
    for _ in range(resamples):
        rows = rng.choices(range(n), k=n)
        for column, means in zip(columns, draws, strict=True):
            means.append(math.fsum(column[row] for row in rows) / n)
    return [_middle(sorted(means)) for means in draws]


def _middle(ordered: Sequence[float]) -> tuple[float, float]:
    tail = int(0.025 * len(ordered))
    return ordered[tail], ordered[-1 - tail]


# --- all together -----------------------------------------------------------------------------


def best_of(
    attempts: Sequence[Scored],
    *,
    tasks: Iterable[str] = (),
    runs: int = 0,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> BestOf:
    """The figures of scored attempts, for k from 1 to 16 or to the number of runs.

    `tasks` are those that should be there, `runs` how many attempts each should have (as many as the task
    with the most, when not given): what is missing is a failure. Raises ValueError when there is no task.
    """
    by_task: dict[str, list[tuple[float, bool]]] = {task: [] for task in tasks}
    for attempt in attempts:
        by_task.setdefault(attempt.task_id, []).append((attempt.score, attempt.resolved))
    most = max([runs, 1, *map(len, by_task.values())])
    if not by_task:
        raise ValueError("there is no task to rank attempts of")
    scored = [(attempt.score, attempt.resolved) for attempt in attempts]
    return BestOf(
        tasks=len(by_task),
        runs=most,
        missing=most * len(by_task) - len(attempts),
        auc=auc(scored),
        calibration_error=calibration_error(scored),
        points=_points(by_task, most, resamples, seed),
    )


def _points(
    by_task: Mapping[str, Sequence[tuple[float, bool]]], runs: int, resamples: int, seed: int
) -> tuple[Point, ...]:
    padded = [[*row, *[(-math.inf, False)] * (runs - len(row))] for row in by_task.values()]
    ks = range(1, min(MOST, runs) + 1)
    chance = [[pass_at_k(runs, sum(r for _, r in row), k) for row in padded] for k in ks]
    best = [[best_at_k(row, k) for row in padded] for k in ks]
    lift = [[b - one for b, one in zip(column, chance[0], strict=True)] for column in best]
    bands = _bands([*chance, *best, *lift], resamples, seed)
    n = len(ks)
    return tuple(
        Point(k=k, chance=bands[i], best=bands[n + i], lift=bands[2 * n + i]) for i, k in enumerate(ks)
    )


def _bands(columns: Sequence[Sequence[float]], resamples: int, seed: int) -> list[Band]:
    ends = bootstrap(columns, resamples=resamples, seed=seed)
    means = [math.fsum(column) / len(column) for column in columns]
    return [Band(mean=mean, low=low, high=high) for mean, (low, high) in zip(means, ends, strict=True)]
