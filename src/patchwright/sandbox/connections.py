"""The owner's end of connections that programs of a box make: each is handed to a handler.

`tunnel.py` is the end in the box, and says how frames and windows work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from patchwright.sandbox import wire
from patchwright.sandbox.base import Handler
from patchwright.sandbox.tunnel import WINDOW

__all__ = ["Connections", "StreamConnection", "served"]

Send = Callable[[wire.Header, bytes], None]


class Connections:
    """Every connection of one box, each with its handler at work.

    Example: `Connections(send).handler = serve`
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._open: dict[int, _Tunnelled] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.handler: Handler | None = None
        """Serves what comes from now on."""

    def deliver(self, header: wire.Header, body: bytes) -> None:
        """A frame from the box, which is hostile: what makes no sense is passed over."""
        number = header["tunnel"]
        if not isinstance(number, int):
            return
        if header.get("new") and number not in self._open and self.handler is not None:
            connection = self._open[number] = _Tunnelled(number, self._send)
            task = asyncio.get_running_loop().create_task(self._serve(connection, self.handler))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        known = self._open.get(number)
        if known is not None:
            known.deliver(header, body)

    def close(self) -> None:
        """End every connection and its handler."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, connection: _Tunnelled, handler: Handler) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await handler(connection)
        finally:
            connection.end()
            self._open.pop(connection.number, None)


class _Tunnelled:
    """A connection whose bytes travel in frames."""

    def __init__(self, number: int, send: Send) -> None:
        self.number = number
        self._send = send
        self._received = bytearray()
        self._ended = False
        self._gone = False
        self._room = WINDOW
        self._changed = asyncio.Event()

    def deliver(self, header: wire.Header, body: bytes) -> None:
        if len(self._received) + len(body) > WINDOW:
            self._gone = True  # the box breaks the protocol
        else:
            self._received += body
        self._room = min(WINDOW, self._room + max(0, header.get("took", 0)))
        self._ended = self._ended or header.get("end", False)
        self._gone = self._gone or header.get("gone", False)
        self._changed.set()

    async def read(self) -> bytes:
        """See `Connection.read`."""
        while not self._received and not self._ended and not self._gone:
            await self._change()
        data = bytes(self._received)
        self._received.clear()
        if data and not self._gone:
            self._send({"op": "tunnel", "tunnel": self.number, "took": len(data)}, b"")
        return data

    async def write(self, data: bytes) -> None:
        """See `Connection.write`."""
        rest = memoryview(data)
        while rest:
            while not self._room and not self._gone:
                await self._change()
            if self._gone:
                raise ConnectionResetError("the program in the box has hung up")
            part = rest[: self._room]
            self._room -= len(part)
            self._send({"op": "tunnel", "tunnel": self.number}, bytes(part))
            rest = rest[len(part) :]

    def end(self) -> None:
        """Nothing more will be written."""
        if not self._gone:
            self._send({"op": "tunnel", "tunnel": self.number, "end": True}, b"")

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class StreamConnection:
    """A connection of this machine as a handler takes it. Example: `await serve(StreamConnection(r, w))`"""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """See `Connection.read`."""
        return await self._reader.read(WINDOW)

    async def write(self, data: bytes) -> None:
        """See `Connection.write`."""
        self._writer.write(data)
        await self._writer.drain()


def served(handler: Handler) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """The callback of `asyncio.start_server` that hands each connection to `handler`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await handler(StreamConnection(reader, writer))
        finally:
            writer.close()

    return serve
