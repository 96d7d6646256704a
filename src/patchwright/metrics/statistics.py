"""The statistics an evaluation reports.

Void attempts are no evidence: the statistics take outcomes and leave void ones out, and a task with nothing
but void attempts is not counted at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from patchwright.types import Outcome

__all__ = ["Interval", "interval", "mean_pass_at_k", "pass_at_k"]

Z95 = 1.959963984540054
"""97.5 % quantile of the normal distribution: a two-sided 95 % interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean with its 95 % interval.

    Example: `Interval(mean=0.6, low=0.5, high=0.7, tasks=80, attempts=160)`
    """

    mean: float
    low: float
    high: float
    tasks: int
    """Tasks with at least one verdict."""
    attempts: int
    """Attempts with a verdict."""
    void: int = 0
    """Attempts left out."""

    def __str__(self) -> str:
        return f"{self.mean:.1%} [{self.low:.1%}, {self.high:.1%}]"


def interval(outcomes: Mapping[str, Sequence[Outcome]]) -> Interval:
    """Resolved rate over the attempts of each task, with a 95 % interval that respects tasks as clusters.

    The mean is over tasks of each task's own rate, so that a task attempted more often does not weigh more.
    Attempts at one task are not independent, so the standard error is the cluster-robust one, with tasks
    as clusters of equal weight: se = sqrt(sum_i (p_i - mean)^2 / (n (n - 1))), where p_i is the rate of
    task i of n, and the interval is mean +- 1.96 se, cut to [0, 1]. With one verdict per task, or where
    that error is 0 or undefined, it is the Wilson score interval over the n tasks, which stays honest at
    0 and 1 and for few tasks (Wilson 1927; Miller 2024, arXiv 2411.00640, section 2.2, for the clusters).

    Raises ValueError when no attempt has a verdict.
    """
    verdicts = {task: [o for o in row if o is not Outcome.VOID] for task, row in outcomes.items()}
    rates = [row.count(Outcome.RESOLVED) / len(row) for row in verdicts.values() if row]
    if not rates:
        raise ValueError("no attempt has a verdict: every one is void")
    attempts = sum(len(row) for row in verdicts.values())
    mean = math.fsum(rates) / len(rates)
    low, high = _clustered(rates, mean) if attempts > len(rates) else _wilson(mean, len(rates))
    void = sum(len(row) for row in outcomes.values()) - attempts
    return Interval(mean=mean, low=low, high=high, tasks=len(rates), attempts=attempts, void=void)


def _clustered(rates: Sequence[float], mean: float) -> tuple[float, float]:
    n = len(rates)
    spread = math.fsum((rate - mean) ** 2 for rate in rates)
    if n < 2 or spread < 1e-12:
        return _wilson(mean, n)
    half = Z95 * math.sqrt(spread / (n * (n - 1)))
    return max(0.0, mean - half), min(1.0, mean + half)


def _wilson(mean: float, n: int) -> tuple[float, float]:
    """Wilson score interval of a proportion of n (Wilson 1927)."""
    shrink = 1 + Z95**2 / n
    centre = (mean + Z95**2 / (2 * n)) / shrink
    half = Z95 * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n**2)) / shrink
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k attempts drawn from n, of which c resolved, hold a resolved one: 1 - C(n-c, k) / C(n, k).

    Unbiased (Chen et al. 2021, arXiv 2107.03374). Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} is not defined for {c} resolved of {n} attempts")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at_k(outcomes: Mapping[str, Iterable[Outcome]], k: int) -> float | None:
    """Mean of `pass_at_k` over the tasks with at least k verdicts; None when there is no such task."""
    values = []
    for row in outcomes.values():
        verdicts = [outcome for outcome in row if outcome is not Outcome.VOID]
        if len(verdicts) >= k:
            values.append(pass_at_k(len(verdicts), verdicts.count(Outcome.RESOLVED), k))
    return math.fsum(values) / len(values) if values else None
