"""A run whose engine has its weights from the trainer, not from the folder."""

import asyncio
import io
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tests.recipes.rl_parts import SETTINGS, small_tasks, write_model

from patchwright.agent.bash import BashAgent
from patchwright.engine.inside.patchwright_vllm import join, received
from patchwright.engine.process import ProcessEngine
from patchwright.errors import EngineError
from patchwright.recipes.assembly import open_line
from patchwright.recipes.broadcast import source
from patchwright.recipes.progress import View
from patchwright.recipes.rl import train_rl
from patchwright.recipes.settings import Settings
from patchwright.render import Renderer
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.store import Run
from patchwright.train.worker import TrainerProcess
from patchwright.types import Invitation, Weights

CPU = torch.device("cpu")


class Receiver(ProcessEngine):
    """Takes part in every broadcast as a vLLM worker would; `told` is what came, by version."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.told: dict[int, dict[str, torch.Tensor]] = {}

    async def load(self, weights: Weights) -> None:
        if weights.source is not None:

            async def receive(invitation: Invitation) -> None:
                self.told[weights.version] = await asyncio.to_thread(self._receive, asdict(invitation))

            await weights.source.send(1, receive)
        await super().load(weights)

    def _receive(self, told: dict) -> dict[str, torch.Tensor]:
        group = join(told, 1, CPU)
        return dict(received(told, group, CPU))


@pytest.mark.parametrize("transfer", ["folder", "broadcast"])
def test_every_step_is_broadcast_where_that_is_asked_for(tmp_path: Path, transfer: str):
    model = write_model(tmp_path / "v0")
    line = {**SETTINGS["line"], "engine": {"use": "vllm", "transfer": transfer, "load_seconds": 30}}
    algorithm = {"length_coef": 1.0, "entropy_coef": 0.01}  # a gradient though nothing is ever resolved
    given = Settings.model_validate({"line": line, "rl": {**SETTINGS["rl"], "algorithm": algorithm}})

    async def main() -> dict[int, dict[str, torch.Tensor]]:
        boxes, agent, engine = NamespaceBackend(), BashAgent(given.line.agent), Receiver(model)
        async with AsyncExitStack() as stack:
            for part in (boxes, agent, engine):
                stack.push_async_callback(part.close)
            run = stack.enter_context(Run.create_or_open(tmp_path / "run", {}))
            opened = open_line(boxes, agent, engine, Renderer.load(str(model)))
            line = await stack.enter_async_context(opened)
            trainer = await stack.enter_async_context(TrainerProcess(model, given.rl.train))
            start, view = Weights(version=0, path=str(model)), View(Console(file=io.StringIO()))
            await train_rl(
                line, engine, trainer, run, small_tasks(), given.rl, given.line, start=start, view=view
            )
        return engine.told

    told = asyncio.run(main())
    assert sorted(told) == ([1, 2] if transfer == "broadcast" else [])
    for version, tensors in told.items():
        (file,) = (tmp_path / "run" / "weights" / f"v{version}").glob("*.safetensors")
        stored = load_file(file)
        assert stored.keys() == tensors.keys()
        assert all(torch.equal(tensors[name], value) for name, value in stored.items())


def test_a_trainer_that_dies_is_told_to_the_engine(tmp_path: Path):
    """At once, though it still waits for tensors."""
    model = write_model(tmp_path / "v0")
    config = Settings.model_validate(
        {"line": {"engine": {"use": "vllm", "transfer": "broadcast"}}}
    ).line.engine

    async def main() -> None:
        async with TrainerProcess(model, Settings().rl.train) as trainer:
            meeting = source(trainer, config)
            assert meeting is not None

            async def receive(invitation: Invitation) -> None:
                await trainer.close()
                await asyncio.sleep(300)

            with pytest.raises(EngineError, match="trainer's process died"):
                async with asyncio.timeout(60):
                    await meeting.send(1, receive)

    asyncio.run(main())
