from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from patchwright.recipes.cheats import attempted_cheats
from patchwright.recipes.evaluate import result
from patchwright.recipes.rl import RlConfig, choose, policy_samples
from patchwright.recipes.sft import SftConfig, sft_samples
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
