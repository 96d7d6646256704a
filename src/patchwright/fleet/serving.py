"""Listening: an ASGI app on an address, in the caller's event loop. Shared by node and pool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from patchwright.config import Config
from patchwright.errors import ConfigError

__all__ = ["Address", "Serving"]

_KEEP_ALIVE = 75
"""Seconds an idle connection is kept: longer than the clients keep theirs, so that they hang up first."""
_GOODBYE = 2
"""Seconds for the last answers when closing."""
_BACKLOG = 4096
"""Connections that wait to be accepted."""
_HEAD = 64 * 1024
"""Bytes of a request beside its body: its head, and the framing of a chunked body."""
_FILES_KEPT = 0.2
"""Share of the process' files that clients do not get: nodes, boxes and logs need theirs."""
_MANY_FILES = 2**20
"""Taken for the limit where there is none."""
_ALWAYS = "/healthz"
"""Answered however many connections there are."""


class Address(Config):
    """Where a server listens, and how."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 0
    """Port to listen on; 0 takes a free one."""
    tls_cert: Path | None = None
    """Certificate chain, PEM; with `tls_key` the server speaks HTTPS."""
    tls_key: Path | None = None
    """Private key of the certificate, PEM."""


class Serving:
    """A server that runs between `async with` and its end.

    Example::

        async with Serving(app, Address(port=5000)) as serving:
            print(serving.url)
            await stopped.wait()
    """

    def __init__(self, app: ASGIApp, address: Address) -> None:
        """Also lets this process open as many files as it may, of which connections get most.

        Raises ConfigError when only one of certificate and key is given.
        """
        if (address.tls_cert is None) != (address.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together; give both or none")
        self._address = address
        self._port = address.port
        most = int(_raise_file_limit() * (1 - _FILES_KEPT))
        self._server = _Server(_config(_Bounded(app, most, self._connections), address))
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """`http://host:port`, or https; known once entered."""
        host = self._address.host
        scheme = "https" if self._address.tls_cert else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"

    def _connections(self) -> int:
        return len(self._server.server_state.connections)

    async def __aenter__(self) -> Self:
        """Listen. Raises ConfigError when the address cannot be had, or the certificate is none."""
        listener = _listen(self._address.host, self._port)
        self._port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait({self._task, listening}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            listening.cancel()
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the last answers and stop listening."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task


class _Bounded:
    """An app that has an answer left for those who come when there are `most` connections already: to try
    again later. Their connections are closed with it."""

    def __init__(self, app: ASGIApp, most: int, connections: Callable[[], int]) -> None:
        self._app = app
        self._most = most
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._connections() <= self._most or scope["path"] == _ALWAYS:
            await self._app(scope, receive, send)
            return
        sentence = f"{self._most} connections are open already; try again later"
        content = json.dumps({"ok": False, "error": sentence}).encode()
        headers = {"content-type": "application/json", "retry-after": "1", "connection": "close"}
        await Response(content, 503, headers)(scope, receive, send)


class _Protocol(HttpToolsProtocol):
    """Refuses what its parser would take without an end: heads, trailers and chunks with next to nothing
    in them."""

    _beside = 0
    """Bytes of this request so far, less twice those of its body."""

    def data_received(self, data: bytes) -> None:
        self._beside += len(data)
        super().data_received(data)
        if self._beside > _HEAD and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is over {_HEAD // 1024} KB.")

    def on_body(self, body: bytes) -> None:
        self._beside -= 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._beside = 0
        super().on_message_complete()


class _Server(uvicorn.Server):
    """uvicorn in somebody else's event loop: signals are theirs, and `listening` tells when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: ASGIApp, address: Address) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=_Protocol,
        backlog=_BACKLOG,
        log_level="warning",
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_GOODBYE,
        ssl_certfile=address.tls_cert,
        ssl_keyfile=address.tls_key,
    )
    try:
        config.load()
    except OSError as error:  # what ssl raises is one too
        raise ConfigError(f"--tls-cert {address.tls_cert} or --tls-key cannot be used: {error}") from None
    return config


def _raise_file_limit() -> int:
    """Allow this process all the files it may have; how many. Boxes have limits of their own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _MANY_FILES if hard == resource.RLIM_INFINITY else hard


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: only then does asyncio turn Nagle's algorithm off, which would hold the
    # second write of an answer back for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from None
    listener.setblocking(False)
    return listener
