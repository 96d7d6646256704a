"""Files that are absent or complete, and the lock that gives a run's folder one writer."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchwright.errors import ConfigError, StoreError

__all__ = ["attributed", "commit", "lock", "remove", "remove_leftovers", "sync_tree", "write_text"]

ASIDE = ".old.tmp"
"""Suffix of a folder that is being replaced."""


@contextmanager
def attributed(doing: str, path: Path) -> Iterator[None]:
    """Turn what the disk, SQLite or Parquet throw into one StoreError sentence."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        mend = "; free some space and run the same command again" if _is_full(cause) else ""
        raise StoreError(f"could not {doing} in {path}: {cause}{mend}") from error


def _is_full(cause: str) -> bool:
    return any(word in cause.lower() for word in ("no space", "is full", "quota", "too large"))


def write_text(path: Path, text: str) -> None:
    """Write a small file beside its place, make it durable, and rename it there."""
    beside = path.with_name(path.name + ".tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        commit(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def commit(beside: Path, final: Path) -> None:
    """Make a file or folder durable and rename it to `final`, replacing what was there.

    At no moment is there half of it at `final`.
    """
    sync_tree(beside)
    if final.is_dir():
        old = final.with_name(final.name + ASIDE)
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
        beside.rename(final)
        shutil.rmtree(old, ignore_errors=True)
    else:
        beside.replace(final)
    _sync(final.parent)


def remove(folder: Path) -> None:
    """Remove a folder at once: it is renamed first, so that no half of it stays under its name."""
    gone = folder.with_name(folder.name + ".gone.tmp")
    folder.rename(gone)
    shutil.rmtree(gone)


def sync_tree(path: Path) -> None:
    """fsync a file, or a folder and all that is in it."""
    for inner in path.iterdir() if path.is_dir() else ():
        if not inner.is_symlink():
            sync_tree(inner)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove `*.tmp` in a run's folder and one level below: what a killed process was writing.

    A folder that was set aside for a replacement that never came is put back.
    """
    for path in [*folder.glob("*.tmp"), *folder.glob("*/*.tmp")]:
        final = path.with_name(path.name.removesuffix(ASIDE))
        if path.name.endswith(ASIDE) and not final.exists():
            path.rename(final)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def lock(path: Path) -> int:
    """Take the exclusive lock of a run's folder; the descriptor holds it and the kernel drops it at death.

    Raises ConfigError naming the process that has it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        raise ConfigError(
            f"run folder {path.parent} is in use by process {owner}; wait for it or choose another --run"
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode("ascii"), 0)
    return handle
