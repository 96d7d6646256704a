"""The client of one node: what a node takes, and what it answers, over a `Link`."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import Any

from patchwright.fleet import api
from patchwright.fleet.api import NodeError
from patchwright.fleet.link import CONNECT_SECONDS, Link, Lost, Retry
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

_SLACK = 60.0
"""Seconds an answer may take beyond what was asked for."""


class NodeClient(Link):
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

    _box = "container_id"
    """Field with which requests name their box."""
    _without = ""
    """Start of a node's paths that the server's lack."""

    # --- the node -----------------------------------------------------------------------------

    async def health(self) -> bool:
        """Whether the node answers and can make boxes. Nothing is raised, nothing retried."""
        try:
            reply = await self.request("GET", api.HEALTH, timeout=CONNECT_SECONDS, retry=False)
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
        body = {**self._named(container_id), **_lease(lease_id, lease_token, fence, ttl)}
        return read_created(await self._do(api.FORK, body, _SLACK, key, token))

    async def destroy(self, container_id: str, *, token: str = "") -> None:
        """End a box; fine when it is gone already. Status 404: it never was there."""
        await self._do(api.DESTROY, self._named(container_id), _SLACK, "", token)

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
            **self._named(container_id),
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
        await self._do(api.CANCEL, {**self._named(container_id), "key": key}, 0, "", token)

    async def diff(self, container_id: str, *, cwd: str = "", token: str = "") -> Diff:
        """What changed in the box's repository."""
        reply = await self._do(api.DIFF, {**self._named(container_id), "cwd": cwd}, 3 * _SLACK, "", token)
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
        rules: str = "strict",
        fail_to_pass: tuple[str, ...] = (),
        pass_to_pass: tuple[str, ...] = (),
        key: str = "",
        token: str = "",
    ) -> Verdict:
        """The verdict on a patch; see `api.EvaluateRequest`. NodeError (500) when no test reported."""
        body = {
            **self._named(container_id),
            "patch": patch,
            "eval_script": eval_script,
            "cwd": cwd,
            "timeout": timeout,
            "parser": parser,
            "rules": rules,
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
        params = {**self._named(container_id), "path": path}
        reply = await self.request("GET", self._path(api.FILE), params=params, token=token)
        return checked(reply, path, of_lease=bool(token)).body

    async def write(
        self, container_id: str, path: str, data: bytes, *, mode: int = 0o644, token: str = ""
    ) -> None:
        """Write a file; OSError as `Sandbox.write` has it."""
        params = {**self._named(container_id), "path": path}
        headers = {api.FILE_MODE: f"{mode:o}"}
        where = self._path(api.FILE)
        reply = await self.request("PUT", where, body=data, params=params, headers=headers, token=token)
        checked(reply, path, of_lease=bool(token))

    # --- the wire -----------------------------------------------------------------------------

    async def _do(self, path: str, body: dict[str, Any], timeout: float, key: str, token: str) -> Reply:
        content, key = _encode(body), key or _new_key()
        reply = await self.request(
            "POST", self._path(path), body=content, key=key, token=token, timeout=timeout + _SLACK
        )
        return checked(reply, of_lease=bool(token))

    async def _stream(
        self, body: dict[str, Any], timeout: float, on_output: Callable[[bytes], None], key: str, token: str
    ) -> Exec:
        content, path = _encode(body), self._path(api.STREAM)
        again, silence = Retry(self.url, timeout + self._patience), timeout + _SLACK
        while True:
            try:
                async with self.stream(path, content, key=key, token=token, timeout=silence) as reply:
                    if reply.status != 200:
                        checked(await reply.whole(), of_lease=bool(token))
                    return await _followed(reply.chunks, on_output)
            except Lost as error:
                await again.pause(error)

    def _named(self, box: str) -> dict[str, Any]:
        """How a request names its box."""
        return {self._box: box}

    def _path(self, path: str) -> str:
        """Where the server has what a node has at `path`."""
        return path.removeprefix(self._without)


async def _followed(chunks: AsyncIterator[bytes], on_output: Callable[[bytes], None]) -> Exec:
    """Hand on the output of a streamed command, and its result. Raises NodeError; Lost before the end."""
    async for line in _lines(chunks):
        event = read_event(line)
        if "output" in event:
            on_output(base64.b64decode(event["output"]))
        elif "result" in event:
            return read_exec(event["result"])
        else:
            message = str(event.get("error", "a stream that is none"))
            raise NodeError(message, int(event.get("status", 500)))
    raise Lost("the stream ended early")


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines; what an end cuts off is none."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        *lines, tail = rest.split(b"\n") if b"\n" in chunk else (rest,)
        rest = tail
        for line in lines:
            yield bytes(line)


def _new_key() -> str:
    return secrets.token_hex(12)


def _encode(body: dict[str, Any]) -> bytes:
    """JSON; what is no character, which models do write, becomes a question mark as in every sandbox."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _lease(lease_id: str, lease_token: str, fence: int | None, ttl: float | None) -> dict[str, Any]:
    return {"lease_id": lease_id, "lease_token": lease_token, "fence": fence, "ttl": ttl}
