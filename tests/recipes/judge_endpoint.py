"""A judge behind real HTTP: it says what its `rule` makes of the request, and counts who is waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

UP, DOWN = r"It helps. \boxed{+1}", r"It does not. \boxed{-1}"


class JudgeEndpoint:
    def __init__(self, rule: Callable[[dict], str | Response], pause: float) -> None:
        self.bodies: list[dict] = []
        self.url = ""
        self.asked = asyncio.Event()
        self.most = 0
        self._rule, self._pause, self._now = rule, pause, 0

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.asked.set()
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(self._pause)
        self._now -= 1
        said = self._rule(body)
        if isinstance(said, Response):
            return said
        return JSONResponse({"choices": [{"message": {"role": "assistant", "content": said}}]})


@contextlib.asynccontextmanager
async def judging(rule: Callable[[dict], str | Response], pause: float = 0.0) -> AsyncIterator[JudgeEndpoint]:
    endpoint = JudgeEndpoint(rule, pause)
    app = Starlette(routes=[Route("/v1/chat/completions", endpoint.chat, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    endpoint.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    try:
        yield endpoint
    finally:
        await server.shutdown()
