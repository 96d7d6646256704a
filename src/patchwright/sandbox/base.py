"""The sandbox protocol: a single-use box, and the backend that opens boxes.

A command that fails or times out is an `Exec`. `SandboxError` means the box itself is gone or could
not be made: the attempt is void.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from patchwright.types import Exec, Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Resident:
    """A Python program of a mount that takes long to load and is run in many boxes, once or more in each.

    Namespace boxes fork it, loaded once per backend, when `exec` is given its command; elsewhere bash runs
    that. It is loaded on this machine with the rights of what makes the boxes: whoever asks for it trusts it.
    Example: `Resident(command="/opt/kit/python /opt/kit/main.py", python="/opt/kit/python", program=...)`
    """

    command: str
    """To the letter what `exec` is given to run it."""
    python: str
    """The interpreter: a path in the box, below a mount."""
    program: str
    """The file, below a mount. Its `main()` returns the exit status."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxSpec:
    """What a box is made of.

    Example: `BoxSpec(workdir="/testbed", archive=repo_tar, limits=Limits(disk_mb=64))`
    """

    image: str = "host"
    """`host`: this machine's system directories, read-only. Backends name what else they take."""
    workdir: str = "/testbed"
    """Created if missing; the default cwd of commands."""
    archive: bytes = b""
    """An uncompressed tar unpacked into `workdir` when the box opens; owners become the box user."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of every command, over the backend's minimal one (PATH, HOME, LANG)."""
    limits: Limits = field(default_factory=Limits)
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folder in the box, below `/opt` -> folder of this machine that is seen there, read-only."""
    resident: Resident | None = None
    """What should be held loaded, if anything."""


class Connection(Protocol):
    """A connection that a program in a box made to a port of `Sandbox.listen`."""

    async def read(self) -> bytes:
        """The bytes that came, at least one; b"" when the program has ended its side or is gone."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes, waiting for a program that is behind. Raises ConnectionError when it is gone."""
        ...


Handler = Callable[[Connection], Awaitable[None]]
"""Serves one connection; when it returns, the connection is closed."""


class Sandbox(Protocol):
    """One open box. Not reused: open, use by one attempt, close."""

    async def exec(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        on_output: Callable[[bytes], None] | None = None,
    ) -> Exec:
        """Run `bash -c command`, one shell per call, and wait for it.

        `timeout` (seconds) defaults to `limits.exec_seconds`. On a timeout every process of the
        command is killed and the output so far is kept, with `code=124, timed_out=True`. A process
        left in the background by an earlier command may live on until the box closes.

        `on_output` is called with the bytes of the output as they come, all of it, while the result
        keeps head and tail as ever. It runs in the event loop and must not block; what it raises ends
        the command and is raised here. A program that falls far behind is not waited for: it misses
        the middle, and a line in its place says how many bytes.

        Raises SandboxError when the box is closed or has died.
        """
        ...

    async def fork(self) -> Sandbox:
        """An independent box of the same spec with a copy of this one's files; both go on.

        Copied are the files of the working directory, the home, /tmp and /dev/shm, and whatever else the
        image let the box write: content, modes, times, links and odd names. Processes and sockets are not,
        nor the parts of seconds where Docker copies an image.
        It waits for the command that runs; what a background process writes meanwhile may be half there.
        Raises SandboxError when the box is closed or cannot be copied.
        """
        ...

    async def listen(self, serve: Handler, *, port: int = 0) -> int:
        """Answer what programs in the box connect to on 127.0.0.1, each connection by a `serve` of its own.
        Returns the port they must use.

        `port` is taken where boxes have a network of their own; 0, and a box that shares this machine's,
        take a free one. It is the only address a box can reach, and needs no network: the bytes go over the
        channel that commands use. A box has one such port: asking again moves it. A fork has none.
        Raises SandboxError when the port is taken, ConfigError when this backend cannot do it.
        """
        ...

    async def read(self, path: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, IsADirectoryError, or SandboxError."""
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making its parent folders. Raises OSError (disk full), or SandboxError."""
        ...

    async def close(self) -> None:
        """Kill every process in the box and remove its files. Closing twice is allowed."""
        ...


class SandboxBackend(Protocol):
    """Opens boxes. One per run; close it to close every box it opened."""

    name: str

    async def open(self, spec: BoxSpec) -> Sandbox:
        """A fresh box. Raises SandboxError when the machine cannot make one."""
        ...

    async def close(self) -> None:
        """Close what is still open and stop helpers. Closing twice is allowed."""
        ...
