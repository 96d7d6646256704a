"""The client of one node: keep-alive, and retries that never run a command twice.

Requests that do something carry an idempotency key, so after a lost connection the same request is sent
again and joins the command that is still running, or gets its answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import httpx

from patchwright.fleet import api
from patchwright.fleet.api import NodeError
from patchwright.fleet.node_reply import (
    Created,
    Diff,
    Reply,
    Verdict,
    checked,
    field,
    read_created,
    read_event,
    read_exec,
)
from patchwright.types import Exec, Limits

__all__ = ["Created", "Diff", "NodeClient", "Reply", "Verdict"]

_CONNECT = 10.0
_SLACK = 60.0
"""Seconds an answer may take beyond what was asked for."""
_POOL = httpx.Limits(max_connections=None, max_keepalive_connections=512, keepalive_expiry=30)
_UNCONNECTED = (httpx.ConnectError, httpx.ConnectTimeout)
_FIRST_WAIT = 0.05
_LONGEST_WAIT = 2.0


class NodeClient:
    """Talks to one node. Every method raises NodeError (a SandboxError, with the HTTP `status`).

    `token` is the node's, or a lease's; a method's own `token` wins over it. `key` is the idempotency key,
    a random one when left out. Connection errors are retried for `patience` seconds; `verify` says whom to
    trust when the node speaks HTTPS, the system's authorities when left out.

    Example::

        async with NodeClient("http://127.0.0.1:5000", token) as node:
            box = await node.create("host")
            done = await node.exec(box.container_id, "git status")
            await node.destroy(box.container_id)
    """

    def __init__(
        self, url: str, token: str = "", *, patience: float = 30.0, verify: ssl.SSLContext | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._patience = patience
        trust: ssl.SSLContext | bool = verify or self.url.startswith("https:")
        # No httpx.AsyncClient: redirects, cookies and proxies, which no node has, are a quarter of its cost.
        self._http = httpx.AsyncHTTPTransport(verify=trust, limits=_POOL)

    async def close(self) -> None:
        """Close the connections. Closing twice is allowed."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Nothing is sent."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    # --- the node -----------------------------------------------------------------------------

    async def health(self) -> bool:
        """Whether the node answers and can make boxes. Nothing is raised, nothing retried."""
        try:
            reply = await self.request("GET", api.HEALTH, timeout=_CONNECT, retry=False)
        except NodeError:
            return False
        return reply.status == 200 and reply.json().get("ok") is True

    async def images(self) -> list[str]:
        """Names of the images that are there."""
        reply = checked(await self.request("GET", api.IMAGES))
        return [str(name) for name in field(reply, "images", list)]

    async def status(self) -> dict[str, Any]:
        """`{active_containers, containers: [{container_id, image, created, lease_id, idle, ttl}]}`."""
        return checked(await self.request("GET", api.STATUS)).json()

    # --- boxes --------------------------------------------------------------------------------

    async def create(
        self,
        image: str,
        *,
        cwd: str = "/testbed",
        env: Mapping[str, str] | None = None,
        archive: bytes = b"",
        limits: Limits | None = None,
        timeout: float = 120.0,
        lease_id: str = "",
        lease_token: str = "",
        fence: int | None = None,
        ttl: float | None = None,
        key: str = "",
    ) -> Created:
        """A new box; see `api.CreateRequest`."""
        body = {
            "image": image,
            "cwd": cwd,
            "env": dict(env or {}),
            "archive": _text(archive),
            "limits": asdict(limits) if limits else {},
            "timeout": timeout,
            **_lease(lease_id, lease_token, fence, ttl),
        }
        return read_created(await self._do(api.CREATE, body, timeout, key, ""))

    async def fork(
        self,
        container_id: str,
        *,
        lease_id: str = "",
        lease_token: str = "",
        fence: int | None = None,
        ttl: float | None = None,
        key: str = "",
        token: str = "",
    ) -> Created:
        """A copy of a box; what is left out is inherited."""
        body = {"container_id": container_id, **_lease(lease_id, lease_token, fence, ttl)}
        return read_created(await self._do(api.FORK, body, _SLACK, key, token))

    async def destroy(self, container_id: str, *, token: str = "") -> None:
        """End a box; fine when it is gone already. Status 404: it never was there."""
        await self._do(api.DESTROY, {"container_id": container_id}, _SLACK, "", token)

    async def renew(self, leases: Mapping[str, float]) -> list[str]:
        """Say that leases are in use, for so many seconds each; returns those unknown there."""
        reply = await self._do(api.RENEW, {"leases": dict(leases)}, 0, "", "")
        return [str(lease) for lease in field(reply, "unknown", list)]

    async def close_lease(self, lease_id: str, fence: int = 0) -> None:
        """End every box of a lease, and those being made."""
        await self._do(api.CLOSE_LEASE, {"lease_id": lease_id, "fence": fence}, _SLACK, "", "")

    # --- work ---------------------------------------------------------------------------------

    async def exec(
        self,
        container_id: str,
        command: str,
        *,
        cwd: str = "",
        timeout: float = 180.0,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        on_output: Callable[[bytes], None] | None = None,
        key: str = "",
        token: str = "",
    ) -> Exec:
        """Run a command; see `Sandbox.exec`.

        `on_output` gets the output as it comes; after a lost connection, what came
        meanwhile is missing there.
        """
        body = {
            "container_id": container_id,
            "command": command.encode("utf-8", "replace").decode(),  # half a surrogate is no JSON
            "cwd": cwd,
            "timeout": timeout,
            "env": dict(env or {}),
            "stdin": _text(stdin),
        }
        if on_output is None:
            reply = await self._do(api.EXEC, body, timeout, key, token)
            return read_exec(reply.json())
        return await self._stream(body, timeout, on_output, key or _new_key(), token)

    async def cancel(self, container_id: str, key: str, *, token: str = "") -> None:
        """Kill the command that was asked for with `key`; one that has not arrived yet never starts."""
        await self._do(api.CANCEL, {"container_id": container_id, "key": key}, 0, "", token)

    async def diff(self, container_id: str, *, cwd: str = "", token: str = "") -> Diff:
        """What changed in the box's repository."""
        reply = await self._do(api.DIFF, {"container_id": container_id, "cwd": cwd}, 3 * _SLACK, "", token)
        data = reply.json()
        return Diff(
            patch=field(reply, "patch", str),
            returncode=field(reply, "returncode", int),
            error=str(data.get("error", "")),
        )

    async def evaluate(
        self,
        container_id: str,
        patch: str,
        eval_script: str,
        *,
        cwd: str = "",
        timeout: float = 3600.0,
        parser: str = "pytest",
        fail_to_pass: tuple[str, ...] = (),
        pass_to_pass: tuple[str, ...] = (),
        key: str = "",
        token: str = "",
    ) -> Verdict:
        """The verdict on a patch; see `api.EvaluateRequest`. NodeError (500) when no test reported."""
        body = {
            "container_id": container_id,
            "patch": patch,
            "eval_script": eval_script,
            "cwd": cwd,
            "timeout": timeout,
            "parser": parser,
            "fail_to_pass": fail_to_pass,
            "pass_to_pass": pass_to_pass,
        }
        reply = await self._do(api.EVALUATE, body, timeout + 3 * _SLACK, key, token)
        data = reply.json()
        return Verdict(
            resolved=field(reply, "resolved", bool),
            returncode=int(data.get("returncode", 0)),
            output=str(data.get("output", "")),
            error=str(data.get("error", "")),
        )

    async def read(self, container_id: str, path: str, *, token: str = "") -> bytes:
        """The content of a file; OSError as `Sandbox.read` has it."""
        params = {"container_id": container_id, "path": path}
        return checked(await self.request("GET", api.FILE, params=params, token=token), path).body

    async def write(
        self, container_id: str, path: str, data: bytes, *, mode: int = 0o644, token: str = ""
    ) -> None:
        """Write a file; OSError as `Sandbox.write` has it."""
        params = {"container_id": container_id, "path": path}
        headers = {api.FILE_MODE: f"{mode:o}"}
        reply = await self.request("PUT", api.FILE, body=data, params=params, headers=headers, token=token)
        checked(reply, path)

    # --- the wire -----------------------------------------------------------------------------

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
        request = self._request(method, path, body, {**(headers or {}), **self._headers(key, token)}, timeout)
        if params:
            request.url = request.url.copy_merge_params(params)
        until, wait = math.inf, _FIRST_WAIT
        while True:
            try:
                started = time.monotonic()
                reply = await self._http.handle_async_request(request)
                return Reply(status=reply.status_code, body=await reply.aread(), headers=reply.headers)
            except httpx.TransportError as error:
                if not isinstance(error, _UNCONNECTED) and time.monotonic() - started > self._patience:
                    until = math.inf  # it worked for long, so this is a new trouble
                until = min(until, time.monotonic() + (self._patience if retry else 0))
                wait = await self._again(error, until, wait)

    async def _do(self, path: str, body: dict[str, Any], timeout: float, key: str, token: str) -> Reply:
        content = _encode(body)
        reply = await self.request(
            "POST", path, body=content, key=key or _new_key(), token=token, timeout=timeout + _SLACK
        )
        return checked(reply)

    async def _stream(
        self, body: dict[str, Any], timeout: float, on_output: Callable[[bytes], None], key: str, token: str
    ) -> Exec:
        content = _encode(body)
        until, wait = time.monotonic() + timeout + self._patience, _FIRST_WAIT
        while True:
            try:
                async with self._lines(content, timeout, key, token) as lines:
                    async for line in lines:
                        event = read_event(line)
                        if "output" in event:
                            on_output(base64.b64decode(event["output"]))
                        elif "result" in event:
                            return read_exec(event["result"])
                        else:
                            message = str(event.get("error", "a stream that is none"))
                            raise NodeError(message, int(event.get("status", 500)))
                raise httpx.RemoteProtocolError("the stream ended early")
            except httpx.TransportError as error:
                wait = await self._again(error, until, wait)

    @asynccontextmanager
    async def _lines(
        self, content: bytes, timeout: float, key: str, token: str
    ) -> AsyncIterator[AsyncIterator[str]]:
        headers = self._headers(key, token)
        request = self._request("POST", api.STREAM, content, headers, timeout + _SLACK)
        reply = await self._http.handle_async_request(request)
        try:
            if reply.status_code != 200:
                body = await reply.aread()
                checked(Reply(status=reply.status_code, body=body, headers=reply.headers))
            yield reply.aiter_lines()
        finally:
            await reply.aclose()

    def _request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout: float
    ) -> httpx.Request:
        waits = httpx.Timeout(timeout, connect=_CONNECT).as_dict()
        return httpx.Request(
            method, self.url + path, content=body, headers=headers, extensions={"timeout": waits}
        )

    def _headers(self, key: str, token: str) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if token or self._token:
            headers["authorization"] = f"Bearer {token or self._token}"
        if key:
            headers[api.IDEMPOTENCY_KEY] = key
        return headers

    async def _again(self, error: httpx.TransportError, until: float, wait: float) -> float:
        """Wait before the next try; how long to wait after that. Raises NodeError when time is up."""
        late = isinstance(error, httpx.ReadTimeout)  # it hangs: to ask again would double the wait
        if late or time.monotonic() + wait > until:
            reason = str(error) or type(error).__name__
            raise NodeError(f"node {self.url} does not answer: {reason}") from error
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))
        return min(2 * wait, _LONGEST_WAIT)


def _new_key() -> str:
    return secrets.token_hex(12)


def _encode(body: dict[str, Any]) -> bytes:
    """JSON; what is no character, which models do write, becomes a question mark as in every sandbox."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _lease(lease_id: str, lease_token: str, fence: int | None, ttl: float | None) -> dict[str, Any]:
    return {"lease_id": lease_id, "lease_token": lease_token, "fence": fence, "ttl": ttl}
