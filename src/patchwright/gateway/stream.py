"""Server-sent events: a call's tokens as they are sampled, in the OpenAI chunk form.

With tools a reply can only be taken apart when it is whole, so it is replayed at the end, with
keep-alive comments meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from patchwright.errors import AgentError, InfraError
from patchwright.gateway.session import Call, Stopped, cut
from patchwright.gateway.wire import (
    Reply,
    calls_delta,
    chunk_json,
    dumps,
    error_json,
    usage_chunk_json,
)
from patchwright.render import Renderer

__all__ = ["stream"]

_KEEP_ALIVE = 10.0
"""Seconds of silence before a comment is sent."""
_PACE = 0.03
"""Least seconds between two chunks of one reply."""


async def stream(call: Call, renderer: Renderer, model: str, request: Request) -> Response:
    """The streaming response of a call. A failure before the first token is raised, as without streaming."""
    waiter = asyncio.create_task(call.grew.wait())
    await asyncio.wait({waiter, call.task}, timeout=_KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if call.task.done():
        await call.task
    return StreamingResponse(_events(call, renderer, model, request), media_type="text/event-stream")


async def _events(call: Call, renderer: Renderer, model: str, request: Request) -> AsyncIterator[bytes]:
    text = _Text(renderer, call.stop)
    head = Reply(id=call.id, created=int(call.started), model=model)
    live = call.request.tools is None
    yield _event(chunk_json(head, {"role": "assistant", "content": ""}))
    while not call.task.done():
        if not await _grown(call):
            yield b": keep-alive\n\n"
        elif live and not call.task.done():
            for delta in text.deltas(call.ids):
                yield _event(chunk_json(head, delta))
            await asyncio.sleep(_PACE)
    try:
        (reply,) = await call.task
    except (asyncio.CancelledError, AgentError, InfraError, Stopped) as error:
        yield _event(error_json(str(error) or "the session is closed", "server_error"))
        return
    for delta in text.rest(reply):
        yield _event(chunk_json(reply, delta))
    yield _event(chunk_json(reply, {}, last=True))
    if call.request.include_usage:
        yield _event(usage_chunk_json(reply))
    yield b"data: [DONE]\n\n"
    call.delivered = not await request.is_disconnected()


async def _grown(call: Call) -> bool:
    """Wait for tokens or the end; False when nothing came for a while."""
    try:
        async with asyncio.timeout(_KEEP_ALIVE):
            await call.grew.wait()
    except TimeoutError:
        return False
    call.grew.clear()
    return True


@dataclass(slots=True)
class _Text:
    """What was sent of a reply, and what may be sent of it next."""

    renderer: Renderer
    stops: Sequence[str]
    content: str = ""
    reasoning: str = ""

    def deltas(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Deltas for a reply still growing; what may yet change is held back."""
        parsed = self.renderer.parse(ids)
        content = cut(parsed.content, self.stops)
        if "<think>".startswith(content.strip()):
            content = ""
        held = max((len(stop) for stop in self.stops), default=1) - 1
        content = content[: len(content) - held] if held else content
        return self._advance(_settled(content), _settled(parsed.reasoning))

    def rest(self, reply: Reply) -> list[dict[str, Any]]:
        """Deltas that complete the reply."""
        deltas = self._advance(reply.content, reply.reasoning)
        return [*deltas, calls_delta(reply)] if reply.tool_calls else deltas

    def _advance(self, content: str, reasoning: str) -> list[dict[str, Any]]:
        deltas = []
        if len(reasoning) > len(self.reasoning) and reasoning.startswith(self.reasoning):
            deltas.append({"reasoning_content": reasoning[len(self.reasoning) :]})
            self.reasoning = reasoning
        if len(content) > len(self.content) and content.startswith(self.content):
            deltas.append({"content": content[len(self.content) :]})
            self.content = content
        return deltas


def _settled(text: str) -> str:
    """Text without an unfinished character or trailing blanks, which the final parse may drop."""
    return text.rstrip("\ufffd").rstrip()


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + dumps(data) + b"\n\n"
