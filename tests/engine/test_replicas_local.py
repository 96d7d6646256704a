"""Two local engines, each in a process of its own, as one: killed, restarted, compared with the trainer."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from patchwright.engine.config import EngineConfig
from patchwright.engine.process import ProcessEngine
from patchwright.engine.replicas import Bounds, Replicas
from patchwright.errors import EngineError
from patchwright.recipes.engines import open_engine, starts
from patchwright.recipes.parity import check_parity
from patchwright.train.config import TrainConfig
from patchwright.train.worker import TrainerProcess
from patchwright.types import Sampling, Weights

PROMPT = list(range(3, 60))


def test_a_killed_process_loses_nothing_and_returns_with_the_weights(make_model):
    before, after = make_model(seed=0), make_model(seed=1)
    said: list[str] = []

    async def main():
        bounds = Bounds(every=0.1, retry=0.05)
        found = starts(before, EngineConfig(replicas=2))
        replicas = await Replicas.open(found, bounds=bounds, say=said.append)
        try:
            await replicas.load(Weights(version=1, path=str(after)))
            greedy = Sampling(max_tokens=40, temperature=0.0)
            right = await replicas.generate(PROMPT, greedy)
            asked = [asyncio.create_task(replicas.generate(PROMPT, greedy)) for _ in range(6)]
            await asyncio.sleep(0)
            victim = replicas.engines[0]
            assert isinstance(victim, ProcessEngine)
            os.kill(victim.pid, signal.SIGKILL)
            done = await asyncio.gather(*asked)
            assert {answer.token_ids for answer in done} == {right.token_ids}
            async with asyncio.timeout(300):
                while len(replicas.engines) < 2 or victim in replicas.engines:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            for engine in replicas.engines:
                again = await engine.generate(PROMPT, greedy)
                assert (again.token_ids, again.version) == (right.token_ids, 1)
        finally:
            await replicas.close()

    asyncio.run(main())
    assert "killed by SIGKILL" in said[0] and said[-1] == "replica 0 is back"


def test_replicas_draw_apart_and_each_is_compared_with_the_trainer(make_model):
    right, wrong = make_model(seed=0), make_model(seed=1)

    async def main():
        async with (
            open_engine(right, EngineConfig(replicas=2)) as engine,
            TrainerProcess(right, TrainConfig()) as trainer,
        ):
            assert isinstance(engine, Replicas)
            drawn = [await one.generate(PROMPT, Sampling(max_tokens=30)) for one in engine.engines]
            assert drawn[0].token_ids != drawn[1].token_ids
            assert await check_parity(engine, trainer, 1e-3) < 1e-3
            await engine.engines[1].load(Weights(version=0, path=str(wrong)))
            with pytest.raises(EngineError, match="disagree"):
                await check_parity(engine, trainer, 1e-3)

    asyncio.run(main())


def test_one_that_is_alone_returns_too_where_nobody_trains(make_model):
    said: list[str] = []

    async def main():
        async with open_engine(make_model(), EngineConfig(), updates=False, say=said.append) as engine:
            greedy = Sampling(max_tokens=5, temperature=0.0)
            right = await engine.generate(PROMPT, greedy)
            assert isinstance(engine, Replicas)
            (victim,) = engine.engines
            assert isinstance(victim, ProcessEngine)
            os.kill(victim.pid, signal.SIGKILL)
            again = await engine.generate(PROMPT, greedy)
            assert again.token_ids == right.token_ids

    asyncio.run(main())
    assert "replica 0 is out, 0 of 1 are left" in said[0] and said[-1] == "replica 0 is back"
