"""A `Trainer` in its own process: the driver's event loop, full of HTTP and boxes, and the model, full of
small torch calls, would otherwise fight over one interpreter lock. The driver never imports torch.

With `TrainConfig.ranks` it is as many processes that share the model (`shards`): all get every call, the
first one's answer is the answer, and when one fails or dies none is left waiting for it: all are ended."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from patchwright.errors import ConfigError, EngineError, PatchwrightError
from patchwright.train.algorithm import PolicyLoss
from patchwright.train.config import LossName, ModelConfig, StepMetrics, TrainConfig
from patchwright.train.process import ChildProcess, Worker, WorkerDiedError
from patchwright.types import Invitation, Sample, Weights

if TYPE_CHECKING:
    from patchwright.train.broadcast import Broadcast
    from patchwright.train.trainer import Trainer

T = TypeVar("T")

_GRACE_S = 2.0
"""How long a death is waited for that would explain another rank's failure."""
_LONG_GRACE_S = 60.0
"""The same of workers given, which may be on other machines: Ray misses one of those after 15 s or more."""

_trainer: Trainer | None = None
"""The child's trainer; None in every other process."""
_sending: Broadcast | None = None
"""What the child's trainer is broadcasting, from `invite` to `dismiss`."""


class TrainerProcess:
    """The methods of `Trainer`, awaited. Raises EngineError when a process is gone.

    Example: `async with TrainerProcess(folder, config) as trainer: await trainer.step(rows, loss="sft")`
    """

    def __init__(
        self, model: Path, config: TrainConfig, workers: Sequence[Worker] = (), *, apart: bool = False
    ) -> None:
        """The ranks are processes of this machine, or the `workers` given: one for each, the first rank's
        first, with a GPU each when `config.device` is `cuda`. They are closed with this one.

        Folders are those of the workers' machines: all read `model`, the first writes weights, and all read
        and write checkpoints, which needs a disk they share; with `apart` it is the workers who bring every
        rank what it reads, and together what ranks wrote. Raises ConfigError when there are more or fewer
        workers than `config.ranks`.
        """
        if workers and len(workers) != config.ranks:
            raise ConfigError(f"`train.ranks = {config.ranks}` takes as many workers, not {len(workers)}")
        self._elsewhere, self._apart = bool(workers), apart
        self._workers = list[Worker](workers) or [ChildProcess() for _ in range(config.ranks)]
        self._model, self._config = model, config
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> TrainerProcess:
        try:
            await self._load()
        except BaseException:
            await self.close()
            raise
        return self

    async def _load(self) -> None:
        if len(self._workers) == 1 and not self._config.offload:
            return await self._call(_load, self._model, self._config)
        meeting = await self._meeting()
        await self._gather(
            worker.call(_load_rank, self._model, self._config, rank, meeting, worker.address, self._apart)
            for rank, worker in enumerate(self._workers)
        )
        return None

    async def _meeting(self) -> str:
        """See `train.meeting`."""
        if self._elsewhere:
            first = self._workers[0]
            return (await self._gather([first.call(_listen, first.address)]))[0]
        self._folder = tempfile.TemporaryDirectory(prefix="patchwright-ranks-")
        return self._folder.name

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

    async def invite(self, workers: Sequence[int], address: str, seconds: float) -> list[Invitation]:
        """`Broadcast.invite`, for the weights as they are."""
        return await self._call(_invite, workers, address, seconds)

    async def broadcast(self) -> list[str]:
        """`Broadcast.send`, to those invited."""
        return await self._call(_broadcast)

    async def dismiss(self) -> None:
        """`Broadcast.dismiss`."""
        await self._call(_dismiss)

    async def save_checkpoint(self, folder: Path) -> None:
        """`Trainer.save_checkpoint`."""
        await self._call(_save_checkpoint, folder)

    async def load_checkpoint(self, folder: Path) -> None:
        """`Trainer.load_checkpoint`."""
        await self._call(_load_checkpoint, folder)

    async def close(self) -> None:
        """Stop the processes, at once. Closing twice is allowed."""
        await asyncio.gather(*(worker.close() for worker in self._workers))
        if self._folder:
            self._folder.cleanup()

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        """The first rank's answer to a call that all ranks get."""
        return (await self._gather(worker.call(function, *args) for worker in self._workers))[0]

    async def _gather(self, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """The answers of all ranks. After a failure of one of several, none is left running."""
        running = [asyncio.create_task(call) for call in calls]
        try:
            return await asyncio.gather(*running)
        except Exception as error:
            if len(self._workers) > 1:
                error = await _cause(error, running, _LONG_GRACE_S if self._elsewhere else _GRACE_S)
                await self.close()
                await asyncio.gather(*running, return_exceptions=True)
            if isinstance(error, WorkerDiedError):
                raise self._died() from error
            raise error

    def _died(self) -> EngineError:
        count = len(self._workers)
        who = "the trainer's process" if count == 1 else f"one of the trainer's {count} processes"
        return EngineError(
            f"{who} died (killed, or out of memory); the last checkpoint is whole: run the same command again"
        )


async def _cause(first: Exception, calls: Sequence[asyncio.Task[Any]], grace: float) -> Exception:
    """Why a call failed on some rank: when another died, this one saw only a connection that ended."""
    if not isinstance(first, PatchwrightError | WorkerDiedError):
        await asyncio.wait(calls, timeout=grace)
        failed = [error for call in calls if call.done() and (error := call.exception())]
        first = next((error for error in failed if isinstance(error, WorkerDiedError)), first)
    return first


def _load(model: Path, config: TrainConfig) -> None:
    """Raises ConfigError as `Trainer` does (an initializer's error would only break the pool)."""
    from patchwright.train.trainer import Trainer

    global _trainer
    _trainer = Trainer(model, config)


def _load_rank(model: Path, config: TrainConfig, rank: int, meeting: str, address: str, apart: bool) -> None:
    """As `_load`, one of several."""
    from patchwright.train.shards import Shards
    from patchwright.train.trainer import Trainer

    global _trainer
    ranks = Shards(config, rank=rank, meeting=meeting, address=address)
    ranks.apart = apart
    _trainer = Trainer(model, config, ranks)


def _listen(address: str) -> str:
    from patchwright.train.meeting import listen

    return listen(address)


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


def _invite(workers: Sequence[int], address: str, seconds: float) -> list[Invitation]:
    global _sending
    _dismiss()
    _sending = _child().sending()
    return _sending.invite(workers, address, seconds)


def _broadcast() -> list[str]:
    assert _sending is not None, "only called after _invite"
    return _sending.send()


def _dismiss() -> None:
    global _sending
    if _sending is not None:
        _sending.dismiss()
        _sending = None


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
    process = ChildProcess()
    try:
        await process.call(function, *args)
    finally:
        await process.close()


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
