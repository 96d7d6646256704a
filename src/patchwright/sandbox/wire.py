"""Frames between the client of a namespace box and the program inside it. Standard library only.

A frame is a JSON header and raw bytes, each behind its length: `!IQ`, header, body.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

ARCHIVE_LIMIT = 4 * 1024 * 1024 * 1024
"""Most bytes of one frame: an archive may be larger than a file."""
_HEADER_LIMIT = 1024 * 1024
_LENGTHS = struct.Struct("!IQ")
_decode = json.JSONDecoder().raw_decode
"""Without what `json.loads` does before and after: a box's frames are many and small."""

Header = dict[str, Any]
Frame = tuple[Header, bytes]


class WireError(Exception):
    """The other side sent what is not a frame."""


def pack(header: Header, body: bytes = b"") -> bytes:
    """One frame as bytes."""
    encoded = json.dumps(header).encode()
    return _LENGTHS.pack(len(encoded), len(body)) + encoded + body


class Parser:
    """Turns received bytes into frames, however they were cut.

    Example: `[frame for data in chunks for frame in parser.feed(data)]`
    """

    def __init__(self, limit: int = ARCHIVE_LIMIT) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises WireError."""
        self._buffer += data
        frames: list[Frame] = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        if len(self._buffer) < _LENGTHS.size:
            return None
        head, body = _LENGTHS.unpack_from(self._buffer)
        if head > _HEADER_LIMIT or body > self._limit:
            raise WireError(f"frame of {head} + {body} bytes is over the limit")
        start, end = _LENGTHS.size + head, _LENGTHS.size + head + body
        if len(self._buffer) < end:
            return None
        header = _header(bytes(self._buffer[_LENGTHS.size : start]))
        payload = bytes(memoryview(self._buffer)[start:end])
        del self._buffer[:end]
        return header, payload


def _header(encoded: bytes) -> Header:
    try:
        header, end = _decode(encoded.decode())
    except ValueError as error:
        raise WireError("frame header is not JSON") from error
    if end != len(encoded) or not isinstance(header, dict):  # `pack` writes ASCII
        raise WireError("frame header is no JSON object")
    return header


def receive(source: socket.socket) -> Frame:
    """Exactly one frame, blocking. Raises EOFError when the other side is gone."""
    head, body = _LENGTHS.unpack(_exactly(source, _LENGTHS.size))
    header = _header(_exactly(source, head))
    return header, _exactly(source, body)


def _exactly(source: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view, got = memoryview(buffer), 0
    while got < size:
        count = source.recv_into(view[got:])
        if count == 0:
            raise EOFError("the client is gone")
        got += count
    return bytes(buffer)
