"""The output of a command on its way to a client that may be slow. Standard library only; runs in a box.

The box never waits for who listens. What the socket does not take at once is kept up to one bound; past it
output is left out of the stream, and a line in its place says how much.
"""

from __future__ import annotations

import re
import socket

from patchwright.sandbox import wire

_PENDING = 256 * 1024
"""Most bytes kept for a client that is behind."""


_NOTE = re.compile(rb"\n\[\.\.\. (\d+) bytes not streamed \.\.\.\]\n")


def note(missed: int) -> bytes:
    """The chunk that stands in the place of `missed` bytes."""
    return b"\n[... %d bytes not streamed ...]\n" % missed


def stands_for(chunk: bytes) -> int:
    """How many bytes of output a chunk is, or says it is."""
    found = _NOTE.fullmatch(chunk)
    return int(found[1]) if found else len(chunk)


class Stream:
    """Chunks of output over a box's socket, among its replies."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pending = bytearray()
        """Whole frames, but for the first, of which a part may have been sent."""
        self._missed = 0
        self._command = 0

    def offer(self, command: int, data: bytes) -> None:
        """Send what the client takes now, keep what fits, leave out the rest. Raises OSError."""
        self._command = command
        self._push()
        if len(self._pending) + len(data) > _PENDING:
            self._missed += len(data)
            return
        self._say_what_is_missing()
        self._pending += wire.pack({"id": command, "chunk": True}, data)
        self._push()

    def finish(self) -> None:
        """Send all that is kept, waiting for the client: a reply follows. Raises OSError."""
        self._say_what_is_missing()
        if self._pending:
            self._control.sendall(bytes(self._pending))
            self._pending.clear()

    def _say_what_is_missing(self) -> None:
        if self._missed:
            self._pending += wire.pack({"id": self._command, "chunk": True}, note(self._missed))
            self._missed = 0

    def _push(self) -> None:
        try:
            while self._pending:
                del self._pending[: self._control.send(self._pending, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
