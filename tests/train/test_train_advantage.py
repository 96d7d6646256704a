import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.train import rl_reference as paper

from patchwright.errors import ConfigError
from patchwright.train.advantage import (
    ADVANTAGES,
    advantages,
    informative,
    step_advantages,
    step_rewards,
)
from patchwright.train.reward import length_rewards, overlong

KINDS = sorted(ADVANTAGES)
PER_GROUP = ["mean", "rloo", "std"]

reward = st.floats(-2, 2, allow_subnormal=False).map(lambda x: round(x, 3))
outcome = st.sampled_from([1.0, -1.0, 0.0])
rounds = st.lists(st.lists(st.none() | reward | outcome, max_size=6), max_size=5)


def flat(rows):
    return [value for row in rows for value in row]


@pytest.mark.parametrize("kind", KINDS)
@given(groups=rounds)
def test_every_estimator_is_the_papers_formula(kind, groups):
    found, wanted = advantages(groups, kind=kind), paper.advantages(kind, groups)
    assert [len(row) for row in found] == [len(row) for row in wanted]
    for a, b in zip(flat(found), flat(wanted), strict=True):
        assert (a is None) == (b is None)
        assert a is None or a == pytest.approx(b, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@given(groups=rounds)
def test_void_attempts_change_nothing_for_the_others(kind, groups):
    without = [[r for r in group if r is not None] for group in groups]
    found = [[a for a in row if a is not None] for row in advantages(groups, kind=kind)]
    assert found == advantages(without, kind=kind)


@pytest.mark.parametrize("kind", PER_GROUP)
@pytest.mark.parametrize("rewards", [[0.1] * 3, [1.0], [], [None, 0.3, None], [None, None]])
def test_groups_of_equal_reward_get_exactly_zero(kind, rewards):
    found = advantages([rewards, [1.0, -1.0]], kind=kind)[0]
    assert found == [None if r is None else 0.0 for r in rewards]


def test_in_a_batch_normalised_round_flat_groups_are_neutral_only_with_the_groups_baseline():
    groups = [[1.0, 1.0], [1.0, -1.0]]
    assert advantages(groups, kind="batch_baseline")[0] == [0.0, 0.0]
    assert min(advantages(groups, kind="batch")[0]) > 0
    assert advantages([[1.0], [1.0, 1.0]], kind="batch") == [[0.0], [0.0, 0.0]]


@given(groups=rounds)
def test_rewards_of_0_and_1_give_grpo_the_advantages_of_minus_1_and_1(groups):
    """But for the constant beside the deviation."""
    signs = [[None if r is None else (1.0 if r > 0 else -1.0) for r in group] for group in groups]
    zeros = [[None if r is None else (r + 1) / 2 for r in group] for group in signs]
    for a, b in zip(flat(advantages(signs)), flat(advantages(zeros)), strict=True):
        assert a == pytest.approx(b, abs=1e-3) if a is not None else b is None


def test_a_function_of_ones_own_is_found_and_a_wrong_name_names_the_nearest():
    own = f"{__name__}:halves"
    assert advantages([[2.0, None], [4.0]], kind=own) == [[1.0, None], [2.0]]
    with pytest.raises(ConfigError, match="batch_baseline"):
        advantages([[1.0]], kind="batch_baselin")


def halves(groups):
    return [[reward / 2 for reward in group] for group in groups]


@pytest.mark.parametrize(
    ("outcomes", "kept"),
    [([1, 0, 1], True), ([1, 1], False), ([0, 0, None], False), ([None], False), ([1, None, 0], True)],
)
def test_dynamic_sampling_keeps_groups_that_neither_always_nor_never_resolve(outcomes, kept):
    assert informative(outcomes) is kept


# --- steps ------------------------------------------------------------------------------------

score = st.none() | st.sampled_from([1.0, -1.0]) | reward
attempt = st.tuples(st.none() | outcome, st.lists(score, max_size=4))


@given(group=st.lists(attempt, max_size=6), coef=st.sampled_from([0.0, 0.5, 1.0]))
def test_step_advantages_are_z_scores_per_index(group, coef):
    outcomes, scores = [o for o, _ in group], [s for _, s in group]
    turns = [[10 + 3 * k for k in range(len(row))] for row in scores]  # ids need not be indices
    given_scores = [
        {turn: s for turn, s in zip(ids, row, strict=True) if s is not None}
        for ids, row in zip(turns, scores, strict=True)
    ]
    found = step_advantages(step_rewards(outcomes, turns, given_scores, coef=coef))
    wanted = paper.step_advantages(outcomes, scores, coef)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a == pytest.approx(b, rel=1e-9, abs=1e-6)


def test_a_step_nobody_else_reached_is_neutral_and_not_its_raw_reward():
    found = step_advantages([[1.0, 1.0, 2.0], [-1.0, -1.0], None])
    assert found[0][2] == 0.0
    assert found[0][0] > 0 > found[1][0] and found[2] is None


def test_a_failed_judge_is_neutral():
    rewards = step_rewards([1.0, 1.0, 1.0], [[0], [0], [0]], [{0: 0.8}, {0: 0.6}, {}])
    assert rewards[2] == pytest.approx([1.7])
    assert step_rewards([1.0, None], [[0, 2], [0]], [{}, {0: 1.0}]) == [[1.0, 1.0], None]


# --- reward terms -----------------------------------------------------------------------------


@given(st.integers(0, 300), st.integers(1, 200), st.integers(1, 200))
def test_overlong_is_the_papers_formula(tokens, limit, buffer):
    buffer = min(limit, buffer)
    wanted = paper.overlong(tokens, limit, buffer)
    assert overlong(tokens, limit=limit, buffer=buffer) == pytest.approx(wanted)


def test_the_length_term_rewards_only_what_resolves_for_being_short():
    assert length_rewards([10, 20, 30, 10], [True, True, True, False]) == [0.5, 0.0, -0.5, 0.0]
    assert length_rewards([30, 10], [False, False]) == [-0.5, 0.0]
    assert length_rewards([7, 7], [True, False]) == [0.0, 0.0]
    assert length_rewards([], []) == []
