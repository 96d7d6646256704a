"""Attempts as slime's samples, and their rewards group by group: pure, with slime's `Sample` stood in for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integrations.slime_stand_in import Sample, make_args

from patchwright.errors import ConfigError
from patchwright.integrations.slime import post_process, reward
from patchwright.integrations.slime_args import overruled, sampling, settings
from patchwright.integrations.slime_groups import reward_of, uninformative
from patchwright.integrations.slime_rows import aborted, attempt_of, fill
from patchwright.types import Grade, GradeState, Sampling, Trajectory, Turn

ARGS = make_args()


def turn(id: int, parent: int | None = None, sampled: int = 2, **more: Any) -> Turn:
    ids = tuple(range(100 * (id + 1), 100 * (id + 1) + sampled))
    logprobs = tuple(-0.1 * (id + 1) for _ in ids)
    known = {"prompt_ids": (id + 1, id + 1), "completion_ids": ids, "logprobs": logprobs}
    return Turn(id=id, parent=parent, **{**known, **more})


def attempt(*turns: Turn, resolved: bool = True, **grade: Any) -> Trajectory:
    state = GradeState.RESOLVED if resolved else GradeState.TESTS_FAILED
    return Trajectory(
        id="a", task_id="t", turns=turns, exit="submitted", grade=Grade(state=state, **grade), seconds=9.0
    )


def samples_of(
    made: Trajectory, *, args: Any = ARGS, group: int = 0, index: int = 0, step_wise: bool = False
) -> list[Sample]:
    base = Sample(group_index=group, index=index, label="t")
    found = fill(base, made, lambda ids: str(list(ids)), step_wise=step_wise)
    for sample in found:
        sample.reward = reward_of(args, sample)
    return found


def void(index: int, group: int = 0) -> Sample:
    (sample,) = aborted(Sample(group_index=group, index=index, label="t"), "no box")
    sample.reward = 0.0
    return sample


FORKED = (turn(0), turn(1, parent=0), turn(2, parent=0), turn(3))
"""Three rows: a chain, a fork from its first turn, and a new start."""


def test_an_attempt_with_forks_is_siblings_of_one_rollout():
    made = samples_of(attempt(*FORKED), index=5)
    assert [sample.rollout_id for sample in made] == [5, 5, 5]
    assert [sample.tokens for sample in made] == [
        [1, 1, 100, 101, 2, 2, 200, 201],
        [1, 1, 100, 101, 3, 3, 300, 301],
        [4, 4, 400, 401],
    ]
    assert [sample.loss_mask for sample in made] == [[1, 1, 0, 0, 1, 1], [1, 1], [1, 1]]
    assert made[1].rollout_log_probs == pytest.approx([-0.3, -0.3])
    assert made[0].response == "[100, 101, 2, 2, 200, 201]"
    assert len({id(sample.metadata) for sample in made}) == 3 and made[0] is not made[1]


def test_step_wise_each_turn_has_its_context_and_itself():
    made = samples_of(attempt(*FORKED), step_wise=True)
    assert [sample.metadata["patchwright"]["turn"] for sample in made] == [0, 1, 2, 3]
    assert [len(sample.tokens) for sample in made] == [4, 8, 8, 4]
    assert [sample.response_length for sample in made] == [2, 2, 2, 2]
    assert all(all(sample.loss_mask) for sample in made)


@pytest.mark.parametrize("step_wise", [False, True])
def test_an_attempt_that_trains_nothing_is_judged_all_the_same(step_wise: bool):
    (made,) = samples_of(attempt(turn(0, train=False), resolved=False), step_wise=step_wise)
    assert made.response_length == 1 and made.loss_mask == [0] and len(made.tokens) == 2
    assert made.status is Sample.Status.COMPLETED and made.remove_sample and made.reward == -1.0


def test_attempts_count_once_however_many_samples_they_are():
    resolved = samples_of(attempt(*FORKED), index=0)
    others = [s for i in (1, 2) for s in samples_of(attempt(turn(0), resolved=False), index=i)]
    raw, shares = post_process(make_args(grpo_std_normalization=False), [*resolved, *others])
    assert raw == [1.0, 1.0, 1.0, -1.0, -1.0]
    assert shares == pytest.approx([4 / 3] * 3 + [-2 / 3] * 2)


def test_void_attempts_are_in_no_statistics():
    """Seven failures and a void one: nothing is learned, and the group is flat."""
    failed = [samples_of(attempt(turn(0), resolved=False), index=i)[0] for i in range(7)]
    raw, shares = post_process(ARGS, [*failed, void(7)])
    assert shares == [0.0] * 8 and raw == [-1.0] * 8
    assert uninformative(ARGS, [*failed, void(7)]) == "same_reward_-1.0"
    good = samples_of(attempt(turn(0)), index=8)
    _, with_void = post_process(ARGS, [failed[0], *good, void(9)])
    _, without = post_process(ARGS, [failed[0], *good])
    assert with_void == [*without, 0.0]
    assert uninformative(ARGS, [failed[0], *good, void(9)]) == ""
    assert uninformative(ARGS, [good[0], void(9)]) == "void"


def test_groups_are_told_by_their_index_and_not_by_their_place():
    samples = [samples_of(attempt(turn(0), resolved=i < 2), group=i % 2, index=i)[0] for i in range(4)]
    _, shares = post_process(make_args(grpo_std_normalization=False), samples)
    assert shares == [1.0, 1.0, -1.0, -1.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 3)), min_size=1, max_size=12))
def test_advantages_of_every_group_add_up_to_nothing(drawn: list[tuple[int, bool, int]]):
    samples = [
        sample
        for index, (group, resolved, chains) in enumerate(drawn)
        for sample in samples_of(
            attempt(*(turn(at) for at in range(chains)), resolved=resolved), group=group, index=index
        )
    ]
    _, shares = post_process(ARGS, samples)
    first = {s.rollout_id: (s.group_index, share) for s, share in zip(samples, shares, strict=True)}
    for group in {group for group, _ in first.values()}:
        assert sum(share for at, share in first.values() if at == group) == pytest.approx(0.0, abs=1e-9)


def test_slime_flags_say_what_an_advantage_is():
    pair = [samples_of(attempt(turn(0), resolved=i == 0), index=i)[0] for i in range(2)]
    assert post_process(make_args(rewards_normalization=False), pair)[1] == [1.0, -1.0]
    assert post_process(make_args(advantage_estimator="ppo"), pair)[1] == [1.0, -1.0]
    assert post_process(make_args(advantage_estimator="reinforce_plus_plus_baseline"), pair)[1] == [1.0, -1.0]
    assert post_process(make_args(grpo_std_normalization=False), pair)[1] == [1.0, -1.0]
    assert post_process(ARGS, pair)[1] == pytest.approx([0.7071, -0.7071], abs=1e-3)


def test_samples_of_others_are_normalised_by_their_own_rewards():
    """As slime's contract tests call it: no metadata, a bare namespace."""
    samples = [Sample(index=0, reward=0.5), Sample(index=1, reward=1.5)]
    raw, shares = post_process(type("Args", (), {})(), samples)
    assert raw == [0.5, 1.5] and shares == pytest.approx([-0.7071, 0.7071], abs=1e-3)


def config(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "line.toml"
    file.write_text(text)
    return make_args(patchwright=str(file))


def test_step_wise_scores_go_to_their_own_turns(tmp_path: Path):
    args = config(tmp_path, '[rl.algorithm]\nname = "step"\nprm_coef = 1.0\n')
    good = samples_of(
        attempt(turn(0), turn(1, parent=0), turn_scores=(1.0, None)), args=args, index=0, step_wise=True
    )
    bad = samples_of(
        attempt(turn(0), turn(1, parent=0), turn_scores=(0.0, -1.0)), args=args, index=1, step_wise=True
    )
    raw, shares = post_process(args, [*good, *bad])
    assert raw == [1.0] * 4  # both resolved, and turn 1 of the first has the mean of the others' scores there
    assert shares == pytest.approx([1.0, 0.0, -1.0, 0.0], abs=1e-3)
    assert uninformative(args, [*good, *bad]) == ""
    with pytest.raises(ConfigError, match=r"slime\.generate"):
        post_process(args, [Sample(index=0, reward=0.5), Sample(index=1, reward=1.5)])


def test_what_a_group_says_of_an_attempt_is_in_its_reward(tmp_path: Path):
    args = config(tmp_path, "[rl.algorithm]\nlength_coef = 1.0\n")
    short = samples_of(attempt(turn(0, sampled=2)), args=args, index=0)
    long = samples_of(attempt(turn(0, sampled=6)), args=args, index=1)
    raw, _ = post_process(args, [*short, *long])
    assert [one.reward for one in (*short, *long)] == [1.0, 1.0] and raw == [1.5, 0.5]


def test_a_flagged_attempt_earns_nothing(tmp_path: Path):
    import asyncio

    flagged = samples_of(attempt(turn(0), findings=("protected: conftest.py",)))
    assert flagged[0].reward == -1.0
    keep = config(tmp_path, '[rl]\non_cheat = "keep"\nreward_unresolved = 0.0\n')
    assert asyncio.run(reward(keep, flagged)) == [1.0]


def test_what_a_reward_depends_on_survives_the_way_through_json():
    import json

    made = attempt(*FORKED, turn_scores=(0.5, None), findings=("x",), scores={"verifier": 0.25})
    (sample, *_) = samples_of(made)
    sample.metadata = json.loads(json.dumps(sample.metadata))
    back = attempt_of(sample)
    assert back is not None and back.grade is not None
    assert (back.outcome, back.grade.turn_scores, back.grade.findings) == (made.outcome, (0.5, None), ("x",))
    assert [len(t.completion_ids) for t in back.turns] == [2, 2, 2, 2]


def test_sampling_is_taken_as_slime_says_it():
    params = {"temperature": 0.8, "top_k": -1, "stop": "END", "stop_token_ids": [2, 3], "max_new_tokens": 9}
    assert sampling({**params, "sampling_seed": 4, "skip_special_tokens": False}) == Sampling(
        max_tokens=9, temperature=0.8, stop=("END",), stop_ids=(2, 3), seed=4
    )


def test_keys_that_slime_decides_are_named(tmp_path: Path):
    args = config(
        tmp_path, "[line.sampling]\ntemperature = 0.5\n[line]\nretries = 1\n[rl.algorithm]\nclip_high = 0.3\n"
    )
    assert overruled(settings(args)) == ["line.sampling", "rl.algorithm.clip_high"]
    assert overruled(settings(make_args())) == []
