"""Frames between an engine process and its parent: a length, then a pickle.

Both ends are the same program on the two ends of one socket pair that nobody else holds.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwright.engine.config import LocalEngineConfig
from patchwright.types import Sampling, Weights

__all__ = ["Abort", "Close", "Load", "Start", "Started", "Submit", "receive", "send"]

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Start:
    """First frame to the child: what to serve."""

    path: Path
    config: LocalEngineConfig


@dataclass(frozen=True, slots=True)
class Started:
    """First frame to the parent: ready, or why not (the user's mistake)."""

    max_context: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a request; its news come as lists of events."""

    key: int
    prompt: Sequence[int]
    sampling: Sampling
    streaming: bool


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop a request."""

    key: int


@dataclass(frozen=True, slots=True)
class Load:
    """Replace the weights."""

    key: int
    weights: Weights


@dataclass(frozen=True, slots=True)
class Close:
    """End the child."""


def send(link: socket.socket, message: object) -> None:
    """Write one frame. Raises OSError when the other end is gone."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    link.sendall(_LENGTH.pack(len(body)) + body)


def receive(link: socket.socket) -> Any:
    """Read one frame; None when the other end is gone."""
    header = _exactly(link, _LENGTH.size)
    body = header and _exactly(link, _LENGTH.unpack(header)[0])
    return pickle.loads(body) if body else None


def _exactly(link: socket.socket, size: int) -> bytes:
    """`size` bytes, or none at the end of the stream."""
    data = bytearray()
    while len(data) < size:
        try:
            piece = link.recv(size - len(data))
        except OSError:
            return b""
        if not piece:
            return b""
        data += piece
    return bytes(data)
