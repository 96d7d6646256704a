"""Rounds of attempts with any durations: what is trained never depends on them."""

import asyncio
import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.recipes.rounds import Rounds
from patchwright.rollout.rollout import Job
from patchwright.types import Task, Tests

SIZE = 3


def task(name):
    return Task(id=name, prompt="p", tests=Tests(command="true", fail_to_pass=("t",)))


def jobs_of(groups):
    """A round's jobs, by its number."""

    def jobs(step):
        names = [f"r{step}-g{g}" for g in range(groups)]
        return [Job(id=f"{name}-{k}", group=name, task=task(name)) for name in names for k in range(SIZE)]

    return jobs


class World:
    """Attempts that take as many turns of the event loop as they are told, and a store that outlives runs."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.stored, self.started, self.most, self.now = {}, [], 0, 0

    async def make(self, job, step):
        assert job.id not in self.stored, "made twice"
        self.started.append((step, job.group))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(self.draw.choice([1, 2, 5, 40])):
                await asyncio.sleep(0)
        finally:
            self.now -= 1
        self.stored[job.id] = step

    def have(self, step):
        return {name for name, number in self.stored.items() if number == step}


def trained(world, groups, steps, *, stop_in=None, late=None, **bounds):
    """Play a run; the groups each round trains on. `stop_in` cuts it in the middle of that round."""
    late = {} if late is None else late
    rounds = Rounds(
        jobs=jobs_of(groups), make=world.make, have=world.have, last=steps, concurrency=7, **bounds
    )
    found = {}

    async def run():
        async with rounds:
            for step in range(1, steps + 1):
                if step == stop_in:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0):
                            await rounds.play(step, late.get(step - 1, ()))
                    return
                before = late.get(step - 1, ())
                now = await rounds.play(step, before, late.get(step))
                late[step] = now
                whole = {job.group for job in jobs_of(groups)(step)} - now
                found[step] = sorted({*before, *whole})
                for job in (*jobs_of(groups)(step), *(jobs_of(groups)(step - 1) if before else ())):
                    assert job.group not in found[step] or job.id in world.stored, "a group that is not whole"

    asyncio.run(run())
    return found


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), ahead=st.integers(0, 5), carry=st.integers(0, 4), groups=st.integers(1, 5))
def test_every_group_is_trained_once_and_at_most_one_round_late(seed, ahead, carry, groups):
    world = World(seed)
    found = trained(world, groups, 4, ahead=ahead, carry=carry)
    everything = [name for names in found.values() for name in names]
    assert sorted(everything) == sorted({job.group for s in (1, 2, 3, 4) for job in jobs_of(groups)(s)})
    assert all(int(name[1]) in (step, step - 1) for step, names in found.items() for name in names)
    assert all(found.values()), "a round trains on something"
    assert world.most <= 7 and world.now == 0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), ahead=st.integers(0, 5))
def test_starting_ahead_never_changes_what_a_round_trains_on(seed, ahead):
    found = trained(World(seed), 4, 3, ahead=ahead)
    assert found == {step: [f"r{step}-g{g}" for g in range(4)] for step in (1, 2, 3)}


def test_groups_are_started_in_their_order_and_only_as_many_ahead_as_allowed():
    world = World(1)
    trained(world, 4, 3, ahead=2)
    for step in (1, 2, 3):
        names = [group for number, group in world.started if number == step]
        assert names == sorted(names), "whatever finished first"
    first = world.started.index((1, "r1-g3"))
    early = [group for number, group in world.started[:first] if number == 2]
    assert not early, "the round's own come first"
    for step in (1, 2):
        last_own = max(i for i, (number, _) in enumerate(world.started) if number == step)
        before = {group for number, group in world.started[:last_own] if number == step + 1}
        assert before <= {f"r{step + 1}-g0", f"r{step + 1}-g1"}


def test_slow_groups_hold_a_round_up_only_without_carrying_over():
    """The share of slow groups that are trained is that of those sampled, early and late."""
    kept = [trained(World(seed), 5, 6, carry=2) for seed in range(20)]
    late = sum(int(name[1]) < step for found in kept for step, names in found.items() for name in names)
    assert late > 20
    assert all(len(names) >= 3 for found in kept for names in found.values())
    assert {len(found[6]) for found in kept} <= {5, 6, 7}, "the last round leaves nothing behind"


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), stop=st.integers(1, 4), carry=st.integers(0, 2), ahead=st.integers(0, 3))
def test_a_run_cut_anywhere_goes_on_with_the_same_rounds(seed, stop, carry, ahead):
    world, late = World(seed), {}
    before = trained(world, 3, 4, stop_in=stop, late=late, carry=carry, ahead=ahead)
    kept = dict(late)
    found = trained(world, 3, 4, late=late, carry=carry, ahead=ahead)
    assert {step: found[step] for step in before} == before, "closed rounds stay as they were"
    assert all(late[step] == kept[step] for step in kept)
    assert len(world.stored) == 4 * 3 * SIZE
    assert sorted(name for names in found.values() for name in names) == sorted(
        {job.group for s in (1, 2, 3, 4) for job in jobs_of(3)(s)}
    )


def test_a_fault_of_the_machinery_surfaces_and_leaves_nothing_running():
    world = World(0)

    async def make(job, step):
        if job.id == "r1-g1-0":
            raise OSError("disk full")
        await world.make(job, step)

    async def run():
        async with Rounds(jobs=jobs_of(3), make=make, have=world.have, last=2, concurrency=4) as rounds:
            await rounds.play(1)

    with pytest.raises(OSError, match="disk full"):
        asyncio.run(run())
    assert world.now == 0
