"""Namespace boxes: the client and the backend. Linux, no daemon, no image, an ordinary user is enough.

One fork server per backend (`zygote.py`) makes each box by one fork. The client talks to the box's
PID 1 (`runner.py`) over a socket whose end only it holds: when it closes the socket or dies, the
kernel kills every process of the box and drops its files.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox import wire
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.channel import Channel
from patchwright.sandbox.files import FILE_LIMIT
from patchwright.sandbox.output import CANNOT_RUN, render
from patchwright.sandbox.rootfs import HOME, SHIMS, check_workdir
from patchwright.types import Exec

_GRACE = 30.0
"""Seconds over a command's timeout after which its box counts as dead."""
_START = 120.0
"""Seconds the fork server may take to start, and a box to open."""
_CLOSE = 10.0
_SOURCE = str(Path(__file__).parents[2])
_BOOT = """
import sys
sys.path[0] = sys.argv[1]
from patchwright.sandbox.warm import preload
warm = preload(sys.argv[4].split())
from patchwright.sandbox.zygote import main
del sys.path[0]
main(int(sys.argv[2]), sys.argv[3], warm)
"""
"""pytest first, so that the fork server's own imports can be told from those of pytest."""
_REFUSED = (
    "this kernel refuses namespace boxes ({reason}): unprivileged user namespaces may be off or the "
    "program runs in a container without them; use `--sandbox docker`, or `--sandbox process`, which "
    "isolates nothing"
)


class NamespaceBox:
    """One open box of a NamespaceBackend; see `Sandbox` for its contract."""

    def __init__(self, spec: BoxSpec, channel: Channel, pidfd: int) -> None:
        self._spec = spec
        self._channel = channel
        self._pidfd = pidfd
        self._turn = asyncio.Lock()
        self._closed = False

    async def exec(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Exec:
        """Run `bash -c command`; see `Sandbox.exec`. Cancelling it kills the command."""
        limit = self._spec.limits.exec_seconds if timeout is None else timeout
        encoded = command.encode("utf-8", "replace")
        if len(encoded) + len(stdin) > FILE_LIMIT:
            return Exec(code=CANNOT_RUN, output=f"command and input are over {FILE_LIMIT} bytes\n")
        header: wire.Header = {
            "op": "exec",
            "command": len(encoded),
            "cwd": cwd or "",
            "env": dict(env or {}),
            "timeout": limit,
        }
        reply, body = await self._ask(header, encoded + stdin, limit + _GRACE)
        head = reply.get("head", len(body))
        return Exec(
            code=reply["code"],
            output=render(body[:head], reply["omitted"], body[head:]),
            timed_out=reply["timed_out"],
            omitted=reply["omitted"],
            seconds=reply["seconds"],
        )

    async def read(self, path: str) -> bytes:
        """The content of a file of at most 64 MiB; see `Sandbox.read`."""
        reply, body = await self._ask({"op": "read", "path": path}, b"", _GRACE)
        _raise_error(reply, path)
        return body

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file of at most 64 MiB; see `Sandbox.write`."""
        if len(data) > FILE_LIMIT:
            raise OSError(errno.EFBIG, f"more than {FILE_LIMIT} bytes", path)
        reply, _ = await self._ask({"op": "write", "path": path, "mode": mode}, data, _GRACE)
        _raise_error(reply, path)

    async def close(self) -> None:
        """Kill every process of the box, and return when all are gone. Closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        self._channel.close("the box is closed")
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            async with asyncio.timeout(_CLOSE):
                await _readable(self._pidfd)
        except TimeoutError:
            raise SandboxError(f"a box is still alive {_CLOSE:.0f} s after it was killed") from None
        finally:
            os.close(self._pidfd)

    async def _ask(self, header: wire.Header, body: bytes, patience: float) -> wire.Frame:
        async with self._turn:
            try:
                async with asyncio.timeout(patience):
                    return await self._channel.ask(header, body)
            except TimeoutError:
                self._channel.close("the box did not answer in time")
                raise SandboxError(f"the box did not answer within {patience:.0f} s") from None


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
        server = await self._running_server()
        box = await _open_box(server, spec)
        self._boxes = {other for other in self._boxes if not other._closed} | {box}
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

    @classmethod
    async def start(cls, warm: Sequence[str]) -> _Server:
        """Start one and wait until it is ready. Raises SandboxError when the kernel refuses."""
        if sys.platform != "linux":
            raise SandboxError(_REFUSED.format(reason=f"{sys.platform} is not Linux"))
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

    async def send(self, box: socket.socket) -> None:
        """Hand over the socket of a box to be made. Raises SandboxError when the server is gone."""
        while True:
            try:
                socket.send_fds(self._control, [b"b"], [box.fileno()])
                return
            except BlockingIOError:
                await asyncio.sleep(0.002)
            except OSError as error:
                raise SandboxError(f"the fork server of the boxes is gone: {error}") from error

    def stop(self) -> None:
        """End the server; open boxes live on until they are closed."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    async def _await_ready(self) -> None:
        try:
            async with asyncio.timeout(_START):
                header, _ = await _first_frame(self._control)
        except (TimeoutError, EOFError):
            raise SandboxError("the fork server of the boxes did not start; its error is above") from None
        if "error" in header:
            raise SandboxError(_REFUSED.format(reason=header["error"]))


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


async def _open_box(server: _Server, spec: BoxSpec) -> NamespaceBox:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    try:
        with theirs:
            await server.send(theirs)
        async with asyncio.timeout(_START):
            with contextlib.suppress(ConnectionError):  # its reason for hanging up is still to be read
                await loop.sock_sendall(ours, wire.pack(_box_header(spec), spec.archive))
            header, fds = await _first_frame(ours)
        if "error" in header:
            raise SandboxError(f"a box could not be opened: {header['error']}")
        _, channel = await loop.create_connection(Channel, sock=ours)
    except (TimeoutError, EOFError) as error:
        ours.close()
        raise SandboxError(f"a box could not be opened: no answer ({type(error).__name__})") from None
    except BaseException:
        ours.close()
        raise
    return NamespaceBox(spec, channel, fds[0])


def _check(spec: BoxSpec) -> None:
    if spec.image != "host":
        raise ConfigError(
            f"image {spec.image!r}: namespace boxes use this machine's own system (image 'host'); "
            "use `--sandbox docker` for images"
        )
    try:
        check_workdir(spec.workdir, _prefixes())
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _box_header(spec: BoxSpec) -> wire.Header:
    path = f"{SHIMS}:{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    env = {"PATH": path, "HOME": HOME, "LANG": "C.UTF-8", "USER": "agent", "LOGNAME": "agent", **spec.env}
    return {
        "workdir": spec.workdir,
        "env": env,
        "memory_mb": spec.limits.memory_mb,
        "processes": spec.limits.processes,
        "disk_mb": spec.limits.disk_mb,
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
        data, received, _, _ = socket.recv_fds(source, 65536, 1)
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


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _raise_error(reply: wire.Header, path: str) -> None:
    if "errno" in reply:
        raise OSError(reply["errno"], os.strerror(reply["errno"]), path)
