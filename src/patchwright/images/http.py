"""HTTP as registries want it: bearer tokens, redirects, and patience that honours `Retry-After`.

Everything a server says is bounded: bodies that are read whole have a limit, blobs the size their manifest
gave them.
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import ipaddress
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx

from patchwright.errors import ConfigError, ImageError
from patchwright.images.credentials import challenge, token_of
from patchwright.images.manifest import parse_json

__all__ = ["Again", "Http", "Missing", "is_loopback"]

T = TypeVar("T")
_READ = 60.0
"""Seconds without a byte after which a connection counts as dead."""
_LONGEST_BACKOFF = 60.0
_LONGEST_WISH = 900.0
"""Seconds; a server's `Retry-After` beyond it is cut."""
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_TOKEN_LIMIT = 1 << 20


class Again(Exception):
    """A request failed in a way that may pass. `after`: seconds the server asks for."""

    def __init__(self, reason: str, after: float | None = None, *, moved: bool = False) -> None:
        super().__init__(reason)
        self.after = after
        self.moved = moved
        """Whether it got on nevertheless, so that it does not count as a failure."""


class Missing(ImageError):
    """The server has no such thing, or does not show it to us."""


class Http:
    """One client for all registries; `credentials` are `Authorization` headers by host."""

    def __init__(
        self, *, credentials: Mapping[str, str], retries: int, backoff: float, insecure: bool
    ) -> None:
        self._credentials = credentials
        self._retries = retries
        self._backoff = backoff
        self._insecure = insecure
        self._tokens: dict[tuple[str, str], str] = {}
        self._not_before: dict[str, float] = {}
        loopback: dict[str, httpx.AsyncBaseTransport | None] = {
            f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")
        }
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(_READ, connect=20.0, pool=None),
            follow_redirects=True,
            max_redirects=5,
            mounts=loopback,  # never through a proxy
            event_hooks={"request": [self._guard]},
        )

    async def aclose(self) -> None:
        """Hang up."""
        await self._client.aclose()

    async def small(self, url: str, *, scope: str, accept: str = "*/*", limit: int) -> tuple[bytes, str]:
        """Body and `Docker-Content-Digest` of a GET, at most `limit` bytes; see `patiently` for errors."""

        async def once() -> tuple[bytes, str]:
            async with self.stream(url, scope=scope, headers={"Accept": accept}) as reply:
                return await _whole(reply, limit), reply.headers.get("Docker-Content-Digest", "")

        return await self.patiently(url, once)

    async def patiently(self, url: str, once: Callable[[], Awaitable[T]]) -> T:
        """Do it again while it fails in a way that may pass.

        Raises ImageError when it has failed too often, Missing when the server does not have it.
        """
        host, failures = httpx.URL(url).netloc.decode("ascii"), 0
        while True:
            await self._wait(host)
            try:
                return await once()
            except Again as error:
                failures = 1 if error.moved else failures + 1
                reason, after = str(error), error.after
            except httpx.TransportError as error:
                failures, after = failures + 1, None
                reason = str(error) or type(error).__name__
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise ImageError(f"{url} cannot be fetched: {error}") from None
            if failures > self._retries:
                raise ImageError(f"{url} cannot be fetched, tried {failures} times: {reason}")
            if after is not None:  # asked by the server, of all of us
                self._not_before[host] = max(self._not_before.get(host, 0.0), time.monotonic() + after)
            else:
                await asyncio.sleep(_backoff(self._backoff, failures))

    @asynccontextmanager
    async def stream(
        self, url: str, *, scope: str, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """One GET whose status is below 400, or 416. Raises Again, Missing, ImageError, httpx.HTTPError."""
        for last in (False, True):
            login = self._login(url, scope)
            async with self._client.stream("GET", url, headers={**headers, **login}) as reply:
                refused = reply.status_code == 401 and not last
                if refused and await self._authorised(url, scope, reply, login.get("Authorization")):
                    continue
                _check_status(reply, url)
                yield reply
                return

    # --- who we are ---------------------------------------------------------------------------

    def _login(self, url: str, scope: str) -> dict[str, str]:
        known = self._tokens.get((httpx.URL(url).netloc.decode("ascii"), scope))
        return {"Authorization": known} if known else {}

    async def _authorised(self, url: str, scope: str, reply: httpx.Response, sent: str | None) -> bool:
        """Whether there is now an answer to the server's challenge other than the one `sent`."""
        host = httpx.URL(url).netloc.decode("ascii")
        scheme, wish = challenge(reply.headers.get("WWW-Authenticate", ""))
        known, own = self._tokens.get((host, scope)), self._credentials.get(host)
        if known != sent:  # another request has asked meanwhile
            return True
        if scheme == "bearer" and wish.get("realm"):
            answer = f"Bearer {await self._token(wish, scope, own)}"
        elif scheme == "basic" and own:
            answer = own
        else:
            return False
        self._tokens[host, scope] = answer
        return answer != sent

    async def _token(self, wish: Mapping[str, str], scope: str, own: str | None) -> str:
        """As the token server says ("Token Authentication", distribution's specification)."""
        query = {"service": wish.get("service", ""), "scope": wish.get("scope") or scope}
        headers = {"Authorization": own} if own else {}
        realm = wish["realm"]
        async with self._client.stream("GET", realm, params=query, headers=headers) as reply:
            if reply.status_code in (401, 403):
                raise ImageError(f"{realm} refuses the login of this machine; run `docker login` again")
            _check_status(reply, realm)
            return token_of(parse_json(await _whole(reply, _TOKEN_LIMIT), realm), realm)

    async def _guard(self, request: httpx.Request) -> None:
        """Redirects and realms are the server's word, so each request is looked at."""
        host = request.url.host
        if request.url.scheme != "https" and not self._insecure and not is_loopback(host):
            raise ConfigError(
                f"{host} would be asked over plain HTTP; use https, or allow it with --insecure"
            )

    async def _wait(self, host: str) -> None:
        left = self._not_before.get(host, 0.0) - time.monotonic()
        if left > 0:  # not all at once when the time has come
            await asyncio.sleep(left + random.random() * min(1.0, left / 10))


def _check_status(reply: httpx.Response, url: str) -> None:
    status = reply.status_code
    if status in _RETRIED:
        raise Again(f"status {status}", _retry_after(reply.headers.get("Retry-After", "")))
    if status in (401, 403, 404):
        raise Missing(f"{url} is not there, or needs a login (status {status}); check the name, or log in")
    if status >= 400 and status != 416:
        raise ImageError(f"{url} answers with status {status}")


def _retry_after(header: str) -> float | None:
    """Seconds, from seconds or a date (RFC 9110, 10.2.3)."""
    try:
        return min(max(float(header), 0.0), _LONGEST_WISH)
    except ValueError:
        pass
    try:
        date = email.utils.parsedate_to_datetime(header)
        left = date - datetime.datetime.now(date.tzinfo or datetime.UTC)
        return min(max(left.total_seconds(), 0.0), _LONGEST_WISH)
    except (ValueError, TypeError):
        return None


def _backoff(first: float, failures: int) -> float:
    longest = min(first * 2.0 ** min(failures - 1, 30), _LONGEST_BACKOFF)
    return longest * (0.5 + random.random() / 2)


async def _whole(reply: httpx.Response, limit: int) -> bytes:
    body = bytearray()
    async for chunk in reply.aiter_bytes():
        body += chunk
        if len(body) > limit:
            raise ImageError(f"{reply.url} answers with more than {limit} bytes")
    return bytes(body)


def is_loopback(host: str) -> bool:
    """Whether a host (no port) is this machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
