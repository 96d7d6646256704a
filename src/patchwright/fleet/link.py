"""One server, as its clients reach it: connections that are kept, and requests that are sent again after a
lost one. Below `node_client.py`, which knows what a node takes, and the pool, which passes things on.

Requests that do something carry an idempotency key, so after a lost connection the same request is sent
again and joins the command that is still running, or gets its answer.
"""

from __future__ import annotations

import asyncio
import math
import random
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

import aiohttp

from patchwright.fleet import api
from patchwright.fleet.api import NodeError
from patchwright.fleet.node_reply import Reply

__all__ = ["CONNECT_SECONDS", "Link", "Lost", "Streamed"]

CONNECT_SECONDS = 10.0
"""How long a connection may take to be made."""
_KEPT = 30.0
"""Seconds an idle connection is kept: less than servers keep theirs."""
_UNCONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_FIRST_WAIT = 0.05
_LONGEST_WAIT = 2.0


class Lost(NodeError):
    """An answer that had begun did not come to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """An answer that is read as it comes. Example: `async for chunk in streamed.chunks: ...`"""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    """Raises Lost when the connection breaks."""

    async def whole(self) -> Reply:
        """The rest of it at once, as of a plain request."""
        body = b"".join([chunk async for chunk in self.chunks])
        return Reply(status=self.status, body=body, headers=self.headers)


class Retry:
    """How long to go on asking a server that does not answer.

    Example: `retry = Retry("http://10.0.0.5:5000", patience=30)`, then `await retry.pause(error)` after each
    failure.
    """

    def __init__(self, url: str, patience: float) -> None:
        self._url = url
        self._patience = patience
        self._until = math.inf
        self._wait = _FIRST_WAIT
        self._started = time.monotonic()

    async def pause(self, error: Exception) -> None:
        """Wait before the next try. Raises NodeError when time is up.

        After a request that was at work for longer than the patience it is a new trouble, with all the time
        again. One that had an answer due and got none is not sent again: that would double the wait.
        """
        now = time.monotonic()
        if not isinstance(error, _UNCONNECTED) and now - self._started > self._patience:
            self._until = math.inf
        self._until = min(self._until, now + self._patience)
        if isinstance(error, aiohttp.SocketTimeoutError) or now + self._wait > self._until:
            reason = str(error) or type(error).__name__
            raise NodeError(f"node {self._url} does not answer: {reason}") from error
        await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._started = time.monotonic()


class Link:
    """Talks to one server. `token` is sent unless a request has its own; connection errors are retried for
    `patience` seconds; `verify` says whom to trust when it speaks HTTPS, the system's authorities when left
    out. Used in one event loop.

    Example: `reply = await Link("http://127.0.0.1:5000", token).request("GET", "/status")`
    """

    def __init__(
        self, url: str, token: str = "", *, patience: float = 30.0, verify: ssl.SSLContext | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._patience = patience
        self._verify = verify
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        """Close the connections. Closing twice is allowed."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        """Nothing is sent."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        key: str = "",
        token: str = "",
        timeout: float = 60.0,
        retry: bool = True,
    ) -> Reply:
        """One request, and its answer whatever its status: what a pool passes on.

        With `retry` it must be one that may be sent twice, by its nature or by its `key`. Raises NodeError
        (status 0) when no answer comes.
        """
        url = self._address(path, params)
        sent = {**(headers or {}), **self._headers(key, token)}
        again = Retry(self.url, self._patience if retry else 0)
        while True:
            try:
                async with await self._ask(method, url, body, sent, timeout) as reply:
                    return Reply(status=reply.status, body=await reply.read(), headers=reply.headers)
            except aiohttp.ClientError as error:
                await again.pause(error)

    @asynccontextmanager
    async def stream(
        self, path: str, body: bytes, *, key: str, token: str = "", timeout: float = 60.0
    ) -> AsyncIterator[Streamed]:
        """POST, and the answer as it comes; `timeout` is the longest silence in it.

        Raises NodeError (status 0) when no answer begins.
        """
        url, headers = self._address(path, None), self._headers(key, token)
        again = Retry(self.url, self._patience)
        while True:
            try:
                reply = await self._ask("POST", url, body, headers, timeout)
                break
            except aiohttp.ClientError as error:
                await again.pause(error)
        async with reply:
            yield Streamed(status=reply.status, headers=reply.headers, chunks=_chunks(reply))

    async def _ask(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout: float
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = self._open()
        waits = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=timeout)
        return await self._session.request(
            method, url, data=body, headers=headers, timeout=waits, allow_redirects=False
        )

    def _open(self) -> aiohttp.ClientSession:
        """A session bare of what no node has: cookies, compression, redirects."""
        if self._closed:
            raise NodeError(f"the connections to {self.url} were closed")
        trust = True if self._verify is None else self._verify
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT, ssl=trust),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("accept-encoding", "user-agent"),
            auto_decompress=False,
        )

    def _address(self, path: str, params: Mapping[str, str] | None) -> str:
        query = f"?{urlencode(params, errors='replace')}" if params else ""
        return f"{self.url}{path}{query}"

    def _headers(self, key: str, token: str) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if token or self._token:
            headers["authorization"] = f"Bearer {token or self._token}"
        if key:
            headers[api.IDEMPOTENCY_KEY] = key
        return headers


async def _chunks(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in reply.content.iter_any():
            yield chunk
    except aiohttp.SocketTimeoutError as error:
        raise NodeError(f"node {reply.url.origin()} does not answer: {error}") from error
    except aiohttp.ClientError as error:
        raise Lost(f"the answer broke off: {error}") from error
