"""The model for programs inside a box: a port of the box that leads to an endpoint, and adds its secret.

The box has no network and never sees the secret: what a program there sends is taken over by this side
(`Sandbox.listen`), which writes the address and the key of the endpoint into every request. Whoever looks
into the environment, the files or the memory of the harness finds a placeholder. What the box can do is
what it must be able to do: call the model, which its session records and bounds.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from patchwright.errors import ConfigError
from patchwright.sandbox.base import Connection, Sandbox
from patchwright.types import Endpoint

__all__ = ["KEY", "PORT", "inside"]

PORT = 8011
"""The port in boxes with a network of their own: equal in all of them, for it may enter prompts."""
KEY = "in-the-box"
"""What programs give as their API key. It opens nothing."""

_MOST_HEAD = 64 * 1024
"""Bytes of a request's line and headers."""
_OURS = ("authorization", "x-api-key", "api-key", "host", "connection", "proxy-authorization")
"""Headers that are written anew."""
_LINE = re.compile(rb"([A-Z]{1,16}) /v1(/[!-~]*) HTTP/1\.1")


async def inside(box: Sandbox, model: Endpoint) -> Endpoint:
    """The same model, for programs in `box`: OpenAI clients take `base_url` as it is, Anthropic's without
    its `/v1`. It holds until the box closes.

    Raises ConfigError when this backend cannot do it, or the endpoint's address is no HTTP address.
    """
    door = _Door.of(model)
    port = await box.listen(door.serve, port=PORT)
    return Endpoint(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, model=model.model)


@dataclass(frozen=True, slots=True)
class _Door:
    """Where requests go."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    path: str
    """Stands in the place of `/v1`."""
    key: str

    @classmethod
    def of(cls, model: Endpoint) -> _Door:
        url = urlsplit(model.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"the model's address must be an http URL, and {model.base_url!r} is none")
        tls = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if tls else 80)
        return cls(url.hostname, port, tls, url.path.rstrip("/"), model.api_key)

    async def serve(self, connection: Connection) -> None:
        """One request; a program that has another one connects again."""
        head, rest = await _head(connection)
        request = self._rewritten(head)
        if request is None:
            if head:
                await connection.write(_refusal(404, "here are only the paths below /v1/"))
            return
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        except OSError:
            await connection.write(_refusal(503, "the model cannot be reached"))
            return
        try:
            writer.write(request + rest)
            await _exchange(connection, reader, writer)
        finally:
            writer.close()

    def _rewritten(self, head: bytes) -> bytes | None:
        """The head as the endpoint wants it; None for what is no request to it."""
        line, *headers = head.split(b"\r\n")
        found = _LINE.fullmatch(line)
        if found is None or not all(_is_header(header) for header in headers):
            return None
        names = [header.partition(b":")[0].decode("ascii").lower() for header in headers]
        kept = [header for header, name in zip(headers, names, strict=True) if name not in _OURS]
        key = f"x-api-key: {self.key}" if "x-api-key" in names else f"authorization: Bearer {self.key}"
        target = self.path.encode() + found[2]
        first = found[1] + b" " + target + b" HTTP/1.1"
        ours = [f"host: {self.host}:{self.port}".encode(), b"connection: close", key.encode()]
        return b"\r\n".join([first, *ours, *kept, b"", b""])


def _is_header(line: bytes) -> bool:
    """Whether it is one whole header: none that goes on with the line before, or hides another."""
    return re.fullmatch(rb"[!#-'*+.^-z|~0-9A-Z-]+:[^\r\n\0]*", line) is not None


async def _head(connection: Connection) -> tuple[bytes, bytes]:
    """Request line and headers without the blank line, and what came after it; nothing if it never ends."""
    buffer = b""
    while b"\r\n\r\n" not in buffer:
        data = await connection.read()
        buffer += data
        if not data or len(buffer) > _MOST_HEAD:
            return b"", b""
    head, _, rest = buffer.partition(b"\r\n\r\n")
    return head, rest


async def _exchange(
    connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry bytes both ways until the answer is whole or the program is gone."""

    async def up() -> None:
        while data := await connection.read():
            writer.write(data)
            await writer.drain()

    async def down() -> None:
        while data := await reader.read(64 * 1024):
            await connection.write(data)

    tasks = [asyncio.create_task(way()) for way in (up, down)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _refusal(status: int, reason: str) -> bytes:
    body = b'{"error":{"message":"%s","type":"not_found_error"}}' % reason.encode()
    head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\nconnection: close\r\n\r\n" + body
