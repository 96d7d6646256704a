from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchwright.errors import InfraError
from patchwright.train.samples import samples
from patchwright.types import Failure, Trajectory, Turn


@st.composite
def forests(draw):
    """Turns whose ids are all distinct, so that a token can be followed into the rows."""
    turns, fresh = [], iter(range(10_000))
    for index in range(draw(st.integers(1, 8))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        least = 1 if parent is None else 0
        prompt = [next(fresh) for _ in range(draw(st.integers(least, 3)))]
        completion = [next(fresh) for _ in range(draw(st.integers(0, 3)))]
        turns.append(
            Turn(
                id=index,
                parent=parent,
                prompt_ids=tuple(prompt),
                completion_ids=tuple(completion),
                logprobs=tuple(-float(token) for token in completion),
                train=draw(st.booleans()),
            )
        )
    return Trajectory(id="t", task_id="k", turns=tuple(turns))


def ids_of(trajectory, turn):
    before = () if turn.parent is None else ids_of(trajectory, trajectory.turns[turn.parent])
    return before + turn.prompt_ids + turn.completion_ids


@given(forests())
def test_every_trainable_token_trains_exactly_once(trajectory):
    rows = samples(trajectory, advantage=2.0)
    trained = Counter(t for row in rows for t, w in zip(row.token_ids, row.weights, strict=True) if w > 0)
    wanted = {t for turn in trajectory.turns if turn.train for t in turn.completion_ids}
    assert trained == Counter(wanted)


@given(forests())
def test_rows_are_chains_as_the_engine_saw_them(trajectory):
    rows = samples(trajectory, advantage=2.0)
    chains = {ids_of(trajectory, turn): turn for turn in trajectory.turns}
    assert all(row.token_ids in chains for row in rows)
    assert all(any(weight > 0 for weight in row.weights) for row in rows), "a row that trains nothing"
    sampled = {t for turn in trajectory.turns for t in turn.completion_ids}
    for row in rows:
        assert row.mask == tuple(int(t in sampled) for t in row.token_ids)
        assert row.logprobs == tuple(-float(t) if t in sampled else 0.0 for t in row.token_ids)
        assert row.advantages == tuple(2.0 if t in sampled else 0.0 for t in row.token_ids)


@given(forests())
def test_context_trains_at_most_once_and_at_its_own_weight(trajectory):
    rows = samples(trajectory, context_weight=0.25)
    sampled = {t for turn in trajectory.turns for t in turn.completion_ids}
    seen = Counter()
    for row in rows:
        assert row.weights[0] == 0.0
        for position, (token, weight) in enumerate(zip(row.token_ids, row.weights, strict=True)):
            if weight and token not in sampled:
                assert weight == 0.25
                seen[token] += 1
            if position and weight == 0 and token not in sampled:
                assert any(token in other.token_ids for other in rows if other is not row)
    assert all(count == 1 for count in seen.values())


def chain(*turns):
    return Trajectory(id="t", task_id="k", turns=turns)


def turn(index, parent, prompt, completion, train=True):
    zeros = (0.0,) * len(completion)
    return Turn(
        id=index, parent=parent, prompt_ids=prompt, completion_ids=completion, logprobs=zeros, train=train
    )


def test_turns_that_extend_each_other_are_one_row():
    (row,) = samples(chain(turn(0, None, (1, 2), (3,)), turn(1, 0, (4,), (5, 6))), context_weight=0.5)
    assert row.token_ids == (1, 2, 3, 4, 5, 6)
    assert row.weights == (0.0, 0.5, 1.0, 0.5, 1.0, 1.0)
    assert row.trajectory_id == "t"


def test_a_shared_prefix_trains_in_the_first_row_only():
    first, second = samples(chain(turn(0, None, (1,), (2,)), turn(1, 0, (), (3,)), turn(2, 0, (9,), (4,))))
    assert (first.token_ids, first.weights) == ((1, 2, 3), (0.0, 1.0, 1.0))
    assert (second.token_ids, second.weights) == ((1, 2, 9, 4), (0.0, 0.0, 0.0, 1.0))


def test_masked_turns_stay_in_the_row_without_weight():
    (row,) = samples(chain(turn(0, None, (1,), (2,), train=False), turn(1, 0, (3,), (4,))))
    assert (row.token_ids, row.weights) == ((1, 2, 3, 4), (0.0, 0.0, 0.0, 1.0))


def test_side_calls_and_empty_completions_make_no_row():
    main, title = turn(0, None, (1,), (2,)), turn(1, None, (5,), (6,), train=False)
    full = turn(2, 0, (7, 8), ())
    assert [row.token_ids for row in samples(chain(main, title, full))] == [(1, 2)]


def test_an_attempt_voided_by_infrastructure_trains_nothing():
    failure = Failure(kind="SandboxError", message="gone", stage="agent")
    turns = (turn(0, None, (1,), (2,)),)
    assert samples(Trajectory(id="t", task_id="k", turns=turns, failure=failure)) == []


def test_damaged_turns_are_refused():
    with pytest.raises(InfraError, match="turn 1 of trajectory 't' is damaged"):
        samples(chain(turn(0, None, (1,), (2,)), turn(1, 1, (3,), (4,))))
    with pytest.raises(InfraError, match="2 ids, 1 log-probs"):
        samples(chain(Turn(id=0, prompt_ids=(1,), completion_ids=(2, 3), logprobs=(0.0,))))
