"""Several engines as one: routing, failure and return, weights, bounds. The engines here are small real ones
that obey the protocol; what `Replicas` is over it cannot know."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from patchwright.engine.check import check_engine
from patchwright.engine.replicas import Bounds, Replicas
from patchwright.errors import ConfigError, EngineBusy, EngineError
from patchwright.types import Completion, Finish, Sampling, Weights

QUICK = Bounds(start=5, load=0.3, probe=0.3, every=0.05, absent=2, retry=0.01, most_retry=0.05, close=1)


@dataclass
class Machine:
    """Where one replica runs, across its lives."""

    starts: int = 0
    faults: list[Exception] = field(default_factory=list)
    """What its next starts raise."""
    engines: list[Echo] = field(default_factory=list)
    refuses: bool = False
    """Its engines take no weights."""

    async def start(self) -> Echo:
        self.starts += 1
        if self.faults:
            raise self.faults.pop(0)
        self.engines.append(Echo(self))
        return self.engines[-1]

    @property
    def engine(self) -> Echo:
        return self.engines[-1]


class Echo:
    """Answers a prompt by its last token, once for every token asked for."""

    max_context = 1000

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.version = 0
        self.asked: list[list[int]] = []
        self.loads: list[int] = []
        self.dead = self.hangs = self.slow_load = self.busy = self.closed = False
        self.streams_then_dies = False
        self.go = asyncio.Event()
        self.go.set()

    async def generate(self, prompt_ids, sampling, *, on_tokens=None):
        self.asked.append(list(prompt_ids))
        await self.go.wait()
        if self.hangs:
            await asyncio.sleep(60)
        if self.streams_then_dies and on_tokens is not None:
            on_tokens([prompt_ids[-1]])
            self.dead = True
        if self.dead or self.closed:
            raise EngineError("connection refused")
        if self.busy:
            raise EngineBusy("full")
        if prompt_ids[-1] == 666:
            raise EngineError("no such token")
        count = max(0, min(sampling.max_tokens, self.max_context - len(prompt_ids)))
        ids = (prompt_ids[-1],) * count
        if on_tokens is not None and ids:
            on_tokens(ids)
        finish = Finish.LENGTH
        if any(token in sampling.stop_ids for token in ids):
            ids, finish = ids[:1], Finish.STOP
        return Completion(token_ids=ids, logprobs=(-0.1,) * len(ids), finish=finish, version=self.version)

    async def load(self, weights):
        if self.slow_load:
            await asyncio.sleep(60)
        if self.dead or self.machine.refuses:
            raise EngineError("does not fit")
        self.loads.append(weights.version)
        self.version = weights.version

    async def close(self):
        self.closed = True


def fleet(test, count=2, bounds=QUICK, prepare=None):
    said: list[str] = []
    machines = [Machine() for _ in range(count)]
    if prepare:
        prepare(machines)

    async def main():
        replicas = await Replicas.open([m.start for m in machines], bounds=bounds, say=said.append)
        try:
            await test(replicas, machines)
        finally:
            await replicas.close()
        assert all(engine.closed for machine in machines for engine in machine.engines)

    asyncio.run(asyncio.wait_for(main(), 120))
    return said


async def until(true):
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


ONE = Sampling(max_tokens=1)


def test_it_is_an_engine():
    async def main():
        replicas = await Replicas.open([Machine().start, Machine().start], bounds=QUICK)
        weights = Weights(version=3, path="w")
        return await check_engine(replicas, lambda text: list(text.encode()), weights=weights)

    assert [result for result in asyncio.run(main()) if not result.ok] == []


def test_a_conversation_stays_and_others_are_spread():
    async def test(replicas, machines):
        first, second = [1] * 600, [2] * 600
        for _ in range(3):
            for prompt in (first, second):
                done = await replicas.generate(prompt, Sampling(max_tokens=40))
                prompt += [*done.token_ids, 7]
        seen = [{prompt[0] for prompt in m.engine.asked if len(prompt) > 1} for m in machines]
        assert sorted(seen, key=str) == [{1}, {2}]

    fleet(test)


def test_what_a_dead_replica_was_asked_is_answered_by_another_and_it_comes_back_with_the_weights():
    async def test(replicas, machines):
        await replicas.load(Weights(version=5, path="v5"))
        for machine in machines:
            machine.engine.go.clear()
        asked = [asyncio.create_task(replicas.generate([n], ONE)) for n in range(8)]
        await until(lambda: sum(len(m.engine.asked) for m in machines) >= 8)
        machines[0].engine.dead = True
        for machine in machines:
            machine.engine.go.set()
        done = await asyncio.gather(*asked)
        assert [answer.token_ids for answer in done] == [(n,) for n in range(8)]
        assert {answer.version for answer in done} == {5}
        await until(lambda: len(replicas.engines) == 2)
        assert machines[0].starts == 2 and machines[0].engine.loads == [5] and machines[0].engines[0].closed

    said = fleet(test)
    assert "1 of 2 are left: connection refused" in said[0] and said[-1] == "replica 0 is back"


def test_a_request_that_is_at_fault_takes_no_replica_out():
    async def test(replicas, machines):
        with pytest.raises(EngineError, match="no such token"):
            await replicas.generate([666], ONE)
        assert [m.starts for m in machines] == [1, 1] and len(replicas.engines) == 2

    assert fleet(test) == []


def test_what_was_streamed_is_not_begun_again():
    async def test(replicas, machines):
        for machine in machines:
            machine.engine.streams_then_dies = True
        told: list[int] = []
        with pytest.raises(EngineError, match="refused"):
            await replicas.generate([4], ONE, on_tokens=told.extend)
        assert told == [4]

    fleet(test)


def test_a_request_that_kills_engines_kills_two_at_most():
    async def test(replicas, machines):
        for machine in machines:
            machine.engine.dead = True
        with pytest.raises(EngineError, match="refused"):
            await replicas.generate([4], ONE)
        assert sum(machine.engine.closed or not machine.engine.dead for machine in machines) <= 2

    fleet(test, count=4, bounds=Bounds(probe=0.3, every=60))


def test_a_silent_replica_is_found_and_what_it_had_is_asked_elsewhere():
    async def test(replicas, machines):
        machines[0].engine.hangs = True
        asked = [asyncio.create_task(replicas.generate([n], ONE)) for n in range(4)]
        await asyncio.gather(*asked)
        await until(lambda: machines[0].starts == 2 and len(replicas.engines) == 2)

    assert "answers no probe" in fleet(test)[0]


def test_busy_is_said_when_all_are():
    async def test(replicas, machines):
        machines[0].engine.busy = True
        for n in range(4):
            assert (await replicas.generate([n], ONE)).token_ids == (n,)
        machines[1].engine.busy = True
        with pytest.raises(EngineBusy):
            await replicas.generate([1], ONE)
        assert len(replicas.engines) == 2

    fleet(test)


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_replica_that_does_not_take_the_weights_is_out_and_said(how):
    async def test(replicas, machines):
        machines[1].refuses, machines[1].engine.slow_load = how == "refuses", how == "hangs"
        machines[1].faults = [EngineError("not yet")] * 3
        await replicas.load(Weights(version=2, path="v2"))
        assert replicas.engines == [machines[0].engine] and replicas.version == 2
        assert {(await replicas.generate([n], ONE)).version for n in range(4)} == {2}
        machines[1].refuses = False
        await until(lambda: len(replicas.engines) == 2)
        assert machines[1].engine.version == 2

    said = fleet(test)
    assert "replica 1" in said[0] and "weights 2" in said[0]


def test_a_replica_that_failed_to_load_answers_nothing_while_another_still_loads():
    """Nobody knows what it has: part of the new weights, under the old version's number."""

    async def test(replicas, machines):
        slow, torn = (machine.engine for machine in machines)
        free, load = asyncio.Event(), slow.load

        async def late(weights):
            await free.wait()
            await load(weights)

        slow.load, machines[1].refuses = late, True
        torn.go.clear()
        early = [asyncio.create_task(replicas.generate([n], ONE)) for n in range(4)]
        await until(lambda: torn.asked)
        loading = asyncio.create_task(replicas.load(Weights(version=2, path="v2")))
        await until(lambda: replicas._replicas[1].life.failed)
        torn.go.set()
        assert [done.token_ids for done in await asyncio.gather(*early)] == [(n,) for n in range(4)]
        assert {prompt[0] for prompt in slow.asked} == {0, 1, 2, 3}
        count, slow.busy = len(torn.asked), True
        with pytest.raises(EngineBusy):
            await replicas.generate([4], ONE)
        assert len(torn.asked) == count
        free.set()
        await loading
        assert replicas.engines == [slow] and replicas.version == 2

    fleet(test, bounds=Bounds(every=60, retry=60))


def test_weights_that_nobody_takes_leave_the_old_ones():
    async def test(replicas, machines):
        await replicas.load(Weights(version=1, path="v1"))
        for machine in machines:
            machine.refuses = True
        with pytest.raises(
            EngineError, match=r"no replica took weights 2: replica 0 did not .*; replica 1 did"
        ):
            await replicas.load(Weights(version=2, path="v2"))
        assert len(replicas.engines) == 2 and replicas.version == 1
        assert (await replicas.generate([4], ONE)).version == 1

    fleet(test)


def test_weights_that_come_while_a_replica_returns_are_what_it_returns_with():
    async def test(replicas, machines):
        machines[1].faults = [EngineError("not yet")] * 3
        machines[1].engine.dead = True
        await until(lambda: len(replicas.engines) == 1)
        for version in (1, 2, 3):
            await replicas.load(Weights(version=version, path="v"))
        await until(lambda: len(replicas.engines) == 2)
        assert machines[1].engine.version == 3

    fleet(test)


def test_requests_wait_for_the_last_replica_to_return_but_not_for_ever():
    async def test(replicas, machines):
        machines[0].engine.dead = True
        assert (await replicas.generate([4], ONE)).token_ids == (4,)
        machines[0].faults = [EngineError("gone")] * 1000
        machines[0].engine.dead = True
        await until(lambda: not replicas.engines)
        with pytest.raises(EngineError, match="no replica of the engine has been up for"):
            await replicas.generate([4], ONE)

    fleet(test, count=1, bounds=Bounds(probe=0.3, every=0.05, absent=3, retry=0.01, most_retry=0.05))


def test_those_that_start_serve_and_the_others_are_tried_again():
    def prepare(machines):
        machines[0].faults = [EngineError("port in use")]

    async def test(replicas, machines):
        assert (await replicas.generate([4], ONE)).token_ids == (4,)
        await until(lambda: len(replicas.engines) == 2)

    assert "port in use" in fleet(test, prepare=prepare)[0]


@pytest.mark.parametrize("fault", [ConfigError("no such model"), EngineError("no memory")])
def test_a_fleet_of_which_none_starts_does_not_open(fault):
    def prepare(machines):
        for machine in machines:
            machine.faults = [fault]

    async def never(replicas, machines):
        raise AssertionError

    with pytest.raises(type(fault), match=str(fault)):
        fleet(never, prepare=prepare)


def test_one_mistake_closes_those_that_started():
    machines = [Machine(), Machine(faults=[ConfigError("no such model")])]
    with pytest.raises(ConfigError):
        asyncio.run(Replicas.open([machine.start for machine in machines], bounds=QUICK))
    assert machines[0].engine.closed


def test_who_cancels_is_heard_and_closing_fails_what_is_under_way():
    async def test(replicas, machines):
        for machine in machines:
            machine.engine.hangs = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(replicas.generate([1], ONE), 0.05)
        pending = asyncio.create_task(replicas.generate([1], ONE))
        await asyncio.sleep(0.02)
        await replicas.close()
        with pytest.raises(EngineError):
            await pending

    fleet(test, bounds=Bounds(every=60))
