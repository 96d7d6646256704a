"""Locks that the kernel drops when their holder dies: for one writer at a time, and for what is in use."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

__all__ = ["Hold", "alone", "alone_async", "held"]

_POLL = 0.05


class Hold:
    """What this program uses, kept from being pruned until `release`, or until the program ends.

    Example: `hold = store.hold([str(name), *diff_ids])`
    """

    def __init__(self, folder: Path, things: Collection[str]) -> None:
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._handle, "\n".join(things).encode())

    def release(self) -> None:
        """Let go. Releasing twice is allowed."""
        if self._handle >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = -1


def held(folder: Path) -> set[str]:
    """All that living programs hold; the notes of dead ones are removed. Call it with the store's lock."""
    found: set[str] = set()
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                found.update(file.read().decode().split("\n"))
    return found


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock for a moment, waiting for it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@asynccontextmanager
async def alone_async(path: Path) -> AsyncIterator[None]:
    """Hold an exclusive lock for long; the waiting does not block. The file goes with the last holder."""
    handle = await _locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


async def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(handle, path):
                return handle
        except BlockingIOError:
            pass
        os.close(handle)
        await asyncio.sleep(_POLL)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the locked file still has its name: its last holder may just have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
