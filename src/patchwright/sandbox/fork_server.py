"""The client of the fork server (`zygote.py`): starts one, asks it for boxes, ends it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox import kernel, syscalls, wire
from patchwright.sandbox.base import Resident

__all__ = ["START", "ForkServer", "Kind", "first_frame", "prefixes", "readable", "settings_in_the_way"]

START = 120.0
"""Seconds the fork server may take to start, and a box to open."""
_LOAD = 600.0
"""Seconds it may take with a resident program to load."""
_STOP = 30.0
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
_BOOT_RESIDENT = """
import sys
sys.path.insert(0, sys.argv[1])
from patchwright.sandbox.zygote import main
del sys.path[0]
main(int(sys.argv[2]), sys.argv[3], None)
"""
"""The program is loaded later, where boxes see it."""
_REFUSED = (
    "this kernel refuses namespace boxes ({reason}): {mend}; or use `--sandbox docker`, or "
    "`--sandbox process`, which isolates nothing"
)
_PERHAPS = (
    "the program may run in a container that forbids them, which its `--privileged` or `--security-opt "
    "seccomp=unconfined` would change"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What one fork server's boxes have in common."""

    warm: tuple[str, ...] = ()
    """Modules imported once for all boxes."""
    resident: Resident | None = None
    """In their place: a program that is loaded once, by an interpreter of its own."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Where that program is: folder in the box, folder of this machine."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment it is loaded in."""


class ForkServer:
    """The fork server's process and the socket that asks it for boxes."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control
        self.controllers: list[str] = []

    @classmethod
    async def start(cls, kind: Kind) -> ForkServer:
        """Start one and wait until it is ready. Raises SandboxError when the kernel refuses."""
        if sys.platform != "linux":
            raise SandboxError(
                f"{sys.platform} is not Linux, which namespace boxes need; use `--sandbox docker`"
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = _spawn(theirs.fileno(), kind)
        ours.setblocking(False)
        server = cls(process, ours)
        try:
            await server._await_ready(START if kind.resident is None else _LOAD)
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

    async def _await_ready(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                header, _ = await first_frame(self._control)
        except TimeoutError:
            raise SandboxError(f"the fork server of the boxes did not start in {patience:.0f} s") from None
        except EOFError:
            raise SandboxError("the fork server of the boxes did not start; its error is above") from None
        if "broken" in header:
            raise SandboxError(f"a program of the boxes cannot be loaded: {header['broken']}")
        if "error" in header:
            raise SandboxError(_refusal(header["error"]))
        self.controllers = header["controllers"]


def _refusal(reason: str) -> str:
    """One sentence: what the kernel said, the settings that are known to be in the way, and what to do."""
    found = kernel.obstacles()
    whats, mends = [one.what for one in found], [one.mend for one in found]
    return _REFUSED.format(reason=", ".join([reason, *whats]), mend=", and ".join(mends) or _PERHAPS)


def settings_in_the_way() -> str:
    """What is known to keep this machine from making boxes, to be put after a reason; often empty."""
    return "".join(f"; {one.what}: {one.mend}" for one in kernel.obstacles())


def _spawn(control: int, kind: Kind) -> subprocess.Popen[bytes]:
    """A clean process: nothing of this program's environment, descriptors or memory."""
    settings = json.dumps({"prefixes": prefixes(), "mounts": dict(kind.mounts), "resident": None})
    command = [sys.executable, "-c", _BOOT, _SOURCE, str(control), settings, " ".join(kind.warm)]
    if kind.resident is not None:
        settings = json.dumps({**json.loads(settings), "resident": asdict(kind.resident)})
        program = _on_machine(kind.resident.python, dict(kind.mounts))
        command = [program, "-I", "-B", "-c", _BOOT_RESIDENT, _SOURCE, str(control), settings]
    env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", **dict(kind.env)}
    try:
        with syscalls.fixed_addresses():
            return subprocess.Popen(
                command,
                pass_fds=[control],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=env,
            )
    except OSError as error:
        raise SandboxError(f"the fork server of the boxes cannot be started: {error}") from error


def _on_machine(path: str, mounts: Mapping[str, str]) -> str:
    """Where a file that boxes see below a mount is on this machine. Raises ConfigError."""
    for target, source in mounts.items():
        if path.startswith(f"{target}/"):
            return source + path.removeprefix(target)
    raise ConfigError(f"resident program {path!r} is below no mount of its box")


async def first_frame(source: socket.socket) -> tuple[wire.Header, list[int]]:
    """The first frame of a socket, which is small, and the descriptors that came with it."""
    parser, fds = wire.Parser(0), []
    while True:
        await readable(source.fileno())
        data, received, _, _ = socket.recv_fds(source, 65536, 2)
        fds += received
        if not data:
            raise EOFError
        if frames := parser.feed(data):
            return frames[0][0], fds


async def readable(fd: int) -> None:
    """Wait until a descriptor can be read."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def prefixes() -> list[str]:
    """The folders of this Python and its environment, as they are named and as they really are."""
    named = [sys.prefix, sys.base_prefix]
    return list(dict.fromkeys(named + [os.path.realpath(path) for path in named]))


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
