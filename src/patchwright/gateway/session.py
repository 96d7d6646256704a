"""One session: the model calls of one rollout, recorded exactly as sampled.

A request becomes a `Call` (one task, so that a retry finds it again whatever became of the connection);
a call that succeeds becomes a `Turn`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from patchwright.engine.base import Engine
from patchwright.errors import ConfigError, EngineBusy, EngineError, InfraError
from patchwright.gateway.chat import ChatFormat
from patchwright.gateway.history import Policy
from patchwright.gateway.record import Ahead, Record
from patchwright.gateway.wire import (
    BadRequest,
    ChatRequest,
    Format,
    Json,
    Reply,
    message_json,
    request_sampling,
)
from patchwright.render import Parsed, Renderer
from patchwright.types import Completion, Endpoint, Finish, Sampling, Turn

__all__ = ["Budget", "Call", "Session", "Stopped"]

_BUSY_WAITS = (0.05, 0.2, 0.8, 2.0)
"""Seconds before the tries after a full queue; then the client is told to come back."""

_KEPT_CALLS = 8
"""Answered calls a retry can still find; each holds its whole request, and a retry comes soon."""

_KEPT_THREADS = 64
"""Answers that a client can go on from by their id alone; Codex and others send the whole conversation."""

_MOST_FAILURES = 3
"""Engine failures in a row after which the session stops: clients retry each for minutes."""

_CHAT = ChatFormat()


class Stopped(Exception):
    """The session answers no more: closed, its context full, its budget used up, or its engine broken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a session may use, side calls with it. Example: `Budget(calls=50, tokens=100_000)`"""

    calls: int | None = None
    """Replies; None: as many as are asked for."""
    tokens: int | None = None
    """Sampled tokens; a reply that would go over it is cut there."""

    def __post_init__(self) -> None:
        if min(self.calls or 1, self.tokens or 1) < 1 or 0 in (self.calls, self.tokens):
            raise ConfigError("a budget of model calls or tokens must be at least 1")


@dataclass(kw_only=True, slots=True, eq=False)
class Call:
    """One request in flight or answered."""

    id: str
    number: int
    """Replies asked of the session before this call."""
    request: ChatRequest
    format: Format
    stop: tuple[str, ...]
    """Strings that end the reply: the session's and the request's."""
    started: float = field(default_factory=time.time)
    task: asyncio.Task[tuple[Reply, ...]] = field(init=False)
    """Ends with the choices of the answer."""
    ids: list[int] = field(default_factory=list)
    """Sampled so far, for streaming."""
    grew: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `ids` grew and when the task is done; whoever waits clears it."""
    delivered: bool = False
    """The whole answer was written to a connection that was still open."""


class Session:
    """The model calls of one rollout. Made by `Gateway.session`; `Record` holds what they said."""

    def __init__(
        self,
        endpoint: Endpoint,
        engine: Engine,
        renderer: Renderer,
        *,
        id: str,
        sampling: Sampling,
        pinned: bool = True,
        budget: Budget | None = None,
        history: Policy = "splice",
        on_turn: Callable[[Turn], None] | None = None,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.id = id
        self.endpoint = endpoint
        self.stopped = ""
        """Why the session has given the stop signal, else empty: `context_full` (shorter requests are still
        answered), `budget`, `engine_failed` or `closed`."""
        self._engine = engine
        self._renderer = renderer
        self._sampling = sampling
        self._pinned = pinned
        self._budget = budget or Budget()
        self._on_close = on_close
        self._record = Record(renderer, history=history, on_turn=on_turn)
        self._calls: dict[bytes, Call] = {}
        self._failures: dict[bytes, InfraError] = {}
        self._failed = 0
        self._count = 0
        self._sampled = 0
        self._threads: dict[str, list[Json]] = {}

    # --- the record ---------------------------------------------------------------------------

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every call recorded so far; side calls have `train=False`. See `Record.turns`."""
        return self._record.turns

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The main conversation as the agent last sent it, and the reply."""
        return self._record.messages

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
        request, number = format.parse(body, self._threads.get), self._count
        call = Call(
            id=f"chatcmpl-{self.id}-{number}",
            number=number,
            request=request,
            format=format,
            stop=(*self._sampling.stop, *request.stop),
        )
        self._count += request.n
        call.task = asyncio.create_task(self._answer(call, key))
        call.task.add_done_callback(lambda task: self._settle(call, key, task))
        self._calls[key] = call
        self._forget()
        return call

    def tokens(self, body: bytes, format: Format) -> int:
        """How many tokens the prompt of a request has, rendered anew. Raises BadRequest or AgentError."""
        request = format.parse(body, self._threads.get)
        return len(self._renderer.render(request.messages, request.tools))

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
        if self._failed >= _MOST_FAILURES:
            self.stopped = "engine_failed"
            raise Stopped("the model has failed several times in a row; this attempt is over")
        if budget.calls is not None and self._count >= budget.calls:
            self.stopped = "budget"
            raise Stopped(f"the budget of {budget.calls} model calls is used up")
        if budget.tokens is not None and self._sampled >= budget.tokens:
            self.stopped = "budget"
            raise Stopped(f"the budget of {budget.tokens} sampled tokens is used up")

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
            replies = await self._sample(call)
        except InfraError as error:
            self._failures[key] = error
            self._failed += not isinstance(error, EngineBusy)
            raise
        self._failures.pop(key, None)
        self._failed = 0
        return replies

    async def _sample(self, call: Call) -> tuple[Reply, ...]:
        ahead = self._ahead(call.request)
        if len(ahead.prompt) >= self._engine.max_context:
            raise self._context_full(len(ahead.prompt))
        completions = await self._completions(ahead.prompt, call)
        return tuple(self._said(call, ahead, index, one) for index, one in enumerate(completions))

    def _ahead(self, request: ChatRequest) -> Ahead:
        if request.prompt is None:
            return self._record.ahead(request.messages, request.tools)
        if isinstance(request.prompt, str):
            return self._record.alone(self._renderer.encode(request.prompt))
        if max(request.prompt) >= self._renderer.vocab_size:
            raise BadRequest(f"`prompt` has token {max(request.prompt)}, which the model does not know")
        return self._record.alone(request.prompt)

    async def _completions(self, prompt: list[int], call: Call) -> list[Completion]:
        """As many as the request asks for, or none: the first failure ends the others."""
        sampling = self._sampling_of(call)
        async with _ungrouped(), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._completion(prompt, _moved(sampling, index), call))
                for index in range(call.request.n)
            ]
        return [task.result() for task in tasks]

    async def _completion(self, prompt: list[int], sampling: Sampling, call: Call) -> Completion:
        completion = await self._generate(prompt, sampling, call)
        if completion.finish is Finish.ABORT:
            raise EngineError("the engine aborted the request; try it again")
        if not completion.token_ids:
            raise self._context_full(len(prompt))
        return completion

    def _sampling_of(self, call: Call) -> Sampling:
        """A session's seed is moved on by every reply, so that an equal request samples anew."""
        sampling = request_sampling(call.request, self._sampling, pinned=self._pinned)
        stop_ids = tuple(sorted({*sampling.stop_ids, *self._renderer.stop_ids}))
        most = sampling.max_tokens
        if self._budget.tokens is not None:
            most = min(most, max(1, (self._budget.tokens - self._sampled) // call.request.n))
        return _moved(replace(sampling, stop_ids=stop_ids, max_tokens=most), call.number)

    async def _generate(self, prompt: list[int], sampling: Sampling, call: Call) -> Completion:
        def on_tokens(ids: Sequence[int]) -> None:
            call.ids.extend(ids)
            call.grew.set()

        listener = on_tokens if call.request.stream else None
        for wait in _BUSY_WAITS:
            try:
                return await self._engine.generate(prompt, sampling, on_tokens=listener)
            except EngineBusy:
                await asyncio.sleep(wait)
        return await self._engine.generate(prompt, sampling, on_tokens=listener)

    def _context_full(self, tokens: int) -> Stopped:
        self.stopped = "context_full"
        limit = self._engine.max_context
        return Stopped(f"the context is full: the prompt has {tokens} tokens and the model takes {limit}")

    def _said(self, call: Call, ahead: Ahead, index: int, completion: Completion) -> Reply:
        """Take a completion apart for the agent and record it."""
        ids, request = completion.token_ids, call.request
        raw = request.prompt is not None
        parsed = (
            Parsed(content=self._renderer.decode(ids)) if raw else self._renderer.parse(ids, request.tools)
        )
        content = cut(parsed.content, call.stop)
        reply = Reply(
            id=call.id,
            created=int(call.started),
            model=self.endpoint.model,
            index=index,
            content=content,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            finish=completion.finish,
            stopped_by=next(
                (stop for stop in call.stop if parsed.content.startswith(stop, len(content))), ""
            ),
            logprobs=self._logprobs(completion) if request.logprobs else (),
            prompt_tokens=len(ahead.prompt),
            completion_tokens=len(completion.token_ids),
            cached_tokens=completion.cached,
        )
        message = message_json(reply)
        self._record.add(ahead, completion, message, parsed.tool_calls, call.started)
        self._sampled += len(ids)
        if request.thread is not None:
            self._threads[call.id] = [*request.thread, message]
            while len(self._threads) > _KEPT_THREADS:
                del self._threads[next(iter(self._threads))]
        return reply

    def _logprobs(self, completion: Completion) -> tuple[tuple[str, float], ...]:
        texts = (self._renderer.decode([token]) for token in completion.token_ids)
        return tuple(zip(texts, completion.logprobs, strict=False))


def _moved(sampling: Sampling, by: int) -> Sampling:
    return replace(sampling, seed=None if sampling.seed is None else sampling.seed + by)


@contextlib.asynccontextmanager
async def _ungrouped() -> AsyncIterator[None]:
    """What one of several tasks raised, as if it had been the only one."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def cut(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first stop string."""
    found = [place for place in map(text.find, stops) if place >= 0]
    return text[: min(found)] if found else text
