"""Reads and writes regular files whatever a box has put in their place. Standard library only."""

# ruff: noqa: PTH103, PTH120
# Paths come as strings from the socket and go straight to system calls.

from __future__ import annotations

import errno
import os
import stat

FILE_LIMIT = 64 * 1024 * 1024
"""Most bytes one read, write or standard input may carry."""


def read_file(path: str) -> bytes:
    """The content of a regular file of at most `FILE_LIMIT` bytes. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        content = file.read(FILE_LIMIT + 1)
    if len(content) > FILE_LIMIT:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return content


def write_file(path: str, content: bytes, mode: int) -> None:
    """Write a regular file with the given mode, making its parent folders. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with open(path, "wb", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
