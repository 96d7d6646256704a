"""Means over runs and their differences, against formulas worked out by hand."""

import math
from statistics import stdev

import pytest

from patchwright.metrics.mean import Mean, difference

THESE = (0.348, 0.217, 0.31)


def test_a_rate_stays_one_and_one_run_has_no_interval():
    wide = Mean.of([0.0, 1.0]).rate()
    assert (wide.low, wide.high) == (0.0, 1.0)
    assert Mean.of([0.25]) == Mean(mean=0.25, low=0.25, high=0.25)


def test_kinds_that_vary_alike_have_the_interval_of_all_their_runs():
    """Welch's is then Student's with 3 + 3 - 2 degrees of freedom."""
    found = difference([0.1, 0.2, 0.3], [0.2, 0.3, 0.4])
    half = 2.776 * math.sqrt(0.01 / 3 + 0.01 / 3)
    assert (found.mean, found.low, found.high) == pytest.approx((-0.1, -0.1 - half, -0.1 + half))


def test_a_kind_that_does_not_vary_adds_no_freedom():
    found = difference(THESE, [0.3, 0.3, 0.3])
    half = 4.303 * stdev(THESE) / math.sqrt(3)
    assert found.high - found.mean == pytest.approx(half)
    same = difference([0.5, 0.5], [0.25, 0.25])
    assert same.low == same.mean == same.high == 0.25
