"""Namespace boxes: the client and the backend. Linux, no daemon, an ordinary user is enough.

One fork server per backend (`zygote.py`) makes each box by one fork. The client talks to the box's
PID 1 (`runner.py`) over a socket whose end only it holds: when it closes the socket or dies, the
kernel kills every process of the box and drops its files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox import cgroups, imageroot, kernel, wire
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.box import RunnerBox
from patchwright.sandbox.channel import Channel
from patchwright.sandbox.mounts import check_mounts
from patchwright.sandbox.rootfs import HOME, SHIMS, SYSTEM, check_workdir

_START = 120.0
"""Seconds the fork server may take to start, and a box to open."""
_CLOSE = 10.0
_STOP = 6.0
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
_SOURCE = str(Path(__file__).parents[2])
_BOOT = """
import sys
sys.path[0] = sys.argv[1]
from patchwright.sandbox.warm import preload
warm = preload(sys.argv[4].split())
from patchwright.sandbox.footprint import settle
gaps = settle()
from patchwright.sandbox.zygote import main
del sys.path[0]
main(int(sys.argv[2]), sys.argv[3], warm)
"""
"""pytest first, so that the fork server's own imports can be told from those of pytest; and what the runner
uses lies together in memory, past what only pytest uses."""
_REFUSED = (
    "this kernel refuses namespace boxes ({reason}): {mend}; or use `--sandbox docker`, or "
    "`--sandbox process`, which isolates nothing"
)
_PERHAPS = (
    "the program may run in a container that forbids them, which its `--privileged` or `--security-opt "
    "seccomp=unconfined` would change"
)


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
                await _readable(self._handles.process)
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
        self._warm = tuple(warm)
        self._server: _Server | None = None
        self._starting = asyncio.Lock()
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
        server = await self._running_server()
        channel, handles = await _open_box(server, spec, files)
        box = NamespaceBox(spec, channel, handles, self)
        self._boxes = {other for other in self._boxes if not other.closed} | {box}
        return box

    async def close(self) -> None:
        """Close every box and stop the fork server. Closing twice is allowed."""
        self._closed = True
        await asyncio.gather(*(box.close() for box in self._boxes))
        self._boxes.clear()
        if self._server is not None:
            self._server.stop()
            self._server = None

    async def available(self) -> str | None:
        """None when this machine can make boxes, else one sentence that says why not."""
        try:
            await self._running_server()
        except SandboxError as error:
            return str(error)
        return None

    async def controllers(self) -> list[str]:
        """What control groups bound for each box as a whole; without them only its processes are bounded.

        Raises SandboxError when this machine cannot make boxes.
        """
        return (await self._running_server()).controllers

    def own_memory(self) -> list[int]:
        """Bytes of memory that each open box's first process holds for itself, beside what it shares with the
        fork server; empty where the kernel does not say.
        """
        if self._server is None:
            return []
        try:
            return [size for pid in self._server.children() if (size := _own_pages(pid))]
        except PermissionError:
            return []

    async def _running_server(self) -> _Server:
        async with self._starting:
            if self._closed:
                raise SandboxError("the sandbox backend is closed")
            if self._server is None or not self._server.alive():
                self._server = await _Server.start(self._warm)
            return self._server


class _Server:
    """The fork server's process and the socket that asks it for boxes."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control
        self.controllers: list[str] = []

    @classmethod
    async def start(cls, warm: Sequence[str]) -> _Server:
        """Start one and wait until it is ready. Raises SandboxError when the kernel refuses."""
        if sys.platform != "linux":
            raise SandboxError(
                f"{sys.platform} is not Linux, which namespace boxes need; use `--sandbox docker`"
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = _spawn_server(theirs.fileno(), warm)
        ours.setblocking(False)
        server = cls(process, ours)
        try:
            await server._await_ready()
        except BaseException:
            server.stop()
            raise
        return server

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def children(self) -> list[int]:
        """Process ids of the boxes, as this program sees them. Raises PermissionError."""
        pid = self._process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]

    async def send(self, box: socket.socket, files: list[int]) -> None:
        """Hand over the socket of a box to be made, and the files of the one it is forked from, if any.

        Raises SandboxError when the server is gone.
        """
        while True:
            try:
                socket.send_fds(self._control, [b"b"], [box.fileno(), *files])
                return
            except BlockingIOError:
                await asyncio.sleep(0.002)
            except OSError as error:
                raise SandboxError(f"the fork server of the boxes is gone: {error}") from error

    def stop(self) -> None:
        """End the server; open boxes live on until they are closed."""
        self._control.close()
        try:
            self._process.wait(_STOP)  # it removes what boxes that were given up have left
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _await_ready(self) -> None:
        try:
            async with asyncio.timeout(_START):
                header, _ = await _first_frame(self._control)
        except (TimeoutError, EOFError):
            raise SandboxError("the fork server of the boxes did not start; its error is above") from None
        if "error" in header:
            raise SandboxError(_refusal(header["error"]))
        self.controllers = header["controllers"]


def _refusal(reason: str) -> str:
    """One sentence: what the kernel said, the settings that are known to be in the way, and what to do."""
    found = kernel.obstacles()
    whats, mends = [one.what for one in found], [one.mend for one in found]
    return _REFUSED.format(reason=", ".join([reason, *whats]), mend=", and ".join(mends) or _PERHAPS)


def _settings_in_the_way() -> str:
    return "".join(f"; {one.what}: {one.mend}" for one in kernel.obstacles())


def _spawn_server(control: int, warm: Sequence[str]) -> subprocess.Popen[bytes]:
    """A clean process: nothing of this program's environment, descriptors or memory."""
    settings = json.dumps({"prefixes": _prefixes()})
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, _SOURCE, str(control), settings, " ".join(warm)],
        pass_fds=[control],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"},
    )


async def _open_box(server: _Server, spec: BoxSpec, files: list[int]) -> tuple[Channel, _Handles]:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    fds: list[int] = []
    try:
        with theirs:
            await server.send(theirs, files)
        async with asyncio.timeout(_START):
            with contextlib.suppress(ConnectionError):  # its reason for hanging up is still to be read
                await loop.sock_sendall(ours, wire.pack(_box_header(spec), spec.archive))
            header, fds = await _first_frame(ours)
        if header.get("mistake"):
            raise ConfigError(header["error"])
        if "error" in header:
            raise SandboxError(f"a box could not be opened: {header['error']}{_settings_in_the_way()}")
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
        check_workdir(spec.workdir, [*spec.mounts, *([] if _lowers(spec) else [*SYSTEM, *_prefixes()])])
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


def _prefixes() -> list[str]:
    """The folders of this Python and its environment, as they are named and as they really are."""
    named = [sys.prefix, sys.base_prefix]
    return list(dict.fromkeys(named + [os.path.realpath(path) for path in named]))


async def _first_frame(source: socket.socket) -> tuple[wire.Header, list[int]]:
    """The first frame of a socket, which is small, and the descriptors that came with it."""
    parser, fds = wire.Parser(0), []
    while True:
        await _readable(source.fileno())
        data, received, _, _ = socket.recv_fds(source, 65536, 2)
        fds += received
        if not data:
            raise EOFError
        if frames := parser.feed(data):
            return frames[0][0], fds


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


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


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
