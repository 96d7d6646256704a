"""The client's end of a box's socket: requests and replies, matched by number."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from patchwright.errors import SandboxError
from patchwright.sandbox import wire
from patchwright.sandbox.connections import Connections
from patchwright.sandbox.files import FILE_LIMIT

_REPLY_LIMIT = FILE_LIMIT + 1024


class Channel(asyncio.Protocol):
    """Requests and replies over a box's socket, matched by number. No reply has more than `limit` bytes."""

    def __init__(self, limit: int = _REPLY_LIMIT) -> None:
        self._parser = wire.Parser(limit)
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[wire.Frame]] = {}
        self._listening: dict[int, Callable[[bytes], None]] = {}
        self._transport: asyncio.Transport | None = None
        self._end = "the box died"
        self.connections = Connections(self._tell)
        """What programs in the box connected to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            frames = self._parser.feed(data)
        except wire.WireError as error:
            self.close(f"the box broke the protocol: {error}")
            return
        for header, body in frames:
            self._deliver(header, body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxError(self._end))
        self._waiting.clear()
        self.connections.close()

    @property
    def alive(self) -> bool:
        """Whether the box has not hung up, as far as is known."""
        return self._transport is not None

    def close(self, reason: str) -> None:
        """Hang up; whoever waits, or asks later, gets SandboxError with `reason`."""
        self._end = reason
        if self._transport is not None:
            self._transport.abort()
        self._transport = None
        self.connections.close()

    async def ask(
        self, header: wire.Header, body: bytes, on_chunk: Callable[[bytes], None] | None = None
    ) -> wire.Frame:
        """Send a request and wait for its reply; when cancelled, the box drops what it was doing.

        `on_chunk` is called with what the box sends before its reply; what it raises is raised here.
        """
        if self._transport is None:
            raise SandboxError(self._end)
        number = next(self._numbers)
        future: asyncio.Future[wire.Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        if on_chunk is not None:
            self._listening[number] = on_chunk
        self._transport.write(wire.pack({**header, "id": number}, body))
        try:
            return await future
        except BaseException:
            if self._transport is not None:
                self._transport.write(wire.pack({"op": "cancel", "id": number}))
            raise
        finally:
            self._waiting.pop(number, None)
            self._listening.pop(number, None)

    def _tell(self, header: wire.Header, body: bytes) -> None:
        if self._transport is not None:
            self._transport.write(wire.pack(header, body))

    def _deliver(self, header: wire.Header, body: bytes) -> None:
        if "error" in header:
            self.close(str(header["error"]))
            return
        if "tunnel" in header:
            self.connections.deliver(header, body)
            return
        future = self._waiting.get(header["id"])
        if future is None or future.done():
            return
        if not header.get("chunk"):
            future.set_result((header, body))
            return
        try:
            self._listening[header["id"]](body)
        except Exception as error:
            future.set_exception(error)
