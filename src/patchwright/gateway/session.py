"""One session: the model calls of one rollout, recorded exactly as sampled.

A request becomes a `Call` (one task, so that a retry finds it again whatever became of the connection);
a call that succeeds becomes a `Turn`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from patchwright.engine.base import Engine
from patchwright.errors import EngineBusy, EngineError, InfraError
from patchwright.gateway.history import History, Match, digest
from patchwright.gateway.wire import ChatRequest, Reply, message_json, parse_request, request_sampling
from patchwright.render import Renderer
from patchwright.types import Completion, Endpoint, Finish, Sampling, Turn

__all__ = ["Call", "Session", "Stopped"]

_BUSY_WAITS = (0.05, 0.2, 0.8, 2.0)
"""Seconds before the tries after a full queue; then the client is told to come back."""

_KEPT_CALLS = 8
"""Answered calls a retry can still find; each holds its whole request, and a retry comes soon."""


class Stopped(Exception):
    """The session answers no more: its context is full, or it is closed."""


@dataclass(kw_only=True, slots=True, eq=False)
class Call:
    """One request in flight or answered."""

    id: str
    number: int
    """Replies asked of the session before this call."""
    request: ChatRequest
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
    """The conversation trees of one rollout. Made by `Gateway.session`.

    A request continues the recorded turn whose messages it extends: the ids sampled there stay as they
    are and only what is new is rendered. A request that continues nothing starts a chain.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        engine: Engine,
        renderer: Renderer,
        *,
        id: str,
        sampling: Sampling,
        pinned: bool = True,
        on_turn: Callable[[Turn], None] | None = None,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.id = id
        self.endpoint = endpoint
        self.stopped = ""
        """`context_full` or `closed` once the session has given the stop signal, else empty."""
        self._engine = engine
        self._renderer = renderer
        self._sampling = sampling
        self._pinned = pinned
        self._on_turn = on_turn
        self._on_close = on_close
        self._history = History()
        self._calls: dict[bytes, Call] = {}
        self._failures: dict[bytes, InfraError] = {}
        self._count = 0
        self._turns: list[Turn] = []
        self._kinds: list[bytes] = []
        self._conversations: dict[bytes, list[dict[str, Any]]] = {}

    # --- the record ---------------------------------------------------------------------------

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every call recorded so far.

        Calls whose tools or system prompt are not those of the main conversation (titles, summaries) have
        `train=False`; the main conversation is the one with the most tokens.
        """
        main = self._main_kind()
        pairs = zip(self._turns, self._kinds, strict=True)
        return tuple(turn if kind == main else replace(turn, train=False) for turn, kind in pairs)

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The main conversation as the agent last sent it, and the reply."""
        return tuple(self._conversations.get(self._main_kind(), ()))

    @property
    def failure(self) -> InfraError | None:
        """An engine failure that no retry of the same request has mended: the rollout is void."""
        return next(iter(self._failures.values()), None)

    def _main_kind(self) -> bytes:
        tokens: dict[bytes, int] = defaultdict(int)
        for turn, kind in zip(self._turns, self._kinds, strict=True):
            tokens[kind] += len(turn.prompt_ids) + len(turn.completion_ids)
        return max(tokens, key=lambda kind: tokens[kind], default=b"")

    # --- calls --------------------------------------------------------------------------------

    def call(self, body: bytes, *, retried: bool = False) -> Call:
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
        request, number = parse_request(body), self._count
        call = Call(
            id=f"chatcmpl-{self.id}-{number}",
            number=number,
            request=request,
            stop=(*self._sampling.stop, *request.stop),
        )
        self._count += request.n
        call.task = asyncio.create_task(self._answer(call, key))
        call.task.add_done_callback(lambda task: self._settle(call, key, task))
        self._calls[key] = call
        self._forget()
        return call

    async def close(self) -> None:
        """Abort what is in flight; later requests get the stop signal. Closing twice is allowed."""
        if self.stopped != "closed":
            self.stopped = "closed"
            self._on_close()
        tasks = [call.task for call in self._calls.values() if not call.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            raise
        self._failures.pop(key, None)
        return replies

    async def _sample(self, call: Call) -> tuple[Reply, ...]:
        request = call.request
        match = self._history.match(request.messages, request.tools)
        parent, before, new_ids = self._prompt(request, match)
        prompt = [*before, *new_ids]
        if len(prompt) >= self._engine.max_context:
            raise self._context_full(len(prompt))
        replies = []
        for index, completion in enumerate(await self._completions(prompt, call)):
            turn = self._turn(parent, new_ids, completion, call.started)
            replies.append(self._reply(call, index, turn, completion, len(prompt)))
            self._record(request, match, turn, replies[-1])
        return tuple(replies)

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

    def _prompt(self, request: ChatRequest, match: Match) -> tuple[int | None, list[int], list[int]]:
        """The turn continued, its ids, and the ids after them; (None, [], all ids) for a new chain."""
        if match.turn is not None:
            before = self._ids_before(match.turn)
            reply_ids = self._turns[match.turn].completion_ids
            new_messages = request.messages[match.known :]
            extension = self._renderer.extend(before, reply_ids, new_messages, request.tools)
            if extension is not None:
                return match.turn, [*before, *reply_ids], extension
        return None, [], self._renderer.render(request.messages, request.tools)

    def _ids_before(self, turn: int) -> list[int]:
        """The whole prompt of a turn: its chain's ids, less its own completion."""
        chain: list[Sequence[int]] = [self._turns[turn].prompt_ids]
        parent = self._turns[turn].parent
        while parent is not None:
            chain += [self._turns[parent].completion_ids, self._turns[parent].prompt_ids]
            parent = self._turns[parent].parent
        return [token for ids in reversed(chain) for token in ids]

    def _sampling_of(self, call: Call) -> Sampling:
        """A session's seed is moved on by every reply, so that an equal request samples anew."""
        sampling = request_sampling(call.request, self._sampling, pinned=self._pinned)
        stop_ids = tuple(sorted({*sampling.stop_ids, *self._renderer.stop_ids}))
        return _moved(replace(sampling, stop_ids=stop_ids), call.number)

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

    def _turn(self, parent: int | None, new_ids: list[int], completion: Completion, started: float) -> Turn:
        return Turn(
            id=len(self._turns),
            parent=parent,
            prompt_ids=tuple(new_ids),
            completion_ids=completion.token_ids,
            logprobs=completion.logprobs,
            version=completion.version,
            versions=completion.versions,
            finish=completion.finish,
            text=self._renderer.decode(completion.token_ids),
            started=started,
            seconds=time.time() - started,
        )

    def _reply(self, call: Call, index: int, turn: Turn, completion: Completion, prompt_tokens: int) -> Reply:
        parsed = self._renderer.parse(turn.completion_ids, call.request.tools)
        return Reply(
            id=call.id,
            created=int(call.started),
            model=self.endpoint.model,
            index=index,
            content=cut(parsed.content, call.stop),
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            finish=turn.finish,
            prompt_tokens=prompt_tokens,
            completion_tokens=len(turn.completion_ids),
            cached_tokens=completion.cached,
        )

    def _record(self, request: ChatRequest, match: Match, turn: Turn, reply: Reply) -> None:
        message = message_json(reply)
        system = [message for message in request.messages[:1] if message["role"] == "system"]
        kind = digest(b"", [request.tools or [], [first["content"] for first in system]])
        self._history.record(match, message, turn.id)
        self._turns.append(turn)
        self._kinds.append(kind)
        self._conversations[kind] = [*request.messages, message]
        if self._on_turn is not None:
            self._on_turn(turn)


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
