"""The asyncio side of an engine whose model runs elsewhere: in a thread (`local`) or a process (`process`).

It bounds the queue, turns cancellation into an abort, and brings events back to the loops that wait for them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from patchwright.engine.base import OnTokens
from patchwright.errors import EngineBusy, EngineError
from patchwright.types import Completion, Sampling, Weights

__all__ = ["EVERYONE", "Backend", "Deliver", "Event", "Frontend"]

EVERYONE = -1
"""Key of the event that ends every request: the engine is gone."""


@dataclass(frozen=True, slots=True)
class Event:
    """News of one request: tokens of a streaming one, or its end, or the answer to an order to load."""

    key: int
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None
    error: str = ""
    loaded: bool = False


Deliver = Callable[[Sequence[Event]], None]
"""Takes the events of one step; called on a thread of the backend."""


class Backend(Protocol):
    """Where the model runs. Nothing here waits for the model; answers come as events."""

    max_context: int
    dead: str
    """Why it no longer answers, or nothing. Set before the event to EVERYONE goes out."""

    def submit(self, key: int, prompt: Sequence[int], sampling: Sampling, streaming: bool) -> None:
        """Queue a request."""
        ...

    def abort(self, key: int) -> None:
        """Drop a request, if it still runs."""
        ...

    def load(self, key: int, weights: Weights) -> None:
        """Replace the weights between two steps."""
        ...

    def close(self) -> None:
        """Stop and free the model; may take a moment. Closing twice is allowed."""
        ...


@dataclass(slots=True)
class _Pending:
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion | None]
    on_tokens: OnTokens | None = None


class Frontend:
    """An `Engine` over a backend that `start` makes; `limit` requests may be under way at once."""

    def __init__(self, start: Callable[[Deliver], Backend], limit: int) -> None:
        self._limit = limit
        self._keys = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._version = 0
        self._backend = start(self._deliver)

    @property
    def version(self) -> int:
        """Version of the weights that sample the next token; 0 until the first load."""
        return self._version

    @property
    def max_context(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        return self._backend.max_context

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """Sample one completion; see `Engine.generate`.

        A completion that a stop string ends keeps the tokens that spell it: they were sampled.
        Raises EngineBusy, or EngineError when the engine is gone or the prompt is not its vocabulary's.
        """
        if len(self._pending) >= self._limit:
            raise EngineBusy(f"the engine has {self._limit} requests under way; ask again later")
        completion = await self._ask(
            lambda key: self._backend.submit(key, prompt_ids, sampling, on_tokens is not None), on_tokens
        )
        assert completion is not None
        return completion

    async def load(self, weights: Weights) -> None:
        """Replace the weights between two steps.

        Requests in flight go on with the keys and values they have; each token records its version.
        Raises EngineError when the folder does not fit the model; the old weights then stay.
        """
        await self._ask(lambda key: self._backend.load(key, weights), None)
        self._version = weights.version

    async def close(self) -> None:
        """Fail what is in flight and free the model. Closing twice is allowed."""
        await asyncio.to_thread(self._backend.close)

    async def _ask(self, send: Callable[[int], None], on_tokens: OnTokens | None) -> Completion | None:
        key, loop = next(self._keys), asyncio.get_running_loop()
        waiting = self._pending[key] = _Pending(loop, loop.create_future(), on_tokens)
        try:
            send(key)
            # Asked after registering: either this sees the death, or the death sees the registration.
            if self._backend.dead:
                raise EngineError(self._backend.dead)
            return await waiting.future
        except BaseException:
            self._backend.abort(key)
            raise
        finally:
            del self._pending[key]

    # --- events, from the backend's thread ----------------------------------------------------

    def _deliver(self, events: Sequence[Event]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Event]] = {}
        for event in events:
            for loop in {waiting.loop for waiting in self._waiters(event.key)}:
                by_loop.setdefault(loop, []).append(event)
        for loop, news in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._dispatch, loop, news)
            except RuntimeError:  # that loop has ended, and with it whoever waited
                continue

    def _waiters(self, key: int) -> list[_Pending]:
        """Copied at once: other threads add and remove entries."""
        if key == EVERYONE:
            return list(self._pending.values())
        waiting = self._pending.get(key)
        return [waiting] if waiting else []

    def _dispatch(self, loop: asyncio.AbstractEventLoop, events: Sequence[Event]) -> None:
        for event in events:
            for waiting in self._waiters(event.key):
                if waiting.loop is loop and not waiting.future.done():
                    _settle(waiting, event)


def _settle(waiting: _Pending, event: Event) -> None:
    """Tell one waiter its news; a callback that raises ends its own request and no other."""
    try:
        if event.tokens and waiting.on_tokens is not None:
            waiting.on_tokens(event.tokens)
    except Exception as error:
        waiting.future.set_exception(error)
        return
    if event.error:
        waiting.future.set_exception(EngineError(event.error))
    elif event.completion is not None or event.loaded:
        waiting.future.set_result(event.completion)
