"""The viewer's server: pages, their data, and a stream of what a running job does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from patchwright.errors import ConfigError, PatchwrightError
from patchwright.view.api import Api, json_text
from patchwright.view.guard import Guard
from patchwright.view.live import Lanes
from patchwright.view.overview import is_writing
from patchwright.view.shelf import Book, Shelf

__all__ = ["STATIC", "view_app"]

Fleet = Callable[[], Awaitable[dict[str, Any]]]
"""Asks a pool for its status."""

STATIC = Path(__file__).parent / "static"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_EVERY = 1.0
"""Seconds between two looks at a run."""
_QUIET = 15.0
"""Seconds after which a stream says something although there is nothing new."""
_FLEET_WAIT = 4.0


def view_app(shelf: Shelf, token: str, closing: asyncio.Event, fleet: Fleet | None = None) -> ASGIApp:
    """Everything behind the token. `closing` ends the streams; `fleet` gives the status of a pool, for the
    live page."""
    live = _Live(shelf, closing, fleet)
    pages = [Route(f"/{file.name}", _page(file)) for file in sorted(STATIC.iterdir())]
    routes = [Route("/", _page(STATIC / "index.html")), *pages, *Api(shelf).routes()]
    return Guard(Starlette(routes=[*routes, Route("/api/live", live.stream)]), token)


def _page(file: Path) -> Callable[[Request], Response]:
    return lambda request: FileResponse(file, media_type=_KINDS[file.suffix])


class _Live:
    """Server-sent events: the lanes of a run, and its fleet."""

    def __init__(self, shelf: Shelf, closing: asyncio.Event, fleet: Fleet | None) -> None:
        self._shelf, self._closing, self._fleet = shelf, closing, fleet

    async def stream(self, request: Request) -> Response:
        """GET `/api/live?run=NAME`, until the server closes."""
        try:
            book = self._shelf.book(request.query_params.get("run", ""))
        except ConfigError as error:
            return Response(json_text({"error": str(error)}), 404, media_type="application/json")
        return StreamingResponse(self._events(book, request), media_type="text/event-stream")

    async def _events(self, book: Book, request: Request) -> AsyncIterator[str]:
        lanes, last, said = Lanes(book.path), None, 0.0
        while not self._closing.is_set() and not await request.is_disconnected():
            await asyncio.to_thread(lanes.read)
            fleet = await self._status()
            state = (lanes.count, json_text(fleet), is_writing(book))
            if state != last or time.monotonic() - said > _QUIET:
                content = lanes.record(time.time()) | {"fleet": fleet, "writing": state[2]}
                yield f"data: {json_text(content)}\n\n"
                last, said = state, time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _EVERY)

    async def _status(self) -> dict[str, Any] | None:
        if self._fleet is None:
            return None
        try:
            async with asyncio.timeout(_FLEET_WAIT):
                return await self._fleet()
        except (PatchwrightError, TimeoutError, OSError) as error:
            return {"error": str(error) or "the pool does not answer"}
