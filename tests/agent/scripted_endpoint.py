"""A scripted chat endpoint over real HTTP, and a box that is a folder of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from patchwright.agent.check import BUSY, STOP
from patchwright.sandbox.base import BoxSpec
from patchwright.types import Endpoint, Exec

REQUESTS: list[dict] = []
"""Bodies the last endpoint was sent."""


def answer(text: str) -> Response:
    if text == STOP:
        return JSONResponse({"error": {"type": "not_found_error", "message": "context is full"}}, 404)
    if text == BUSY:
        return JSONResponse({"error": {"type": "server_busy", "message": "later"}}, 503)
    return JSONResponse({"choices": [{"message": {"role": "assistant", "content": text}}]})


@contextlib.asynccontextmanager
async def serve(script: Sequence[str | Response]) -> AsyncIterator[Endpoint]:
    left = list(script)
    REQUESTS.clear()

    async def chat(request: Request) -> Response:
        REQUESTS.append(await request.json())
        reply = left.pop(0) if left else STOP
        return answer(reply) if isinstance(reply, str) else reply

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    config = server.config
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Endpoint(base_url=f"http://127.0.0.1:{port}/v1", api_key="key")
    finally:
        await server.shutdown()


class Folder:
    """A box that isolates nothing: `workdir` is a temporary folder."""

    def __init__(self, spec: BoxSpec) -> None:
        self.spec = spec
        self.root = tempfile.TemporaryDirectory()

    def _path(self, path: str) -> Path:
        return Path(self.root.name) / path.removeprefix(self.spec.workdir).lstrip("/")

    async def exec(self, command, *, timeout=None, cwd=None, env=None, stdin=b""):
        def run() -> Exec:
            try:
                done = subprocess.run(
                    ["bash", "-c", command], cwd=self.root.name, input=stdin, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, timeout=timeout or self.spec.limits.exec_seconds,
                )  # fmt: skip
            except subprocess.TimeoutExpired as late:
                text = (late.stdout or b"").decode("utf-8", "replace")
                return Exec(code=124, output=text, timed_out=True)
            return Exec(code=done.returncode, output=done.stdout.decode("utf-8", "replace"))

        return await asyncio.to_thread(run)

    async def read(self, path):
        return self._path(path).read_bytes()

    async def write(self, path, data, *, mode=0o644):
        self._path(path).write_bytes(data)

    async def close(self):
        self.root.cleanup()


class Folders:
    name = "folders"

    async def open(self, spec: BoxSpec) -> Folder:
        return Folder(spec)

    async def close(self) -> None: ...
