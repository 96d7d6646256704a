"""The box's end of connections that its programs make to a port their owner answers. Standard library only.

A box has no network. Its PID 1 listens on a port of the box's own loopback, and carries what comes and
goes over the socket it has with its owner, among the replies: no address outside the box is reachable, and
no file of the host has to be shared. `connections.py` is the other end.

A frame names its connection under `tunnel`. Either side may be `WINDOW` bytes ahead of what the other one
has passed on, so a program that does not read costs no more memory than that.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from patchwright.sandbox import wire

WINDOW = 256 * 1024
"""Bytes of one connection that may be under way in one direction."""
_CHUNK = 64 * 1024
_MOST = 64
"""Connections at once; who comes then is turned away."""

Send = Callable[[wire.Header, bytes], None]
Watch = Callable[[int, Callable[[], None], int], None]


@dataclass(eq=False)
class _Connection:
    """A program's connection."""

    socket: socket.socket
    number: int
    outgoing: bytearray = field(default_factory=bytearray)
    """Bytes for the program."""
    credit: int = WINDOW
    """Bytes that may be read from it."""
    heard: bool = False
    """The program has ended its side."""
    told: bool = False
    """The owner has ended its side."""

    @property
    def wants(self) -> int:
        """What to poll for."""
        reading = 0 if self.heard or self.credit <= 0 else select.POLLIN
        return reading | (select.POLLOUT if self.outgoing else 0)


class Tunnel:
    """Listens in the box and carries connections. `watch` and `unwatch` are the poll loop's.

    Example: `Tunnel(send, watch, unwatch).listen(8011)`
    """

    def __init__(self, send: Send, watch: Watch, unwatch: Callable[[int], None]) -> None:
        self._send = send
        self._watch = watch
        self._unwatch = unwatch
        self._listener: socket.socket | None = None
        self._connections: dict[int, _Connection] = {}
        self._numbers = itertools.count()

    def listen(self, port: int) -> int:
        """Listen on 127.0.0.1; the port. An earlier listener goes. Raises OSError."""
        if self._listener is not None:
            self._unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(_MOST)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._watch(listener.fileno(), self._accept, select.POLLIN)
        return int(listener.getsockname()[1])

    def take(self, header: wire.Header, body: bytes) -> None:
        """A frame from the owner: bytes for a program, the end of them, or what it has passed on itself."""
        connection = self._connections.get(header["tunnel"])
        if connection is None:
            return  # closed meanwhile
        connection.outgoing += body
        connection.credit += header.get("took", 0)
        connection.told = connection.told or header.get("end", False)
        self._serve(connection)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return  # it has hung up, or there are no more descriptors
        if len(self._connections) >= _MOST:
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(accepted, next(self._numbers))
        self._connections[connection.number] = connection
        self._send({"tunnel": connection.number, "new": True}, b"")
        self._serve(connection)

    def _serve(self, connection: _Connection) -> None:
        """Do what can be done now, and wait for the rest."""
        try:
            self._read(connection)
            self._write(connection)
        except OSError:
            self._drop(connection)
            return
        if connection.told and not connection.outgoing:
            self._drop(connection)
            return
        self._unwatch(connection.socket.fileno())
        if connection.wants:
            # Not without a wish: poll tells of a peer that hung up, over and over.
            self._watch(connection.socket.fileno(), lambda: self._serve(connection), connection.wants)

    def _read(self, connection: _Connection) -> None:
        if connection.heard or connection.credit <= 0:
            return
        try:
            data = connection.socket.recv(min(_CHUNK, connection.credit))
        except BlockingIOError:
            return
        connection.credit -= len(data)
        connection.heard = not data
        self._send({"tunnel": connection.number, "end": not data}, data)

    def _write(self, connection: _Connection) -> None:
        with contextlib.suppress(BlockingIOError):
            while connection.outgoing:
                sent = connection.socket.send(connection.outgoing[:_CHUNK])
                del connection.outgoing[:sent]
                self._send({"tunnel": connection.number, "took": sent}, b"")

    def _drop(self, connection: _Connection) -> None:
        """Forget a connection; the owner hears that nothing comes any more and nothing arrives."""
        del self._connections[connection.number]
        self._unwatch(connection.socket.fileno())
        connection.socket.close()
        self._send({"tunnel": connection.number, "end": True, "gone": True}, b"")
