"""One session: the model calls of one rollout, recorded exactly as sampled.

A request becomes a `Call` (one task, so that a retry finds it again whatever became of the connection);
a call that succeeds becomes a `Turn`.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from patchwright.errors import ConfigError, EngineBusy, InfraError
from patchwright.gateway.call import Call, ContextFull, Stopped, Voice
from patchwright.gateway.chat import ChatFormat
from patchwright.gateway.wire import ChatRequest, Format, Json, Reply, message_json, moved, request_sampling
from patchwright.metrics.trace import span
from patchwright.types import Endpoint, Sampling, Turn

__all__ = ["Budget", "Session"]

_KEPT_CALLS = 8
"""Answered calls a retry can still find; each holds its whole request, and a retry comes soon."""

_KEPT_THREADS = 64
"""Answers that a client can go on from by their id alone; Codex and others send the whole conversation."""

_CHAT = ChatFormat()


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a session may use, side calls with it. Example: `Budget(calls=50, tokens=100_000)`"""

    calls: int | None = None
    """Replies; None: as many as are asked for. Of several choices only as many are sampled as are left."""
    tokens: int | None = None
    """Sampled tokens; a reply that would go over it is cut there."""

    def __post_init__(self) -> None:
        if min(self.calls or 1, self.tokens or 1) < 1 or 0 in (self.calls, self.tokens):
            raise ConfigError("a budget of model calls or tokens must be at least 1")


class Session:
    """The model calls of one rollout. Made by `Gateway.session`; its voice holds what they said."""

    def __init__(
        self,
        endpoint: Endpoint,
        voice: Voice,
        *,
        id: str,
        sampling: Sampling,
        pinned: bool = True,
        budget: Budget | None = None,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.id = id
        self.endpoint = endpoint
        self.stopped = ""
        """Why the session has given the stop signal, else empty: `context_full` (shorter requests are still
        answered), `budget`, `engine_failed` or `closed`."""
        self.on_call: Callable[[], object] = lambda: None
        """Called when a call begins that is not one of before."""
        self._voice = voice
        self._sampling = sampling
        self._pinned = pinned
        self._budget = budget or Budget()
        self._on_close = on_close
        self._context = contextvars.copy_context()
        """Of who opened the session: its calls come in tasks of the server, and belong to its trace."""
        self._calls: dict[bytes, Call] = {}
        self._failures: dict[bytes, InfraError] = {}
        self._failed = 0
        self._count = 0
        """Replies asked for: ids and seeds come from it."""
        self._spent = 0
        """Replies given or being sampled: what the engine failed to give costs nothing."""
        self._sampled = 0
        self._threads: dict[str, list[Json]] = {}

    # --- the record ---------------------------------------------------------------------------

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every call recorded so far; side calls, and all calls of an API, have `train=False`."""
        return self._voice.turns

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The main conversation as the agent last sent it, and the reply."""
        return self._voice.messages

    @property
    def failure(self) -> InfraError | None:
        """An engine failure that no retry of the same request has mended: the rollout is void."""
        return next(iter(self._failures.values()), None)

    # --- calls --------------------------------------------------------------------------------

    def call(self, body: bytes, format: Format = _CHAT, *, retried: bool = False) -> Call:
        """Start the call of a request body, or find it again.

        The same body is the same call while that is in flight, when the client says it retries, and when
        the answer may not have arrived; otherwise it samples anew. Raises BadRequest or Stopped.
        """
        if self.stopped == "closed":
            raise Stopped("the session is closed")
        key = hashlib.blake2b(body, digest_size=16).digest()
        known = self._calls.get(key)
        if known is not None and (retried or not known.task.done() or not known.delivered):
            return known
        self._check_budget()
        request, number = self._within(format.parse(body, self._threads.get)), self._count
        call = Call(
            id=f"chatcmpl-{self.id}-{number}",
            number=number,
            request=request,
            format=format,
            stop=(*self._sampling.stop, *request.stop),
        )
        self._count += request.n
        self._spent += request.n
        call.task = asyncio.create_task(self._answer(call, key), context=self._context.copy())
        call.task.add_done_callback(lambda task: self._settle(call, key, task))
        self._calls[key] = call
        self._forget()
        self.on_call()
        return call

    def tokens(self, body: bytes, format: Format) -> int:
        """How many tokens the prompt of a request has. Raises BadRequest or AgentError."""
        return self._voice.count(format.parse(body, self._threads.get))

    async def close(self) -> None:
        """Abort what is in flight; later requests get the stop signal. Closing twice is allowed."""
        if self.stopped != "closed":
            self.stopped = "closed"
            self._on_close()
        tasks = [call.task for call in self._calls.values() if not call.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_budget(self) -> None:
        """Raises Stopped when there is nothing left to answer with."""
        budget = self._budget
        if self._failed >= self._voice.tries:
            self.stopped = "engine_failed"
            raise Stopped("the model has failed; this attempt is over")
        if budget.calls is not None and self._spent >= budget.calls:
            self.stopped = "budget"
            raise Stopped(f"the budget of {budget.calls} model calls is used up")
        if budget.tokens is not None and self._sampled >= budget.tokens:
            self.stopped = "budget"
            raise Stopped(f"the budget of {budget.tokens} sampled tokens is used up")

    def _within(self, request: ChatRequest) -> ChatRequest:
        """Its choices as far as the budget of calls reaches."""
        calls = self._budget.calls
        return request if calls is None else replace(request, n=min(request.n, calls - self._spent))

    def _forget(self) -> None:
        done = [key for key, call in self._calls.items() if call.task.done()]
        for key in done[: max(0, len(self._calls) - _KEPT_CALLS)]:
            del self._calls[key]

    def _settle(self, call: Call, key: bytes, task: asyncio.Task[tuple[Reply, ...]]) -> None:
        """Wake who streams; forget a call that failed, so that a retry tries again."""
        call.grew.set()
        failed = task.cancelled() or task.exception() is not None
        if failed and self._calls.get(key) is call:
            del self._calls[key]

    async def _answer(self, call: Call, key: bytes) -> tuple[Reply, ...]:
        try:
            replies = await self._said(call)
        except ContextFull:
            self.stopped = "context_full"
            raise
        except InfraError as error:
            self._failures[key] = error
            self._failed += not isinstance(error, EngineBusy)
            self._spent -= call.request.n
            raise
        self._failures.pop(key, None)
        self._failed = 0
        self._sampled += sum(reply.completion_tokens for reply in replies)
        self._remember(call, replies)
        return replies

    async def _said(self, call: Call) -> tuple[Reply, ...]:
        with span("model", {"patchwright.call": call.id}) as note:
            replies = await self._voice.answer(call, self._sampling_of(call))
            note("gen_ai.usage.input_tokens", replies[0].prompt_tokens)
            note("gen_ai.usage.output_tokens", sum(reply.completion_tokens for reply in replies))
            return replies

    def _sampling_of(self, call: Call) -> Sampling:
        """A session's seed is moved on by every reply, so that an equal request samples anew."""
        sampling = request_sampling(call.request, self._sampling, pinned=self._pinned)
        most = sampling.max_tokens
        if self._budget.tokens is not None:
            most = min(most, max(1, (self._budget.tokens - self._sampled) // call.request.n))
        return moved(replace(sampling, max_tokens=most), call.number)

    def _remember(self, call: Call, replies: tuple[Reply, ...]) -> None:
        """What a later request may go on from by the answer's id."""
        if call.request.thread is None:
            return
        self._threads[call.id] = [*call.request.thread, message_json(replies[-1])]
        while len(self._threads) > _KEPT_THREADS:
            del self._threads[next(iter(self._threads))]
