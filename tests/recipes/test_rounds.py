"""Rounds of attempts with any durations: each group is trained once, whole, and never too old."""

import asyncio
import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.errors import InfraError
from patchwright.recipes.rounds import Rounds
from patchwright.recipes.schedule import Pace, Schedule
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


def everything(groups, steps):
    return sorted({job.group for step in range(1, steps + 1) for job in jobs_of(groups)(step)})


class World:
    """Attempts that take as many turns of the event loop as they are told; a store and a journal that outlive
    runs; a trainer that takes some turns too."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.version, self.begun, self.started = 0, {}, []
        self.batches, self.most, self.now, self.while_training = {}, 0, 0, 0

    async def make(self, job, step):
        assert job.id not in self.begun, "made twice"
        begun = self.version
        self.started.append((step, job.group))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(self.draw.choice([1, 2, 5, 40])):
                await asyncio.sleep(0)
        finally:
            self.now -= 1
        self.begun[job.id] = begun

    def have(self, step):
        return {name: begun for name, begun in self.begun.items() if name.startswith(f"r{step}-")}

    async def train(self):
        made = len(self.begun)
        for _ in range(self.draw.choice([1, 30])):
            await asyncio.sleep(0)
        self.while_training += len(self.begun) - made
        self.version += 1


def rounds_of(world, pace, **options):
    done = world.version
    return Rounds(
        pace=pace,
        jobs=jobs_of(pace.size),
        make=world.make,
        have=world.have,
        concurrency=7,
        done=done,
        taken=[name for step in range(1, done + 1) for name in world.batches[step]],
        **options,
    )


def play(world, pace, *, stop_in=None, **options):
    """Play a run from where it stopped; `stop_in` cuts it in the middle of that step's waiting."""

    async def run():
        async with rounds_of(world, pace, **options) as rounds:
            for step in range(world.version + 1, pace.steps + 1):
                if step == stop_in:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0):
                            world.batches[step] = await rounds.take(world.batches.get(step))
                    return
                world.batches[step] = await rounds.take(world.batches.get(step))
                for job in (job for home in range(1, pace.steps + 1) for job in jobs_of(pace.size)(home)):
                    whole = job.group not in world.batches[step] or job.id in world.begun
                    assert whole, "a group that is not whole"
                await world.train()
                rounds.publish()

    asyncio.run(run())
    assert world.now == 0


def ages(world):
    """How old each group was when it was trained: by its first attempt."""
    return [
        step - 1 - min(world.begun[f"{name}-{k}"] for k in range(SIZE))
        for step, names in world.batches.items()
        for name in names
    ]


paces = st.builds(
    Pace,
    steps=st.just(5),
    size=st.integers(1, 4),
    staleness=st.integers(0, 3),
    ahead=st.none() | st.integers(1, 5),
)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), pace=paces)
def test_every_group_is_trained_once_whole_and_never_too_old(seed, pace):
    world = World(seed)
    play(world, pace)
    trained = [name for names in world.batches.values() for name in names]
    assert sorted(trained) == everything(pace.size, pace.steps)
    assert all(len(names) == pace.size for names in world.batches.values())
    assert max(ages(world)) <= pace.staleness and min(ages(world)) >= 0
    assert world.most <= 7


def test_without_staleness_a_step_trains_on_its_own_round_and_nothing_runs_beside_it():
    world = World(1)
    play(world, Pace(steps=3, size=4))
    assert world.batches == {step: [f"r{step}-g{g}" for g in range(4)] for step in (1, 2, 3)}
    assert world.while_training == 0


def test_attempts_go_on_while_the_trainer_works():
    worlds = [World(seed) for seed in range(10)]
    for world in worlds:
        play(world, Pace(steps=5, size=4, staleness=1))
    assert sum(world.while_training for world in worlds) > 100
    found = [age for world in worlds for age in ages(world)]
    assert set(found) == {0, 1}


def test_groups_are_started_in_their_order_and_only_as_many_ahead_as_allowed():
    for ahead, allowed in ((2, 2), (None, 4), (9, 4)):
        world = World(1)
        play(world, Pace(steps=3, size=4, staleness=1, ahead=ahead))
        homes = [(step, group) for step, group in world.started]
        assert homes == sorted(homes), "whatever finished first"
        schedule = Schedule(
            pace=Pace(steps=3, size=4, staleness=1, ahead=ahead),
            groups=lambda n: {f"{n}-{k}": ["a"] for k in range(4)},
        )
        assert len(list(schedule.startable())) == 4 + allowed


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), stop=st.integers(1, 5), pace=paces)
def test_a_run_cut_anywhere_loses_no_group_and_trains_none_twice(seed, stop, pace):
    world = World(seed)
    play(world, pace, stop_in=stop)
    before = {step: list(names) for step, names in world.batches.items()}
    play(world, pace)
    assert {step: world.batches[step] for step in before} == before, "steps that took their groups keep them"
    trained = [name for names in world.batches.values() for name in names]
    assert sorted(trained) == everything(pace.size, pace.steps)
    assert len(world.begun) == pace.steps * pace.size * SIZE and max(ages(world)) <= pace.staleness


def stuck(patience, seconds=60):
    """A run whose first group takes for ever, until it is let go after the third step; the groups by step."""

    async def run():
        free, world = asyncio.Event(), World(3)

        async def make(job, step):
            if job.id == "r1-g0-0":
                await free.wait()
            await world.make(job, step)

        pace, found = Pace(steps=4, size=2, staleness=1), {}
        options = {"jobs": jobs_of(2), "concurrency": 7, "patience": patience}
        async with Rounds(pace=pace, make=make, **options) as rounds:
            for step in range(1, 5):
                if step == 4:
                    free.set()
                found[step] = await rounds.take()
                world.version += 1
                rounds.publish()
        return found

    return asyncio.run(asyncio.wait_for(run(), seconds))


def test_a_straggler_holds_no_step_past_the_patience_and_is_trained_when_it_comes():
    found = stuck(0.01)
    assert all("r1-g0" not in found[step] for step in (1, 2, 3)) and "r1-g0" in found[4]
    assert sorted(name for names in found.values() for name in names) == everything(2, 4)
    with pytest.raises(TimeoutError):
        stuck(float("inf"), seconds=2)


def test_an_attempt_that_others_cancel_is_a_fault():
    async def make(job, step):
        raise asyncio.CancelledError

    async def run():
        async with Rounds(pace=Pace(steps=1, size=1), jobs=jobs_of(1), make=make, concurrency=1) as rounds:
            await rounds.take()

    with pytest.raises(InfraError, match="r1-g0-0 was cancelled by others"):
        asyncio.run(asyncio.wait_for(run(), 60))


def test_a_fault_of_the_machinery_surfaces_and_leaves_nothing_running():
    world = World(0)

    async def make(job, step):
        if job.id == "r1-g1-0":
            raise OSError("disk full")
        await world.make(job, step)

    async def run():
        pace = Pace(steps=2, size=3, staleness=1)
        async with Rounds(pace=pace, jobs=jobs_of(3), make=make, concurrency=4) as rounds:
            await rounds.take()

    with pytest.raises(OSError, match="disk full"):
        asyncio.run(run())
    assert world.now == 0
