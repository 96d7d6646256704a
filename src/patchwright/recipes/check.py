"""`patchwright check`: conformance of sandboxes, engines and agents, built in or one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from patchwright.agent.check import BUSY, STOP, Script
from patchwright.config import load_config, pick
from patchwright.engine.base import Engine
from patchwright.engine.check import check_engine
from patchwright.engine.config import EngineConfig
from patchwright.recipes.assembly import SandboxConfig, open_boxes
from patchwright.recipes.engines import open_engine
from patchwright.render import Renderer
from patchwright.sandbox.base import SandboxBackend
from patchwright.sandbox.check import check_sandbox
from patchwright.sandbox.select import open_backend
from patchwright.types import CheckResult, Endpoint, Weights

__all__ = ["engine_conformance", "sandbox_conformance", "scripted_endpoint"]

_RUNNING, _QUEUE = 4, 4
"""A small queue, so that the check of a full one takes few requests."""


async def sandbox_conformance(
    use: str, *, image: str | None = None, overrides: Sequence[str] = ()
) -> list[CheckResult]:
    """Check a backend: a built-in name, with keys of `SandboxConfig`, or `module:Class` called without
    arguments."""
    if ":" not in use:
        given = [f"use={use}", *([f"image={image}"] if image else []), *overrides]
        async with open_boxes(load_config(SandboxConfig, None, given)) as backend:
            return await check_sandbox(backend)
    backend = _sandbox(use, image)
    try:
        return await check_sandbox(backend)
    finally:
        await backend.close()


def _sandbox(use: str, image: str | None) -> SandboxBackend:
    if ":" in use:
        return cast(SandboxBackend, _own(use, {}, "sandbox"))
    return open_backend(use, image=image)


async def engine_conformance(use: str, *, overrides: Sequence[str] = ()) -> list[CheckResult]:
    """Check the engine of a model folder (the local one, or with keys of `EngineConfig` a server that has
    this model), or `module:Class` called without arguments.

    One's own engine is asked with bytes as token ids, and the checks that need a weights folder are skipped.
    A server's queue is not known, so the check of a full one is skipped.
    """
    if ":" in use and not Path(use).exists():
        return await check_engine(cast(Engine, _own(use, {}, "engine")), lambda text: list(text.encode()))
    encode, weights = Renderer.load(use).encode, Weights(version=1, path=str(Path(use).resolve()))
    small = [f"max_running={_RUNNING}", f"max_queue={_QUEUE}"]
    config = load_config(EngineConfig, None, [*small, *overrides])
    async with open_engine(Path(use), config) as engine:
        busy_after = config.max_running + config.max_queue if config.use == "local" else None
        return await check_engine(engine, encode, weights=weights, busy_after=busy_after)


def _own(use: str, registry: Mapping[str, Any], key: str) -> Any:
    return pick(use, registry, key=key)()


@asynccontextmanager
async def scripted_endpoint(script: Script) -> AsyncIterator[Endpoint]:
    """An endpoint that answers from a script, call by call; after its end it sends the stop signal."""
    left = iter(script)

    async def chat(request: Request) -> Response:
        await request.body()
        return _answer(next(left, STOP))

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Endpoint(base_url=f"http://127.0.0.1:{port}/v1", api_key="scripted")
    finally:
        await server.shutdown()


def _answer(reply: str) -> Response:
    if reply == STOP:
        return JSONResponse({"error": {"type": "not_found_error", "message": "context is full"}}, 404)
    if reply == BUSY:
        return JSONResponse({"error": {"type": "server_busy", "message": "try again"}}, 503)
    message = {"role": "assistant", "content": reply}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse(
        {"id": "scripted", "object": "chat.completion", "model": "policy", "choices": [choice]}
    )
