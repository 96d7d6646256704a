"""Estimators against brute force over every draw."""

import math
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.recipes.best_of import Scored, auc, best_at_k, best_of, bootstrap, calibration_error
from patchwright.recipes.best_of_plot import svg

SCORES = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])  # few of them, so that there are ties
ATTEMPTS = st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=7)


def brute_best(attempts, k):
    draws = []
    for draw in combinations(attempts, k):
        top = max(score for score, _ in draw)
        tied = [resolved for score, resolved in draw if score == top]
        draws.append(sum(tied) / len(tied))
    return sum(draws) / len(draws)


@given(ATTEMPTS, st.data())
def test_best_at_k_is_the_mean_over_every_draw(attempts, data):
    k = data.draw(st.integers(1, len(attempts)))
    assert best_at_k(attempts, k) == pytest.approx(brute_best(attempts, k))


@given(ATTEMPTS)
def test_auc_is_the_share_of_pairs_in_order(attempts):
    good = [score for score, resolved in attempts if resolved]
    bad = [score for score, resolved in attempts if not resolved]
    pairs = [(g > b) + (g == b) / 2 for g in good for b in bad]
    assert auc(attempts) == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=20), st.integers(1, 12))
def test_calibration_error_bin_by_bin(attempts, bins):
    total = 0.0
    for number in range(bins):
        cell = [a for a in attempts if min(bins - 1, math.floor(a[0] * bins)) == number]
        if cell:
            gap = sum(r for _, r in cell) / len(cell) - sum(s for s, _ in cell) / len(cell)
            total += len(cell) / len(attempts) * abs(gap)
    assert calibration_error(attempts, bins) == pytest.approx(total, abs=1e-12)


@settings(max_examples=30)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5))
def test_an_oracle_reaches_pass_at_k_and_a_constant_score_stays_at_pass_at_1(tasks):
    def figures(score):
        rows = [
            Scored(task_id=str(t), score=score(resolved), resolved=resolved)
            for t, row in enumerate(tasks)
            for resolved in row
        ]
        return best_of(rows, resamples=20)

    oracle, blind = figures(float), figures(lambda _: 0.5)
    for point in oracle.points:
        assert point.best.mean == pytest.approx(point.chance.mean)
    even = len({len(row) for row in tasks}) == 1
    for point in blind.points if even else ():  # nothing is missing: every choice is a choice at random
        assert point.best.mean == pytest.approx(
            point.chance.mean if point.k == 1 else blind.points[0].best.mean
        )


def test_missing_runs_and_missing_tasks_are_failures():
    rows = [Scored(task_id="a", score=0.2, resolved=True), Scored(task_id="a", score=0.1, resolved=False)]
    found = best_of(rows, tasks=["a", "b"], runs=4, resamples=50)
    assert (found.tasks, found.runs, found.missing) == (2, 4, 6)
    assert found.points[0].chance.mean == pytest.approx(1 / 4 / 2)
    assert found.points[3].best.mean == pytest.approx(1 / 2)  # of all four, the resolved one scores highest
    assert found.auc == 1.0
    with pytest.raises(ValueError, match="no task"):
        best_of([])


def test_bands_hold_the_mean_and_shrink_with_more_tasks():
    few, many = [0.0, 1.0] * 5, [0.0, 1.0] * 200
    (low, high), (near, far) = bootstrap([few])[0], bootstrap([many])[0]
    assert low < 0.5 < high and near < 0.5 < far and far - near < (high - low) / 3
    expected = 2 * 1.96 * 0.5 / math.sqrt(400)  # of a mean of 400 coin tosses
    assert far - near == pytest.approx(expected, rel=0.15)
    assert bootstrap([few, few])[0] == bootstrap([few, few])[1]  # the same tasks are drawn for every column


def test_the_picture_is_well_formed_and_shows_both_curves():
    rows = [Scored(task_id=str(i % 3), score=i / 12, resolved=i % 2 == 0) for i in range(12)]
    root = ElementTree.fromstring(svg(best_of(rows, resamples=20), "<title> & more"))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "<title> & more"
    assert {"1", "4"} <= set(texts) and any(t.startswith("Best@k") for t in texts)
