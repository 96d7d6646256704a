from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchwright.recipes.cheats import attempted_cheats
from patchwright.recipes.evaluate import result
from patchwright.recipes.policy import rewards, turn_scores
from patchwright.recipes.rl import RlConfig, choose, policy_samples
from patchwright.recipes.sft import SftConfig, sft_samples
from patchwright.train.algorithm import Algorithm, AlgorithmConfig
from patchwright.types import Failure, Grade, GradeState, Outcome, Task, Tests, Trajectory, Turn

_STATES = {Outcome.RESOLVED: GradeState.RESOLVED, Outcome.UNRESOLVED: GradeState.TESTS_FAILED}


def task(name: str) -> Task:
    return Task(id=name, prompt="p", tests=Tests(command="true", fail_to_pass=("t",)))


def attempt(task_id: str, k: int, outcome: Outcome, findings: tuple[str, ...] = ()) -> Trajectory:
    turn = Turn(id=0, prompt_ids=(1, 2), completion_ids=(3, 4), logprobs=(-0.5, -0.1))
    void = outcome is Outcome.VOID
    return Trajectory(
        id=f"{task_id}-{k}",
        task_id=task_id,
        group=f"g-{task_id}",
        turns=(turn,),
        grade=None if void else Grade(state=_STATES[outcome], findings=findings),
        failure=Failure(kind="SandboxError", message="gone", stage="agent") if void else None,
    )


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_every_task_is_drawn_equally_often_in_a_pass(count: int, per_step: int, seed: int):
    tasks = [task(str(i)) for i in range(count)]
    per_pass = count // min(count, per_step)
    drawn = Counter(t.id for step in range(1, per_pass + 1) for t in choose(tasks, step, per_step, seed))
    assert max(drawn.values()) == 1
    assert choose(tasks, 3, per_step, seed) == choose(tasks, 3, per_step, seed)


def test_void_attempts_have_no_sample_and_no_say():
    mixed = [Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.VOID]
    rows = policy_samples([attempt("a", k, o) for k, o in enumerate(mixed)], RlConfig())
    without = policy_samples([attempt("a", k, o) for k, o in enumerate(mixed[:2])], RlConfig())
    assert rows == without and len(rows) == 2
    good, bad = (row.advantages[-1] for row in rows)
    assert good > 0 > bad


def test_flat_groups_carry_no_gradient():
    assert policy_samples([attempt("a", k, Outcome.RESOLVED) for k in range(4)], RlConfig()) == []
    assert policy_samples([attempt("a", k, Outcome.VOID) for k in range(4)], RlConfig()) == []


WORTH = {Outcome.RESOLVED: 1.0, Outcome.UNRESOLVED: -1.0}
GOOD, BAD, VOID = Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.VOID


def turn(index: int, count: int, train: bool = True) -> Turn:
    return Turn(id=index, prompt_ids=(1,), completion_ids=(3,) * count, logprobs=(-0.5,) * count, train=train)


def group(*attempts: tuple[Outcome, list[int]], scores: tuple[tuple[float | None, ...], ...] = ()):
    """Attempts by outcome and lengths of their turns."""
    made = []
    for k, (outcome, lengths) in enumerate(attempts):
        plain = attempt("a", k, outcome)
        chain = tuple(replace(turn(i, n), parent=i - 1 if i else None) for i, n in enumerate(lengths))
        given = scores[k] if scores else ()
        grade = replace(plain.grade, turn_scores=given) if plain.grade else None
        made.append(replace(plain, turns=chain, grade=grade))
    return made


def config(**algorithm: object) -> RlConfig:
    return RlConfig(algorithm=AlgorithmConfig.model_validate(algorithm))


def test_a_reward_is_its_outcome_and_nothing_else_by_default():
    made = group((GOOD, [5]), (BAD, [90_000]), (VOID, [2]))
    made[1] = replace(made[1], grade=replace(made[1].grade, findings=("protected: conftest.py",)))
    assert rewards(made, WORTH, Algorithm(), "unresolved") == [1.0, -1.0, None]


def test_terms_of_the_reward_add_up_and_void_is_in_none_of_them():
    made = group((GOOD, [10, 20]), (GOOD, [90]), (BAD, [10]), (VOID, [1000]), (GOOD, [150]))
    made[4] = replace(made[4], grade=replace(made[4].grade, findings=("protected: conftest.py",)))
    terms = Algorithm(length_coef=1.0, overlong_limit=100, overlong_buffer=20, integrity_penalty=0.25)
    found = rewards(made, WORTH, terms, "unresolved")
    lengths = [0.5 - (n - 10) / 140 for n in (30, 90, 10, 150)]
    assert found[3] is None
    assert found[0] == pytest.approx(1 + lengths[0])
    assert found[1] == pytest.approx(1 + lengths[1] - 0.5)
    assert found[2] == pytest.approx(-1 + 0)
    assert found[4] == pytest.approx(-1 + lengths[3] - 1 - 0.25), "flagged: unresolved, and the penalty"
    assert rewards(made, WORTH, terms, "keep")[4] == pytest.approx(found[4] + 2)
    assert attempted_cheats(made) == pytest.approx(1 / 4)


def test_turn_scores_are_averaged_and_an_attempt_nobody_judged_gains_and_loses_nothing():
    made = group((GOOD, [2, 2]), (GOOD, [2]), (GOOD, [2]), scores=((1.0, None), (-1.0,), ()))
    assert turn_scores(made[0]) == {0: 1.0}
    assert rewards(made, WORTH, Algorithm(prm_coef=0.5), "keep") == [1.5, 0.5, 1.0]


def test_step_wise_every_turn_has_its_own_advantage_and_lone_turns_none():
    scores = ((1.0, 1.0, 1.0), (-1.0, 1.0), ())
    made = group((GOOD, [2, 1, 3]), (GOOD, [2, 1]), (VOID, [1]), scores=scores)
    first, second = policy_samples(made, config(name="step"))
    assert first.advantages == (0, *first.advantages[1:3], 0, 0, 0, 0, 0, 0)
    assert first.advantages[1] == first.advantages[2] == pytest.approx(1, abs=1e-3)
    assert second.advantages[1] == pytest.approx(-1, abs=1e-3)
    assert policy_samples(made[:1], config(name="step")) == []


def test_dynamic_sampling_leaves_groups_of_one_outcome_out_of_the_rounds_statistics():
    flat, mixed = group((GOOD, [2]), (GOOD, [3])), group((GOOD, [2]), (BAD, [2]))
    flat = [replace(t, id=f"f-{t.id}", group="flat") for t in flat]
    plain = policy_samples([*flat, *mixed], config(name="reinforce++"))
    kept = policy_samples([*flat, *mixed], config(name="reinforce++", dynamic_sampling=True))
    assert len(plain) == 4
    assert kept == policy_samples(mixed, config(name="reinforce++"))
    longer = config(name="dapo", length_coef=1.0)
    assert policy_samples(flat, longer) == [], "outcomes decide, not lengths"


def test_attempts_without_an_advantage_are_rows_only_where_the_loss_needs_them():
    flat = group((GOOD, [2]), (GOOD, [2]))
    assert policy_samples(flat, config()) == []
    pulled = policy_samples(flat, config(kl="k3"))
    assert [sum(row.weights) for row in pulled] == [2, 2]
    counted = policy_samples(flat, config(name="dr_grpo"))
    assert [sum(row.weights) for row in counted] == [0, 0]


def test_result_counts_void_apart():
    attempts = [attempt("a", k, Outcome.RESOLVED) for k in range(4)]
    attempts += [attempt("b", k, Outcome.UNRESOLVED) for k in range(4)]
    found = result([*attempts, attempt("b", 9, Outcome.VOID)])
    assert (found.resolved, found.total, found.void) == (4, 8, 1)
    assert found.pass_at_1 == 0.5 and found.low < 0.5 < found.high


def cheated(k: int) -> Trajectory:
    return attempt("a", k, Outcome.RESOLVED, findings=("protected: conftest.py",))


def test_a_cheat_earns_nothing_unless_told():
    group = [attempt("a", 0, Outcome.RESOLVED), cheated(1)]
    good, bad = (row.advantages[-1] for row in policy_samples(group, RlConfig()))
    assert good > 0 > bad
    assert policy_samples(group, RlConfig(on_cheat="keep")) == []  # all alike: no gradient
    assert len(sft_samples(group, SftConfig())) == 1
    assert len(sft_samples(group, SftConfig(on_cheat="keep"))) == 2


def test_the_cheat_rate_is_over_graded_attempts():
    found = result([attempt("a", 0, Outcome.UNRESOLVED), cheated(1), attempt("a", 2, Outcome.VOID)])
    assert found.cheat_rate == 0.5 and found.record()["cheat_rate"] == 0.5
    assert found.resolved == 1  # the verdict stays what the tests say
    assert attempted_cheats([]) == 0.0
