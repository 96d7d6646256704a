"""The few calls of the Docker Engine API that `docker.py` needs, over the engine's Unix socket."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox.channel import Channel

_CALL = 120.0
"""Seconds for one call on a busy machine."""
_PULL = 3600.0
_DOCKER = "/var/run/docker.sock"
_FRAME = 8
_STDERR = 2
_KEPT = 2000
_TRIES = 20
_PAUSE = 0.1


def engine_socket() -> str:
    """Path of the engine's socket: what DOCKER_HOST says, or Docker's own, or Podman's if only that exists.

    Raises ConfigError when DOCKER_HOST is no Unix socket.
    """
    host = os.environ.get("DOCKER_HOST")
    if host:
        if not host.startswith("unix://"):
            raise ConfigError(f"DOCKER_HOST is {host!r}; only a Unix socket can be used: `unix:///PATH`")
        return host.removeprefix("unix://")
    users = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    known = (_DOCKER, f"{users}/podman/podman.sock", "/run/podman/podman.sock")
    return next((path for path in known if Path(path).exists()), _DOCKER)


class DockerApi:
    """A client of one engine. Every method raises SandboxError when the engine does not answer."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        transport = httpx.AsyncHTTPTransport(uds=socket, verify=False)  # no TLS on a Unix socket
        self._client = httpx.AsyncClient(transport=transport, base_url="http://docker", timeout=_CALL)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        timeout: float = _CALL,
    ) -> tuple[int, str]:
        """Status and text of one call; a refusal is returned, not raised."""
        if self._client.is_closed:
            raise SandboxError("the sandbox backend is closed")
        try:
            reply = await self._client.request(method, path, params=query, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise SandboxError(
                f"Docker does not answer at {self._socket} ({reason}); start it, set DOCKER_HOST, "
                "or use `--sandbox namespace`"
            ) from error
        return reply.status_code, reply.text

    async def pull(self, image: str) -> str:
        """Try once to pull `image`; what went wrong, or an empty text."""
        name = image if ":" in image.rpartition("/")[2] else f"{image}:latest"
        query = {"fromImage": name}
        status, text = await self.call("POST", "/images/create", query=query, timeout=_PULL)
        last = text.strip().rpartition("\n")[2]
        return message(text) if status >= 400 else message(last) if '"error"' in last else ""

    async def load(self, archive: Path) -> None:
        """Take the images of an archive in, under the names it gives them."""

        async def chunks() -> AsyncIterator[bytes]:
            with archive.open("rb") as file:
                while chunk := file.read(1 << 20):
                    yield chunk

        headers = {"Content-Type": "application/x-tar"}
        try:
            reply = await self._client.post(
                "/images/load", params={"quiet": "1"}, content=chunks(), headers=headers, timeout=_PULL
            )
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise SandboxError(f"Docker does not answer at {self._socket} ({reason}); start it") from error
        if reply.status_code != 200 or '"error"' in reply.text:
            raise SandboxError(f"Docker does not load {archive.name}: {message(reply.text)}")

    async def containers(self, label: str) -> list[dict[str, Any]]:
        """All containers, running or not, that carry `label`."""
        query = {"all": "1", "filters": json.dumps({"label": [label]})}
        status, text = await self.call("GET", "/containers/json", query=query)
        if status != 200:
            raise SandboxError(f"Docker does not list its containers: {message(text)}")
        found: list[dict[str, Any]] = json.loads(text)
        return found

    async def remove(self, name: str) -> bool:
        """Kill a container and remove it with its volumes; whether it is gone, not just going."""
        query = {"force": "1", "v": "1"}
        for _ in range(_TRIES):
            status, text = await self.call("DELETE", f"/containers/{name}", query=query)
            if status in (204, 404, 409):
                return status != 409
            await asyncio.sleep(_PAUSE)  # Podman fails so while the container is ending by itself
        raise SandboxError(f"Docker does not remove container {name}: {message(text)}")

    async def commit(self, name: str, labels: Mapping[str, str]) -> str:
        """Make an unnamed image of a container's files as they are now, without stopping it; its id."""
        query, body = {"container": name, "pause": "0"}, {"Labels": dict(labels)}
        status, text = await self.call("POST", "/commit", query=query, body=body)
        if status != 201:
            raise SandboxError(f"Docker does not commit container {name}: {message(text)}")
        return str(json.loads(text)["Id"])

    async def images(self, label: str) -> list[dict[str, Any]]:
        """All images that carry `label`, the newest first."""
        query = {"all": "1", "filters": json.dumps({"label": [label]})}
        status, text = await self.call("GET", "/images/json", query=query)
        if status != 200:
            raise SandboxError(f"Docker does not list its images: {message(text)}")
        found: list[dict[str, Any]] = json.loads(text)
        return sorted(found, key=lambda image: int(image["Created"]), reverse=True)

    async def remove_image(self, name: str) -> bool:
        """Remove an image; whether it is gone. One that others are made from goes with the last."""
        status, text = await self.call("DELETE", f"/images/{name}")
        if status not in (200, 404, 409):
            raise SandboxError(f"Docker does not remove image {name}: {message(text)}")
        return status != 409

    async def attach(self, name: str, limit: int) -> DockerChannel:
        """Connect to the stdin, stdout and stderr of a container that is about to start.

        `limit` bounds what one reply of its runner may carry, in bytes.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CALL):
                make = functools.partial(DockerChannel, name, limit)
                _, channel = await loop.create_unix_connection(make, self._socket)
                await channel.attached
        except OSError as error:  # a timeout is one too
            raise SandboxError(f"Docker does not answer at {self._socket}: {error!r}") from error
        return channel

    async def aclose(self) -> None:
        """Hang up. Closing twice is allowed."""
        await self._client.aclose()


class DockerChannel(Channel):
    """A channel to PID 1 of a container: past the engine's HTTP answer, output comes in its frames.

    Each frame is one byte that names the stream, three zeros, a length, and as many bytes ("Attach to a
    container" in the Engine API's reference).
    """

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(limit)
        self.attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._name = name
        self._buffer = bytearray()
        self._errors = ""
        self._end = "the box died: its container or Docker itself has ended"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(transport)
        self.send(
            f"POST /containers/{self._name}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
            "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n".encode()
        )

    def send(self, data: bytes) -> None:
        """Write to the container's stdin."""
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._buffer += data
        if not self.attached.done():
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            self._buffer = rest
            self._answered(bytes(head))
        while (frame := self._next()) is not None:
            kind, content = frame
            if kind == _STDERR:
                self._errors = (self._errors + content.decode("utf-8", "replace"))[-_KEPT:]
                self._end = f"the box died: {self._errors}"
            else:
                super().data_received(content)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        if not self.attached.done():
            self.attached.set_exception(SandboxError("Docker hung up while attaching to a container"))
        super().connection_lost(exc)

    def _answered(self, head: bytes) -> None:
        if head.split(b" ", 2)[1:2] in ([b"101"], [b"200"]):
            self.attached.set_result(None)
            return
        line = head.partition(b"\r\n")[0].decode("utf-8", "replace")
        self.attached.set_exception(SandboxError(f"Docker does not attach to a container: {line}"))
        self.close("not attached")

    def _next(self) -> tuple[int, bytes] | None:
        end = _FRAME + int.from_bytes(self._buffer[4:_FRAME], "big")
        if len(self._buffer) < max(end, _FRAME):
            return None
        kind, content = self._buffer[0], bytes(self._buffer[_FRAME:end])
        del self._buffer[:end]
        return kind, content


def message(text: str) -> str:
    """The engine's own words in an error it returned."""
    try:
        reply = json.loads(text)
    except ValueError:
        return text.strip()[:500]
    return str(reply.get("message") or reply.get("error") or text) if isinstance(reply, dict) else text
