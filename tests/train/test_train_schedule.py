import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    get_constant_schedule,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from patchwright.train.config import planned, schedule


def theirs(make, *counts):
    """The factors of a schedule of transformers, step by step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    plan = make(optimizer, *counts)
    factors = []
    for _ in range(40):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        plan.step()
    return factors


@pytest.mark.parametrize(
    ("shape", "make"),
    [("cosine", get_cosine_schedule_with_warmup), ("linear", get_linear_schedule_with_warmup)],
)
def test_after_the_warm_up_shapes_are_those_of_transformers(shape, make):
    ours = [planned(shape, step, 40, warmup=5, floor=0.0) for step in range(40)]
    assert ours[5:] == pytest.approx(theirs(make, 5, 40)[5:], abs=1e-9)
    assert ours[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])


def test_constant_is_constant_and_trapezoid_is_what_it_was():
    ours = [planned("constant", step, 40, warmup=0, floor=0.3) for step in range(40)]
    assert ours == theirs(get_constant_schedule)
    for step in range(40):
        assert planned("trapezoid", step, 40, warmup=7, floor=0.02) == schedule(step, step / 40, warmup=7)


@given(
    st.sampled_from(["cosine", "linear", "trapezoid", "constant"]),
    st.integers(1, 200),
    st.integers(0, 300),
    st.floats(0, 1),
)
def test_a_factor_is_always_a_share_and_the_floor_holds_after_the_warm_up(shape, total, warmup, floor):
    factors = [planned(shape, step, total, warmup=warmup, floor=floor) for step in range(total)]
    assert all(0 < factor <= 1 + 1e-9 for factor in factors) or floor == 0
    assert all(factor >= floor - 1e-9 for factor in factors[warmup:])
