"""Means over runs, such as the seeds of an experiment, and what two kinds of runs differ by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, variance

__all__ = ["Mean", "difference"]

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantile of Student's t for 1 to 10 degrees of freedom; 1.96 beyond, which is a little narrow."""


def _quantile(freedom: int) -> float:
    return _T975[freedom - 1] if freedom <= len(_T975) else 1.96


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean over runs with its 95 % interval (Student's t). Example: `Mean(mean=0.3, low=0.1, high=0.5)`"""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of one value or more; of one alone the interval is that value."""
        mean, n = math.fsum(values) / len(values), len(values)
        if n == 1:
            return cls(mean=mean, low=mean, high=mean)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
        half = _quantile(n - 1) * spread
        return cls(mean=mean, low=mean - half, high=mean + half)

    def rate(self) -> Mean:
        """Cut to what a rate can be."""
        return Mean(mean=self.mean, low=max(0.0, self.low), high=min(1.0, self.high))

    def record(self) -> dict[str, float]:
        """JSON values."""
        return asdict(self)

    def points(self) -> str:
        """As a difference, in percentage points."""
        mean, low, high = (100 * value for value in (self.mean, self.low, self.high))
        return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" if low < high else f"{mean:+.1f}"

    def __str__(self) -> str:
        return (
            f"{self.mean:.1%} [{self.low:.1%}, {self.high:.1%}]"
            if self.low < self.high
            else f"{self.mean:.1%}"
        )


def difference(these: Sequence[float], others: Sequence[float]) -> Mean:
    """Mean of `these` less that of `others` with its 95 % interval; of two values or more each.

    By Welch's t-test (Welch 1947, Biometrika 34), which pairs no runs and lets the two kinds vary unlike.
    """
    shares = [variance(values) / len(values) for values in (these, others)]
    mean, square = fmean(these) - fmean(others), sum(shares)
    if not square:
        return Mean(mean=mean, low=mean, high=mean)
    below = sum(share**2 / (len(values) - 1) for share, values in zip(shares, (these, others), strict=True))
    freedom = math.floor(square**2 / below + 1e-9)  # where it is whole, rounding must not take one off
    half = _quantile(freedom) * math.sqrt(square)
    return Mean(mean=mean, low=mean - half, high=mean + half)
