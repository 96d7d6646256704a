"""How long trainer and engine had nothing to do: what asynchronous training is there to lower."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from patchwright.engine.base import Engine, OnTokens
from patchwright.types import Completion, Sampling, Weights

__all__ = ["Idle", "WatchedEngine"]


class Idle:
    """Measures the share of time in which nothing was under way.

    Example: `idle = Idle(); with idle.busy(): work()`, then `idle.share()`
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = 0
        self._begun = self._changed = clock()
        self._idle = 0.0
        self.used = False
        """Whether anything was ever under way."""

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Something is under way while the block runs; blocks may overlap."""
        self._look()
        self._under_way += 1
        self.used = True
        try:
            yield
        finally:
            self._look()
            self._under_way -= 1

    def share(self) -> float:
        """Share of the time since the last call, or since the beginning, in which nothing was."""
        self._look()
        whole, idle = self._changed - self._begun, self._idle
        self._begun, self._idle = self._changed, 0.0
        return idle / whole if whole else 0.0

    def _look(self) -> None:
        now = self._clock()
        if not self._under_way:
            self._idle += now - self._changed
        self._changed = now


class WatchedEngine:
    """An engine that tells `idle` of every request; the same in all else."""

    def __init__(self, engine: Engine, idle: Idle) -> None:
        self._engine = engine
        self._idle = idle

    @property
    def version(self) -> int:
        """See `Engine.version`."""
        return self._engine.version

    @property
    def max_context(self) -> int:
        """See `Engine.max_context`."""
        return self._engine.max_context

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """See `Engine.generate`."""
        with self._idle.busy():
            return await self._engine.generate(prompt_ids, sampling, on_tokens=on_tokens)

    async def load(self, weights: Weights) -> None:
        """See `Engine.load`."""
        await self._engine.load(weights)

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()
