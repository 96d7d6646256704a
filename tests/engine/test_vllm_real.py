"""A real vLLM, its CPU build, with a tiny model: started here twice, sampled from, given new weights.

Runs where PATCHWRIGHT_VLLM names a Python that has vLLM (`make vllm` makes one); two servers start in about a
minute of processor time each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.grade.test_grader import TASK

from patchwright.agent.bash import BashAgent
from patchwright.engine.check import check_engine
from patchwright.engine.config import EngineConfig
from patchwright.engine.replicas import Replicas
from patchwright.recipes.agents import AgentConfig
from patchwright.recipes.assembly import open_line
from patchwright.recipes.broadcast import source
from patchwright.recipes.engines import open_engine
from patchwright.recipes.parity import check_parity
from patchwright.render import CHATML, Renderer
from patchwright.rollout.rollout import Job
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.train.checkpoint import write_new_model
from patchwright.train.config import ModelConfig, TrainConfig
from patchwright.train.model import new_model
from patchwright.train.tokenizer import train_tokenizer
from patchwright.train.worker import TrainerProcess
from patchwright.types import Outcome, Sample, Sampling, Weights

PYTHON = os.environ.get("PATCHWRIGHT_VLLM", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="NO VLLM IS TESTED: PATCHWRIGHT_VLLM names no Python that has it"),
]
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
ARGS = ["--enforce-eager", "--dtype", "float32", "--max-num-seqs", "16"]
ROW = Sample(
    token_ids=(5, 6, 7, 8),
    mask=(0, 1, 1, 1),
    logprobs=(0.0,) * 4,
    advantages=(1.0,) * 4,
    weights=(0, 1, 1, 1),
)
GREEDY = Sampling(max_tokens=16, temperature=0.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One model in two versions."""
    folder, made = tmp_path_factory.mktemp("models"), []
    tokenizer = train_tokenizer([TASK.prompt, "YES NO"] * 4, vocab_size=280)
    for seed in range(2):
        model = new_model(ModelConfig(layers=2, hidden_size=64, seed=seed), tokenizer)
        write_new_model(folder / f"v{seed}", model, tokenizer, chat_template=CHATML)
        made.append(folder / f"v{seed}")
    return made


class Fleet:
    """Two real servers, as one engine, for all tests of this file."""

    def __init__(self, models: list[Path], logs: Path) -> None:
        self.models, self.said = models, list[str]()
        self._runner = asyncio.Runner()
        config = EngineConfig(
            use="vllm",
            python=PYTHON,
            replicas=2,
            logs=str(logs),
            args=ARGS,
            max_context=1000,
            transfer="broadcast",  # which weights that have no source do not ask for
        )
        self.config = config
        self._opened = open_engine(models[0], config, say=self.said.append)
        engine = self._runner.run(self._opened.__aenter__())
        assert isinstance(engine, Replicas)
        self.engine = engine
        self.said.clear()  # that they start

    def run(self, work: Callable[[Replicas], Awaitable[None]]) -> None:
        async def main() -> None:
            await work(self.engine)

        self._runner.run(main())

    def close(self) -> None:
        self._runner.run(self._opened.__aexit__(None, None, None))
        self._runner.close()


@pytest.fixture(scope="module")
def fleet(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    before = dict(os.environ)
    os.environ.update(SMALL)
    try:
        made = Fleet(models, tmp_path_factory.mktemp("logs"))
    finally:
        os.environ.clear()
        os.environ.update(before)
    yield made
    made.close()


def test_both_servers_compute_what_the_trainer_computes_before_and_after_an_update(fleet, models):
    async def test(engine: Replicas) -> None:
        texts: list[tuple[int, ...]] = []
        for version, model in enumerate(models):
            await engine.load(Weights(version=version, path=str(model)))
            assert [one.version for one in engine.engines] == [version] * 2
            async with TrainerProcess(model, TrainConfig()) as trainer:
                for one in engine.engines:
                    await check_parity(one, trainer, 1e-3)
                    await check_parity(one, trainer, 1e-3, prompt=range(3, 200))
            told = [await one.generate(range(3, 100), GREEDY) for one in engine.engines]
            assert told[0].token_ids == told[1].token_ids and told[0].version == version
            texts.append(told[0].token_ids)
        assert texts[0] != texts[1], "new weights say something else"

    fleet.run(test)


def test_weights_that_are_broadcast_are_those_of_the_folder(fleet, models, tmp_path):
    """To both servers, from one rank and from two; what they then sample is what they sample with the folder
    loaded, and is not what they sampled before."""

    async def test(engine: Replicas) -> None:
        told: list[tuple[int, ...]] = []
        for version, ranks in ((3, 1), (4, 2)):
            config = TrainConfig(lr=5e-2, ranks=ranks)
            async with TrainerProcess(models[1], config) as trainer:
                for _ in range(version):
                    await trainer.step([ROW], loss="sft")
                sent = await trainer.save_weights(tmp_path / f"v{version}", version)
                nowhere = replace(sent, path="/nowhere", source=source(trainer, fleet.config))
                before = await _samples(engine)
                await engine.load(nowhere)
                assert [one.version for one in engine.engines] == [version] * 2 and fleet.said == []
                for one in engine.engines:
                    await check_parity(one, trainer, 1e-3)
                    await check_parity(one, trainer, 1e-3, prompt=range(3, 200))
                got = await _samples(engine)
                assert got[0] == got[1] != before[0]
                await engine.load(replace(sent, version=version))
                assert await _samples(engine) == got
            told.append(got[0])
        assert told[0] != told[1]

    fleet.run(test)


async def _samples(engine: Replicas) -> list[tuple[int, ...]]:
    return [(await one.generate(range(3, 100), GREEDY)).token_ids for one in engine.engines]


def test_what_is_under_way_goes_on_under_new_weights(fleet, models):
    async def test(engine: Replicas) -> None:
        long, before = Sampling(max_tokens=600, seed=1), engine.version
        begun = [asyncio.Event() for _ in range(4)]
        asked = [
            asyncio.create_task(engine.generate([k, 5, 6], long, on_tokens=lambda ids, one=one: one.set()))
            for k, one in enumerate(begun)
        ]
        await asyncio.gather(*(one.wait() for one in begun))
        await engine.load(Weights(version=before + 1, path=str(models[0])))
        done = await asyncio.gather(*asked)
        across = [one for one in done if one.versions]
        assert across, "all had ended before the update"
        for one in across:
            assert set(one.versions) == {before, before + 1} and one.version == before + 1
            assert list(one.versions) == sorted(one.versions) and len(one.versions) == len(one.token_ids)
        assert (await engine.generate([5], GREEDY)).version == before + 1

    fleet.run(test)


def test_an_attempt_is_made_through_the_gateway(fleet, models):
    async def test(engine: Replicas) -> None:
        agent = BashAgent(AgentConfig(system="", instance="{{ task.prompt }}", max_turns=2))
        boxes = NamespaceBackend()
        try:
            async with open_line(boxes, agent, engine, Renderer.load(str(models[0]))) as line:
                made = await line.attempt(Job(id="a", task=TASK, sampling=Sampling(max_tokens=12)))
        finally:
            await boxes.close()
        assert made.outcome is not Outcome.VOID, made.failure
        assert made.turns and all(turn.version == engine.version for turn in made.turns)
        assert all(turn.completion_ids and max(turn.logprobs) <= 0 for turn in made.turns)

    fleet.run(test)


def test_it_obeys_the_protocol_and_lost_no_server(fleet, models):
    """The last test of the file: the check closes the engine."""

    async def test(engine: Replicas) -> None:
        encode = Renderer.load(str(models[0])).encode
        found = await check_engine(engine, encode, weights=Weights(version=3, path=str(models[0])))
        assert [result for result in found if not result.ok] == []
        assert fleet.said == []

    fleet.run(test)
