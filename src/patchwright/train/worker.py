"""A `Trainer` in its own process: the driver's event loop, full of HTTP and boxes, and the model, full of
small torch calls, would otherwise fight over one interpreter lock. The driver never imports torch.

With `TrainConfig.ranks` it is as many processes that share the model (`shards`): all get every call, the
first one's answer is the answer, and when one fails or dies none is left waiting for it: all are ended."""

from __future__ import annotations

import asyncio
import ctypes
import json
import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from patchwright.errors import EngineError, PatchwrightError
from patchwright.train.algorithm import PolicyLoss
from patchwright.train.config import LossName, ModelConfig, StepMetrics, TrainConfig
from patchwright.types import Sample, Weights

if TYPE_CHECKING:
    from patchwright.train.trainer import Trainer

T = TypeVar("T")

_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent dies."""

_GRACE_S = 2.0
"""How long a death is waited for that would explain another rank's failure."""

_trainer: Trainer | None = None
"""The child's trainer; None in every other process."""


class TrainerProcess:
    """The methods of `Trainer`, awaited. Raises EngineError when a process is gone.

    Example: `async with TrainerProcess(folder, config) as trainer: await trainer.step(rows, loss="sft")`
    """

    def __init__(self, model: Path, config: TrainConfig) -> None:
        # spawn, not fork: the parent has threads and sockets the child must not inherit
        spawn = multiprocessing.get_context("spawn")
        self._pools = [
            ProcessPoolExecutor(max_workers=1, mp_context=spawn, initializer=_start)
            for _ in range(config.ranks)
        ]
        self._model, self._config = model, config
        self._meeting: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> TrainerProcess:
        try:
            await self._load()
        except BaseException:
            await self.close()
            raise
        return self

    async def _load(self) -> None:
        if len(self._pools) == 1:
            return await self._call(_load, self._model, self._config)
        self._meeting = tempfile.TemporaryDirectory(prefix="patchwright-ranks-")
        meeting = Path(self._meeting.name)
        await self._gather(
            (pool, partial(_load_rank, self._model, self._config, rank, meeting))
            for rank, pool in enumerate(self._pools)
        )
        return None

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def step(
        self, samples: Sequence[Sample], *, loss: LossName | PolicyLoss, lr_scale: float = 1.0
    ) -> StepMetrics:
        """`Trainer.step`."""
        return await self._call(_step, samples, loss, lr_scale)

    async def steps(
        self, batches: Sequence[Sequence[Sample]], *, loss: LossName, lr_scales: Sequence[float]
    ) -> StepMetrics:
        """One `Trainer.step` per batch; returns the metrics of the last, with the mean loss of all."""
        return await self._call(_steps, batches, loss, lr_scales)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """`Trainer.score`."""
        return await self._call(_score, token_ids)

    async def evaluate(self, samples: Sequence[Sample]) -> float:
        """`Trainer.evaluate`."""
        return await self._call(_evaluate, samples)

    async def save_weights(self, folder: Path, version: int) -> Weights:
        """`Trainer.save_weights`."""
        return await self._call(_save_weights, folder, version)

    async def save_checkpoint(self, folder: Path) -> None:
        """`Trainer.save_checkpoint`."""
        await self._call(_save_checkpoint, folder)

    async def load_checkpoint(self, folder: Path) -> None:
        """`Trainer.load_checkpoint`."""
        await self._call(_load_checkpoint, folder)

    async def close(self) -> None:
        """Stop the processes, at once. Closing twice is allowed."""
        for pool in self._pools:
            for process in list((pool._processes or {}).values()):
                process.terminate()  # nothing in it is worth waiting for: what matters is on disk
        for pool in self._pools:
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        if self._meeting:
            self._meeting.cleanup()

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        """The first rank's answer to a call that all ranks get."""
        call = partial(function, *args)
        return (await self._gather((pool, call) for pool in self._pools))[0]

    async def _gather(self, calls: Iterable[tuple[ProcessPoolExecutor, Callable[[], T]]]) -> list[T]:
        """The answers of all ranks. After a failure of one of several, none is left running."""
        running: list[asyncio.Future[T]] = []
        try:
            for pool, call in calls:
                running.append(asyncio.get_running_loop().run_in_executor(pool, call))
            return await asyncio.gather(*running)
        except Exception as error:
            if len(self._pools) > 1:
                error = await _cause(error, running)
                await self.close()
            if isinstance(error, BrokenProcessPool):
                raise self._died() from error
            raise error

    def _died(self) -> EngineError:
        count = len(self._pools)
        who = "the trainer's process" if count == 1 else f"one of the trainer's {count} processes"
        return EngineError(
            f"{who} died (killed, or out of memory); the last checkpoint is whole: run the same command again"
        )


async def _cause(first: Exception, calls: Sequence[asyncio.Future[Any]]) -> Exception:
    """Why a call failed on some rank: when another died, this one saw only a connection that ended."""
    if not isinstance(first, PatchwrightError | BrokenProcessPool):
        await asyncio.wait(calls, timeout=_GRACE_S)
        failed = [error for call in calls if call.done() and (error := call.exception())]
        first = next((error for error in failed if isinstance(error, BrokenProcessPool)), first)
    return first


def _start() -> None:
    """Runs first in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def _load(model: Path, config: TrainConfig) -> None:
    """Raises ConfigError as `Trainer` does (an initializer's error would only break the pool)."""
    from patchwright.train.trainer import Trainer

    global _trainer
    _trainer = Trainer(model, config)


def _load_rank(model: Path, config: TrainConfig, rank: int, meeting: Path) -> None:
    """As `_load`, one of several."""
    from patchwright.train.shards import Shards
    from patchwright.train.trainer import Trainer

    global _trainer
    _trainer = Trainer(model, config, Shards(config, rank=rank, meeting=meeting))


def _child() -> Trainer:
    assert _trainer is not None, "only called in the child, after _load"
    return _trainer


def _step(samples: Sequence[Sample], loss: LossName | PolicyLoss, lr_scale: float) -> StepMetrics:
    return _child().step(samples, loss=loss, lr_scale=lr_scale)


def _steps(batches: Sequence[Sequence[Sample]], loss: LossName, lr_scales: Sequence[float]) -> StepMetrics:
    done = [_step(batch, loss, scale) for batch, scale in zip(batches, lr_scales, strict=True)]
    return replace(done[-1], loss=sum(m.loss for m in done) / len(done))


def _score(token_ids: Sequence[int]) -> list[float]:
    return _child().score(token_ids)


def _evaluate(samples: Sequence[Sample]) -> float:
    return _child().evaluate(samples)


def _save_weights(folder: Path, version: int) -> Weights:
    return _child().save_weights(folder, version)


def _save_checkpoint(folder: Path) -> None:
    _child().save_checkpoint(folder)


def _load_checkpoint(folder: Path) -> None:
    _child().load_checkpoint(folder)


async def create_model(folder: Path, config: ModelConfig, tokenizer: Path) -> None:
    """Write a freshly initialised model for the tokenizer saved in `tokenizer`, made in a process of its own.

    `folder` is absent until it is whole.
    """
    await _alone(_create_model, folder, config, tokenizer)


async def import_model(file: Path, folder: Path) -> None:
    """`gguf.import_gguf` in a process of its own."""
    await _alone(_import_model, file, folder)


async def _alone(function: Callable[..., None], *args: Any) -> None:
    pool = ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn"))
    try:
        await asyncio.get_running_loop().run_in_executor(pool, function, *args)
    finally:
        await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)


def _import_model(file: Path, folder: Path) -> None:
    from patchwright.train.gguf import import_gguf

    import_gguf(file, folder)


def _create_model(folder: Path, config: ModelConfig, source: Path) -> None:
    from tokenizers import Tokenizer

    from patchwright.train.checkpoint import write_new_model
    from patchwright.train.model import new_model

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    template = json.loads((source / "tokenizer_config.json").read_text())["chat_template"]
    write_new_model(folder, new_model(config, tokenizer), tokenizer, chat_template=template)
