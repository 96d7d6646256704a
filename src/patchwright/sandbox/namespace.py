"""Namespace boxes: the client and the backend. Linux, no daemon, an ordinary user is enough.

One fork server per backend (`zygote.py`) makes each box by one fork. The client talks to the box's
PID 1 (`runner.py`) over a socket whose end only it holds: when it closes the socket or dies, the
kernel kills every process of the box and drops its files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox import cgroups, imageroot, wire
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.box import RunnerBox
from patchwright.sandbox.channel import Channel
from patchwright.sandbox.fork_server import (
    START,
    ForkServer,
    Kind,
    first_frame,
    prefixes,
    readable,
    settings_in_the_way,
)
from patchwright.sandbox.mounts import check_mounts
from patchwright.sandbox.rootfs import HOME, SHIMS, SYSTEM, check_workdir

_CLOSE = 60.0
_TRIES = 100
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOST_ENV = {
    "PATH": f"{SHIMS}:{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "USER": "agent",
    "LOGNAME": "agent",
}
_IMAGE_ENV = {"PATH": _SYSTEM_PATH, "HOME": imageroot.HOME, "LANG": "C.UTF-8"}


class NamespaceBox(RunnerBox):
    """One open box of a NamespaceBackend; see `Sandbox` for its contract."""

    def __init__(self, spec: BoxSpec, channel: Channel, handles: _Handles, backend: NamespaceBackend) -> None:
        super().__init__(spec, channel)
        self._handles = handles
        self._backend = backend

    async def fork(self) -> NamespaceBox:
        """See `Sandbox.fork`. Any number of forks of one box are made at once."""
        async with self._turns.shared():
            self._check_open()
            return await self._backend.fork(self._spec, self._handles.files)

    async def _end(self) -> None:
        """Return when every process of the box is gone."""
        self._channel.close("the box is closed")
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handles.process, signal.SIGKILL)
            async with asyncio.timeout(_CLOSE):
                await readable(self._handles.process)
        except TimeoutError:
            raise SandboxError(f"a box is still alive {_CLOSE:.0f} s after it was killed") from None
        await _remove_groups(self._handles.groups)
        os.close(self._handles.files)  # at the very end, for `close` may be called again
        os.close(self._handles.process)


@dataclass(frozen=True, slots=True)
class _Handles:
    """What only a box's owner holds."""

    process: int
    """Descriptor of its PID 1: kills the box, and tells its end."""
    files: int
    """Descriptor of the file system of its own files."""
    groups: list[str]
    """Paths of its control groups."""


class NamespaceBackend:
    """Opens namespace boxes. `warm` names modules imported once for all boxes; pytest is served warm.

    Example: `backend = NamespaceBackend(); box = await backend.open(BoxSpec())`
    """

    name = "namespace"

    def __init__(self, *, warm: Sequence[str] = ("pytest",)) -> None:
        self._plain = Kind(warm=tuple(warm))
        self._servers: dict[Kind, ForkServer] = {}
        self._starting: dict[Kind, asyncio.Lock] = {}
        self._boxes: set[NamespaceBox] = set()
        self._closed = False

    async def open(self, spec: BoxSpec) -> NamespaceBox:
        """A fresh box; see `SandboxBackend.open`. Raises ConfigError for an image or a workdir it cannot
        have."""
        _check(spec)
        return await self._open(spec, [])

    async def fork(self, spec: BoxSpec, files: int) -> NamespaceBox:
        """A box of `spec` with a copy of `files`, the descriptor of another box's; see `Sandbox.fork`."""
        return await self._open(replace(spec, archive=b""), [files])

    async def _open(self, spec: BoxSpec, files: list[int]) -> NamespaceBox:
        server = await self._running_server(self._kind(spec))
        channel, handles = await _open_box(server, spec, files)
        box = NamespaceBox(spec, channel, handles, self)
        self._boxes = {other for other in self._boxes if not other.closed} | {box}
        return box

    async def close(self) -> None:
        """Close every box and stop the fork server. Closing twice is allowed."""
        self._closed = True
        await asyncio.gather(*(box.close() for box in self._boxes))
        self._boxes.clear()
        for server in self._servers.values():
            server.stop()
        self._servers.clear()

    async def available(self) -> str | None:
        """None when this machine can make boxes, else one sentence that says why not."""
        try:
            await self._running_server(self._plain)
        except SandboxError as error:
            return str(error)
        return None

    async def controllers(self) -> list[str]:
        """What control groups bound for each box as a whole; without them only its processes are bounded.

        Raises SandboxError when this machine cannot make boxes.
        """
        return (await self._running_server(self._plain)).controllers

    def own_memory(self) -> list[int]:
        """Bytes of memory that each open box's first process holds for itself, beside what it shares with the
        fork server; empty where the kernel does not say.
        """
        pids: list[int] = []
        try:
            for server in self._servers.values():
                pids += server.children()
            return [size for pid in pids if (size := _own_pages(pid))]
        except PermissionError:
            return []

    def _kind(self, spec: BoxSpec) -> Kind:
        """Of which fork server the box is."""
        if spec.resident is None:
            return self._plain
        env = _IMAGE_ENV if _lowers(spec) else _HOST_ENV
        return Kind(
            resident=spec.resident, mounts=tuple(sorted(spec.mounts.items())), env=tuple(sorted(env.items()))
        )

    async def _running_server(self, kind: Kind) -> ForkServer:
        async with self._starting.setdefault(kind, asyncio.Lock()):
            if self._closed:
                raise SandboxError("the sandbox backend is closed")
            server = self._servers.get(kind)
            if server is None or not server.alive():
                server = self._servers[kind] = await ForkServer.start(kind)
            return server


async def _open_box(server: ForkServer, spec: BoxSpec, files: list[int]) -> tuple[Channel, _Handles]:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    fds: list[int] = []
    try:
        with theirs:
            await server.send(theirs, files)
        async with asyncio.timeout(START):
            with contextlib.suppress(ConnectionError):  # its reason for hanging up is still to be read
                await loop.sock_sendall(ours, wire.pack(_box_header(spec), spec.archive))
            header, fds = await first_frame(ours)
        if header.get("mistake"):
            raise ConfigError(header["error"])
        if "error" in header:
            raise SandboxError(f"a box could not be opened: {header['error']}{settings_in_the_way()}")
        _, channel = await loop.create_connection(Channel, sock=ours)
    except BaseException as error:
        ours.close()
        for fd in fds:
            os.close(fd)
        if isinstance(error, (TimeoutError, EOFError)):
            name = type(error).__name__
            raise SandboxError(f"a box could not be opened: no answer ({name})") from None
        raise
    return channel, _Handles(fds[0], fds[1], header["groups"])


def _check(spec: BoxSpec) -> None:
    for folder in _lowers(spec):
        if not folder.startswith("/") or not Path(folder).is_dir():
            raise ConfigError(
                f"image {spec.image!r}: namespace boxes use this machine's own system (image 'host') or "
                f"unpacked images (absolute folders, topmost first, joined with ':'), and {folder!r} is no "
                "such folder; use `--sandbox docker` for other images"
            )
    try:
        check_mounts(spec.mounts)
        check_workdir(spec.workdir, [*spec.mounts, *([] if _lowers(spec) else [*SYSTEM, *prefixes()])])
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _lowers(spec: BoxSpec) -> list[str]:
    """The folders an image is made of; none for image `host`."""
    return [] if spec.image == "host" else spec.image.split(":")


def _box_header(spec: BoxSpec) -> wire.Header:
    lowers = _lowers(spec)
    env = _IMAGE_ENV if lowers else _HOST_ENV
    return {
        "lowers": lowers,
        "workdir": spec.workdir,
        "env": {**env, **spec.env},
        "memory_mb": spec.limits.memory_mb,
        "processes": spec.limits.processes,
        "disk_mb": spec.limits.disk_mb,
        "mounts": dict(spec.mounts),
    }


def _own_pages(pid: int) -> int:
    """Bytes of memory that only process `pid` holds; 0 when it is gone. Raises PermissionError."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


async def _remove_groups(paths: list[str]) -> None:
    """Remove the groups of a box that is gone; what the kernel holds on to, the fork server removes."""
    for _ in range(_TRIES):
        paths = [path for path in paths if not cgroups.remove(path)]
        if not paths:
            return
        await asyncio.sleep(0.005)
