"""Namespace boxes for the tests of a file: one backend for all of them, since the fork server behind it takes
most of a second of CPU to start, pytest in it. Every test works in boxes of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from patchwright.sandbox.base import SandboxBackend
from patchwright.sandbox.namespace import NamespaceBackend

T = TypeVar("T")
_open: list[tuple[asyncio.Runner, NamespaceBackend]] = []


def in_boxes(work: Callable[[SandboxBackend], Awaitable[T]]) -> T:
    """What `work(backend)` comes to; the backend is closed after the last test of the file."""
    if not _open:
        _open.append((asyncio.Runner(), NamespaceBackend()))
    runner, backend = _open[0]

    async def main() -> T:
        return await work(backend)

    return runner.run(main())


def close_boxes() -> None:
    """Close the backend, where one was opened."""
    while _open:
        runner, backend = _open.pop()
        runner.run(backend.close())
        runner.close()
