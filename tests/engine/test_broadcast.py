"""Weights from a real trainer to servers' workers, over gloo: what arrives is what a folder would hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.engine.broadcast_standin import make_python

from patchwright.engine.config import EngineConfig
from patchwright.engine.launch import Place, launcher, vllm_order
from patchwright.engine.replicas import Replicas
from patchwright.engine.vllm import VllmEngine
from patchwright.errors import ConfigError, EngineError
from patchwright.recipes.broadcast import Broadcast, source
from patchwright.recipes.engines import open_engine, starts
from patchwright.train.config import LoraConfig, TrainConfig
from patchwright.train.worker import TrainerProcess
from patchwright.types import Sample, Sampling, Weights

SHORT = Sampling(max_tokens=1)
ROW = Sample(
    token_ids=(5, 6, 7, 8),
    mask=(0, 1, 1, 1),
    logprobs=(0.0,) * 4,
    advantages=(1.0,) * 4,
    weights=(0.0, 1.0, 1.0, 1.0),
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_python(tmp_path_factory.mktemp("environment"))


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    (tmp_path / "dump").mkdir()
    return tmp_path / "dump"


@pytest.fixture
def configured(python: str, dump: Path, tmp_path: Path) -> Callable[..., EngineConfig]:
    def make(use: str = "vllm", *args: str, **options: object) -> EngineConfig:
        options = {"load_seconds": 60, "start_seconds": 120, "logs": str(tmp_path / "logs"), **options}
        return EngineConfig(
            use=use, python=python, transfer="broadcast", args=["--dump", str(dump), *args], **options
        )

    return make


@asynccontextmanager
async def trained(model: Path, folder: Path, **config):
    """A trainer that has learned something, and the folder of what it has learned."""
    async with TrainerProcess(model, TrainConfig(lr=1e-2, **config)) as trainer:
        for number in range(3):
            await trainer.step([replace(ROW, trajectory_id=f"t{number}")], loss="sft")
        await trainer.save_weights(folder, 1)
        yield trainer


def same(received: Path, folder: Path) -> bool:
    """To the bit, and under the same names."""
    (file,) = folder.glob("*.safetensors")
    mine, theirs = load_file(received), load_file(file)
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == value.dtype and torch.equal(mine[name], value) for name, value in theirs.items()
    )


def taken(dump: Path, how: str) -> list[Path]:
    """What workers took, and forget it."""
    found = [file.rename(file.with_name(f"old-{file.name}")) for file in sorted(dump.glob(f"{how}-*"))]
    return found


@pytest.mark.parametrize(
    ("use", "workers", "kind", "tied", "config"),
    [
        ("vllm", 2, "qwen3", True, {}),
        ("vllm", 2, "llama", False, {"ranks": 2}),
        ("vllm", 1, "qwen3", True, {"ranks": 2, "lora": LoraConfig(rank=4)}),
        ("sglang", 1, "qwen2", True, {"lora": LoraConfig(rank=4)}),
    ],
)
def test_workers_receive_what_the_folder_has(
    configured, make_model, dump, tmp_path, monkeypatch, use, workers, kind, tied, config
):
    """All workers of one server; the folder named is none, so nothing can have been read from it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model, engine_config = make_model(kind, tie_word_embeddings=tied), configured(use, gpus=workers)

    async def main():
        async with (
            trained(model, tmp_path / "v1", **config) as trainer,
            open_engine(model, engine_config) as engine,
        ):
            sent = Weights(version=1, path="/nowhere", source=source(trainer, engine_config))
            await engine.load(sent)
            first = taken(dump, "broadcast")
            assert len(first) == workers and all(same(file, tmp_path / "v1") for file in first)
            assert "lm_head.weight" in load_file(first[0])
            assert (await engine.generate([3], SHORT)).version == 1
            await trainer.step([ROW], loss="sft")
            await trainer.save_weights(tmp_path / "v2", 2)
            await engine.load(replace(sent, version=2, source=source(trainer, engine_config)))
            second = taken(dump, "broadcast")
            assert len(second) == workers and all(same(file, tmp_path / "v2") for file in second)
            assert not same(second[0], tmp_path / "v1")

    asyncio.run(main())


def test_a_server_that_dies_in_the_middle_takes_nobody_with_it(configured, make_model, dump, tmp_path):
    model, said = make_model(), list[str]()
    config = configured("vllm", "--fault", "die@3", replicas=2)

    async def main():
        async with (
            trained(model, tmp_path / "v1") as trainer,
            open_engine(model, config, say=said.append) as engine,
        ):
            assert isinstance(engine, Replicas)
            await engine.load(Weights(version=1, path=str(tmp_path / "v1"), source=source(trainer, config)))
            (lived,) = taken(dump, "broadcast")
            assert same(lived, tmp_path / "v1") and "is out, 1 of 2 are left" in said[1], said
            await trainer.step([ROW], loss="sft")
            await trainer.save_weights(tmp_path / "v2", 2)
            async with asyncio.timeout(300):
                while len(engine.engines) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            (back,) = taken(dump, "folder")
            assert same(back, tmp_path / "v1") and [one.version for one in engine.engines] == [1, 1]
            await engine.load(Weights(version=2, path=str(tmp_path / "v2"), source=source(trainer, config)))
            both = taken(dump, "broadcast")
            assert len(both) == 2 and all(same(file, tmp_path / "v2") for file in both)

    asyncio.run(main())


def test_a_server_that_stands_still_is_given_up_within_the_bound(configured, make_model, dump, tmp_path):
    model, config = make_model(), configured("vllm", "--fault", "stall@3", load_seconds=20)
    patient = config.model_copy(update={"load_seconds": 120})

    async def main():
        async with trained(model, tmp_path / "v1") as trainer:
            start = launcher(model, config, 0, updates=True)
            engine = await start()
            with pytest.raises(EngineError, match="took no part in the broadcast for 10 s"):
                async with asyncio.timeout(120):
                    await engine.load(Weights(version=1, path="/nowhere", source=source(trainer, config)))
            assert engine.version == 0
            assert (await trainer.step([ROW], loss="sft")).updates == 1
            again = VllmEngine.connect(config.model_copy(update={"url": engine._base}))
            with pytest.raises(ConfigError, match="half of a model"):
                await again
            await engine.close()
            engine = await start()
            await trainer.save_weights(tmp_path / "v2", 2)
            await engine.load(Weights(version=2, path="/nowhere", source=source(trainer, patient)))
            await engine.close()
            (received,) = taken(dump, "broadcast")
            assert same(received, tmp_path / "v2")

    asyncio.run(main())


def test_an_engine_that_stays_away_keeps_nobody_waiting(make_model, tmp_path):
    """One cannot be held and leaves, one refuses what it is told; a trainer's step goes on."""

    async def main():
        async with trained(make_model(), tmp_path / "v1") as trainer:
            meeting = Broadcast(trainer, seconds=2)
            meeting.expect(2)

            async def refuse(invitation):
                assert invitation.ranks == 4 and "lm_head.weight" in invitation.names
                raise EngineError("no such call")

            asking = asyncio.create_task(meeting.send(3, refuse))
            await asyncio.sleep(0)
            meeting.leave()
            with pytest.raises(EngineError, match="no such call"):
                await asking
            assert (await trainer.step([ROW], loss="sft")).updates == 1
            with pytest.raises(ConfigError, match=r"transfer_address.*192\.0\.2\.7"):
                await Broadcast(trainer, address="192.0.2.7", seconds=2).send(1, refuse)
            assert (await trainer.step([ROW], loss="sft")).updates == 1

    asyncio.run(main())


def test_who_leaves_when_the_others_were_given_up_begins_nothing():
    async def main():
        meeting = Broadcast(None)
        meeting.expect(2)
        asking = asyncio.create_task(meeting.send(1, lambda invitation: asyncio.sleep(0)))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        meeting.leave()
        assert meeting._task is None

    asyncio.run(main())


def test_what_cannot_be_broadcast_to_is_refused(configured, make_model, tmp_path):
    with pytest.raises(ConfigError, match="local engine"):
        starts(tmp_path, EngineConfig(transfer="broadcast"))
    config, place = configured(), Place(number=0, port=8001)
    assert "--worker-extension-cls" in vllm_order(tmp_path, config, place).command
    plain = config.model_copy(update={"transfer": "folder"})
    assert "PYTHONPATH" not in vllm_order(tmp_path, plain, place).environment

    async def main():
        engine = await launcher(tmp_path, plain, 0, updates=True)()
        try:
            with pytest.raises(ConfigError, match=r"--worker-extension-cls patchwright_vllm\.Extension"):
                await VllmEngine.connect(config.model_copy(update={"url": engine._base}))
        finally:
            await engine.close()

    asyncio.run(main())
