from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchwright.train.batch import epoch, micro_batches, minibatches, normalise
from patchwright.types import Sample


def row(length, name="", weights=None):
    zeros = (0.0,) * length
    weights = tuple(weights) if weights is not None else (0.0,) + (1.0,) * (length - 1)
    ids = tuple(range(length))
    return Sample(
        trajectory_id=name,
        token_ids=ids,
        mask=(1,) * length,
        logprobs=zeros,
        advantages=zeros,
        weights=weights,
    )


lengths = st.lists(st.integers(1, 60), max_size=40)


@given(lengths, st.integers(1, 200), st.integers(0, 5))
def test_batches_hold_every_row_once_within_the_budget(sizes, budget, seed):
    rows = [row(size, str(index)) for index, size in enumerate(sizes)]
    for batches in (micro_batches(rows, budget), epoch(rows, budget, seed)):
        assert sorted(r.trajectory_id for b in batches for r in b) == sorted(r.trajectory_id for r in rows)
        assert all(len(b) == 1 or len(b) * max(map(len, b)) <= budget for b in batches)


def test_an_epoch_is_shuffled_by_its_seed_and_wastes_little_padding():
    rows = [row(50 + 7 * index % 300, str(index)) for index in range(600)]
    first = epoch(rows, 2000, seed=1)
    assert first == epoch(rows, 2000, seed=1)
    assert first != epoch(rows, 2000, seed=2)
    padded = sum(len(step) * max(map(len, step)) for step in first)
    assert padded < 1.05 * sum(map(len, rows))
    sizes = [len(step[0]) for step in first]
    falls = sum(a > b for a, b in pairwise(sizes))
    assert falls > len(sizes) / 4, "steps must not come in order of length"


def test_minibatches_keep_a_trajectory_together_and_repeat_by_seed():
    rows = [row(5, f"t{index // 2}") for index in range(20)]
    parts = minibatches(rows, 3, seed=4)
    assert [len(part) for part in parts] == [8, 6, 6]
    homes = [{r.trajectory_id for r in part} for part in parts]
    assert not homes[0] & homes[1] and not homes[0] & homes[2] and not homes[1] & homes[2]
    assert parts == minibatches(rows, 3, seed=4) != minibatches(rows, 3, seed=5)
    assert len(minibatches(rows[:2], 3, seed=0)) == 1
    assert minibatches([], 3, seed=0) == []


def test_sequence_normalisation_counts_every_trajectory_the_same():
    rows = [row(3, "a"), row(5, "b"), row(9, "b"), row(4, "c", weights=[0, 0, 0, 0])]
    a, b1, b2, c = normalise(rows, "sequence")
    assert sum(a.weights) == pytest.approx(0.5)
    assert sum(b1.weights) + sum(b2.weights) == pytest.approx(0.5)
    assert b1.weights[1] == pytest.approx(b2.weights[1]) == pytest.approx(0.5 / 12)
    assert c.weights == (0.0,) * 4


def test_token_normalisation_counts_every_token_the_same():
    short, long = normalise([row(3), row(5, weights=[0, 0.3, 1, 1, 1])], "token")
    assert short.weights[1] == pytest.approx(1 / 5.3)
    assert long.weights[1:3] == pytest.approx((0.3 / 5.3, 1 / 5.3))
