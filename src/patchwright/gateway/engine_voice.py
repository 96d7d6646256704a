"""An engine as the voice of a session: bridge, sample, take apart, record, all by token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from patchwright.engine.base import Engine
from patchwright.errors import EngineBusy, EngineError
from patchwright.gateway.call import Call, ContextFull
from patchwright.gateway.history import Policy
from patchwright.gateway.record import Ahead, Record
from patchwright.gateway.wire import BadRequest, ChatRequest, Reply, cut, message_json, moved
from patchwright.metrics.trace import span
from patchwright.render import Parsed, Renderer
from patchwright.types import Completion, Finish, Sampling, Turn

__all__ = ["EngineVoice"]

_BUSY_WAITS = (0.05, 0.2, 0.8, 2.0)
"""Seconds before the tries after a full queue; then the client is told to come back."""


class EngineVoice:
    """What an engine says in one session. See `Voice`."""

    tries = 3  # clients retry each failure for minutes

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        *,
        model: str,
        pinned: bool = True,
        history: Policy = "splice",
        on_turn: Callable[[Turn], None] | None = None,
    ) -> None:
        """Where it is not `pinned`, a request that chooses how much is thought is refused."""
        self._engine = engine
        self._pinned = pinned
        self._renderer = renderer
        self._model = model
        self._record = Record(renderer, history=history, on_turn=on_turn)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """See `Record.turns`."""
        return self._record.turns

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """See `Record.messages`."""
        return self._record.messages

    def count(self, request: ChatRequest) -> int:
        """Rendered anew."""
        return len(self._renderer.render(request.messages, request.tools))

    async def answer(self, call: Call, sampling: Sampling) -> tuple[Reply, ...]:
        """See `Voice.answer`."""
        refused = call.request.wishes.refused(pinned=self._pinned)
        if refused:
            raise BadRequest(refused)
        ahead = self._ahead(call.request)
        if len(ahead.prompt) >= self._engine.max_context:
            raise self._context_full(len(ahead.prompt))
        stop_ids = tuple(sorted({*sampling.stop_ids, *self._renderer.stop_ids}))
        completions = await self._completions(ahead.prompt, replace(sampling, stop_ids=stop_ids), call)
        return tuple(self._said(call, ahead, index, one) for index, one in enumerate(completions))

    def _ahead(self, request: ChatRequest) -> Ahead:
        if request.prompt is None:
            return self._record.ahead(request.messages, request.tools)
        if isinstance(request.prompt, str):
            return self._record.alone(self._renderer.encode(request.prompt))
        if max(request.prompt) >= self._renderer.vocab_size:
            raise BadRequest(f"`prompt` has token {max(request.prompt)}, which the model does not know")
        return self._record.alone(request.prompt)

    async def _completions(self, prompt: list[int], sampling: Sampling, call: Call) -> list[Completion]:
        """As many as the request asks for, or none: the first failure ends the others."""
        async with _ungrouped(), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._completion(prompt, moved(sampling, index), call))
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

    async def _generate(self, prompt: list[int], sampling: Sampling, call: Call) -> Completion:
        def on_tokens(ids: Sequence[int]) -> None:
            call.ids.extend(ids)
            call.grew.set()

        listener = on_tokens if call.request.stream else None
        for wait in _BUSY_WAITS:
            try:
                return await self._engine.generate(prompt, sampling, on_tokens=listener)
            except EngineBusy:
                with span("queue"):
                    await asyncio.sleep(wait)
        return await self._engine.generate(prompt, sampling, on_tokens=listener)

    def _context_full(self, tokens: int) -> ContextFull:
        limit = self._engine.max_context
        return ContextFull(f"the context is full: the prompt has {tokens} tokens and the model takes {limit}")

    def _said(self, call: Call, ahead: Ahead, index: int, completion: Completion) -> Reply:
        """Take a completion apart for the agent and record it."""
        ids, request = completion.token_ids, call.request
        parsed = self._parsed(ids, request)
        content = cut(parsed.content, call.stop)
        reply = Reply(
            id=call.id,
            created=int(call.started),
            model=self._model,
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
        self._record.add(ahead, completion, message_json(reply), parsed.tool_calls, call.started)
        return reply

    def _parsed(self, ids: Sequence[int], request: ChatRequest) -> Parsed:
        if request.prompt is not None:
            return Parsed(content=self._renderer.decode(ids))
        parsed = self._renderer.parse(ids, request.tools)
        if request.wishes.tool_choice == "none" and parsed.tool_calls:
            # The tools stay in the prompt, which the next turn extends; a call is the text it is.
            return Parsed(content=self._renderer.decode(ids))
        return parsed

    def _logprobs(self, completion: Completion) -> tuple[tuple[str, float], ...]:
        texts = (self._renderer.decode([token]) for token in completion.token_ids)
        return tuple(zip(texts, completion.logprobs, strict=False))


@contextlib.asynccontextmanager
async def _ungrouped() -> AsyncIterator[None]:
    """What one of several tasks raised, as if it had been the only one."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
