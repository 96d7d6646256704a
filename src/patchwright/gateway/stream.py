"""Server-sent events: a call's tokens as they are sampled, in whatever format the client speaks.

With tools a reply can only be taken apart when it is whole, so it is replayed at the end, and meanwhile
the stream is kept alive. So are several choices, one after the other, and every answer of an API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from patchwright.errors import AgentError, InfraError
from patchwright.gateway.call import Call, Stopped
from patchwright.gateway.wire import Reply, Writer, cut
from patchwright.render import Parsed, Renderer

__all__ = ["stream"]

_PACE = 0.03
"""Least seconds between two pieces of one reply."""


async def stream(
    call: Call, renderer: Renderer | None, model: str, request: Request, keep_alive: float
) -> Response:
    """The streaming response of a call. A failure before the first token is raised, as without streaming.

    After `keep_alive` seconds of silence the client is told to go on waiting.
    """
    waiter = asyncio.create_task(call.grew.wait())
    await asyncio.wait({waiter, call.task}, timeout=keep_alive, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if call.task.done():
        await call.task
    writer = call.format.writer(call.request, Reply(id=call.id, created=int(call.started), model=model))
    events = _events(call, renderer, writer, request, keep_alive)
    return StreamingResponse(events, media_type="text/event-stream")


async def _events(
    call: Call, renderer: Renderer | None, writer: Writer, request: Request, keep_alive: float
) -> AsyncIterator[bytes]:
    asked = call.request
    text = _Text(writer, call.stop, raw=asked.prompt is not None)
    live = renderer if asked.tools is None and asked.n == 1 else None
    yield writer.start()
    while not call.task.done():
        if not await _grown(call, keep_alive):
            yield writer.silence
        elif live is not None and not call.task.done():
            yield text.more(live, call.ids)
            await asyncio.sleep(_PACE)
    try:
        replies = await call.task
    except (asyncio.CancelledError, AgentError, InfraError, Stopped) as error:
        yield writer.fail(str(error) or "the session is closed", "server_error")
        return
    yield text.rest(replies[0]) + writer.end(replies)
    call.delivered = not await request.is_disconnected()


async def _grown(call: Call, keep_alive: float) -> bool:
    """Wait for tokens or the end; False when nothing came for a while."""
    try:
        async with asyncio.timeout(keep_alive):
            await call.grew.wait()
    except TimeoutError:
        return False
    call.grew.clear()
    return True


@dataclass(slots=True)
class _Text:
    """What was sent of a reply, and what may be sent of it next."""

    writer: Writer
    stops: Sequence[str]
    raw: bool
    """The completion is text, with no thinking in it."""
    content: str = ""
    reasoning: str = ""

    def more(self, renderer: Renderer, ids: Sequence[int]) -> bytes:
        """What a reply that is still growing has for sure; what may yet change is held back."""
        parsed = Parsed(content=renderer.decode(ids)) if self.raw else renderer.parse(ids)
        content = cut(parsed.content, self.stops)
        if "<think>".startswith(content.strip()):
            content = ""
        held = max((len(stop) for stop in self.stops), default=1) - 1
        content = content[: len(content) - held] if held else content
        return self._advance(_settled(content), _settled(parsed.reasoning))

    def rest(self, reply: Reply) -> bytes:
        """What completes the text of a reply."""
        return self._advance(reply.content, reply.reasoning)

    def _advance(self, content: str, reasoning: str) -> bytes:
        parts = []
        if len(reasoning) > len(self.reasoning) and reasoning.startswith(self.reasoning):
            parts.append(self.writer.reasoning(reasoning[len(self.reasoning) :]))
            self.reasoning = reasoning
        if len(content) > len(self.content) and content.startswith(self.content):
            parts.append(self.writer.content(content[len(self.content) :]))
            self.content = content
        return b"".join(parts)


def _settled(text: str) -> str:
    """Text without an unfinished character or trailing blanks, which the final parse may drop."""
    return text.rstrip("\ufffd").rstrip()
