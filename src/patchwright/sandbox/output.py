"""What is common to commands in every box: bounded output, exit codes. Standard library only.

Of a long output head and tail are kept and the middle is counted.
"""

from __future__ import annotations

HEAD = 32 * 1024
"""Bytes kept from the start of a command's output."""
TAIL = 32 * 1024
"""Bytes kept from its end."""

TIMED_OUT = 124
"""Exit code of a command that was killed because its time was up."""
CANNOT_RUN = 126
"""Exit code of a command that could not be started."""
LONG_COMMAND = 120 * 1024
"""Linux takes at most 128 KiB in one argument; a longer command is handed over as a file."""


class Output:
    """Collects what a command writes in constant memory.

    Example: `out = Output(); out.add(b"hello"); out.parts() == (b"hello", 0, b"")`
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._omitted = 0

    def add(self, data: bytes) -> None:
        """Append what was read."""
        room = HEAD - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * TAIL:
            self._trim()

    def parts(self) -> tuple[bytes, int, bytes]:
        """Head, bytes omitted, tail."""
        self._trim()
        return bytes(self._head), self._omitted, bytes(self._tail)

    def _trim(self) -> None:
        over = len(self._tail) - TAIL
        if over > 0:
            del self._tail[:over]
            self._omitted += over


def render(head: bytes, omitted: int, tail: bytes) -> str:
    """One text of the parts: UTF-8 with replacement, and a line that says what was left out."""
    if not omitted:
        return (head + tail).decode("utf-8", "replace")
    start, end = head.decode("utf-8", "replace"), tail.decode("utf-8", "replace")
    return f"{start}\n[... {omitted} bytes omitted ...]\n{end}"
