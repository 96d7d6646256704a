"""A `Scorer` in its own process: the event loop stays free, and a run of the model cannot take it down."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from patchwright.errors import EngineError
from patchwright.train.worker import _start

if TYPE_CHECKING:
    from patchwright.train.scorer import Scorer

__all__ = ["ScorerConfig", "ScorerProcess"]

T = TypeVar("T")

_scorer: Scorer | None = None
"""The child's scorer; None in every other process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerConfig:
    """What a `Scorer` is made of. Example: `ScorerConfig(yes=412, no=97)`"""

    yes: int
    """Token id of the good answer."""
    no: int
    """Token id of the bad one."""
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    batch_tokens: int = 8000
    """Tokens computed at once."""


class ScorerProcess:
    """The method of `Scorer`, awaited. Raises EngineError when the process is gone.

    Example: `async with ScorerProcess(folder, ScorerConfig(yes=412, no=97)) as scorer: ...`
    """

    def __init__(self, model: Path, config: ScorerConfig) -> None:
        self._pool = ProcessPoolExecutor(
            max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=_start
        )
        self._model, self._config = model, config
        self._loaded = False

    async def __aenter__(self) -> ScorerProcess:
        return self  # the model is loaded when there is something to score

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def score(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """`Scorer.score`. Raises ConfigError when the model cannot be loaded."""
        if not prompts:
            return []
        if not self._loaded:
            await self._call(_load, self._model, self._config)
            self._loaded = True
        return await self._call(_score, prompts)

    async def close(self) -> None:
        """Stop the process, at once. Closing twice is allowed."""
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
        except BrokenProcessPool as error:
            raise EngineError(
                "the verifier's process died (killed, or out of memory); what was scored is stored: "
                "run the same command again"
            ) from error


def _load(model: Path, config: ScorerConfig) -> None:
    from patchwright.train.scorer import Scorer

    global _scorer
    _scorer = Scorer(model, **asdict(config))


def _score(prompts: Sequence[Sequence[int]]) -> list[float]:
    assert _scorer is not None, "only called in the child, after _load"
    return _scorer.score(prompts)
