"""Boxes in any place that swe-rex deploys to: Docker or Podman here, Modal, AWS Fargate, Daytona.

A box is one deployment. What keeps it apart, and its bounds of memory, processes and network, are those of
the deployment; `Limits` other than seconds are not looked at. Inside, `once.py` does the work, called over
HTTP (`swerex_calls.py`).
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox.base import BoxSpec, Handler
from patchwright.sandbox.box import Box, Command
from patchwright.sandbox.files import FILE_LIMIT
from patchwright.sandbox.output import CANNOT_RUN, render
from patchwright.sandbox.rootfs import GITCONFIG
from patchwright.sandbox.stream import note
from patchwright.sandbox.swerex_calls import Reply, Server
from patchwright.sandbox.swerex_deploy import Deploy, Machines
from patchwright.types import Exec

if TYPE_CHECKING:
    from swerex.deployment.abstract import AbstractDeployment

_PIECE = 5.0
"""Seconds that one call waits for a command. The server answers nobody meanwhile: so long a cancelled command
may still run."""
_LATE = 60.0
"""Seconds over a command's timeout after which its box counts as dead."""
_FORK_LIMIT = 1 << 31
"""Most bytes of a box's files that a fork takes along."""
_PATIENCE = 300.0
"""Seconds to pack, unpack or restore the files of a box."""


class SwerexBox(Box):
    """One deployment; see `Sandbox` for the contract."""

    def __init__(
        self, spec: BoxSpec, machine: AbstractDeployment, server: Server, backend: SwerexBackend
    ) -> None:
        super().__init__(spec)
        self._machine = machine
        self._server = server
        self._backend = backend
        self._numbers = itertools.count()

    async def fork(self) -> SwerexBox:
        """See `Sandbox.fork`. Copied are the working directory, the home, /tmp and /dev/shm."""
        async with self._turns.shared():
            self._check_open()
            first = await self._ask({"op": "pack"}, patience=_PATIENCE)
            files = await self._whole(first, _FORK_LIMIT)
        return await self._backend.fork(self._spec, files)

    async def listen(self, serve: Handler, *, port: int = 0) -> int:
        """Raises ConfigError: a box in another place has no way back."""
        raise ConfigError(
            "boxes by swe-rex cannot reach this machine, which an agent inside of its box needs to ask the "
            "model; use an agent outside (the built-in one), or `--sandbox docker`"
        )

    async def read(self, path: str) -> bytes:
        """The content of a file of at most 64 MiB; see `Sandbox.read`."""
        async with self._turns.alone():
            self._check_open()
            reply = await self._ask({"op": "read", "path": path})
            _raise_error(reply, path)
            return await self._whole(reply, FILE_LIMIT)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file of at most 64 MiB; see `Sandbox.write`."""
        if len(data) > FILE_LIMIT:
            raise OSError(errno.EFBIG, f"more than {FILE_LIMIT} bytes", path)
        async with self._turns.alone():
            self._check_open()
            _raise_error(await self._ask({"op": "write", "path": path, "mode": mode}, data), path)

    async def furnish(self, files: bytes | None) -> None:
        """Send the program and make the working directory, with `files` of another box over it for a fork."""
        await self._server.install()
        archive = b"" if files is not None else self._spec.archive
        reply = await self._ask({"op": "open", "gitconfig": GITCONFIG}, archive, patience=_PATIENCE)
        if files is not None and reply.errno is None:
            reply = await self._ask({"op": "restore"}, files, patience=_PATIENCE)
        if reply.errno is not None:
            raise SandboxError(f"a box could not be opened: {reply.error}")

    async def _run(self, command: Command) -> Exec:
        encoded = command.text.encode("utf-8", "replace")
        if len(encoded) + len(command.stdin) > FILE_LIMIT:
            return Exec(code=CANNOT_RUN, output=f"command and input are over {FILE_LIMIT} bytes\n")
        number = next(self._numbers)
        header = {
            "op": "exec",
            "number": number,
            "mark": f"{self._server.name}:{number}:",
            "command": len(encoded),
            "cwd": command.cwd,
            "env": {**self._spec.env, **command.env},
            "timeout": command.timeout,
            "stream": command.on_output is not None,
        }
        try:
            return _result(await self._followed(header, encoded + command.stdin, command))
        except SandboxError:
            raise
        except BaseException:  # cancelled, or by the listener
            await asyncio.shield(self._cancel(number))
            raise

    async def _followed(self, header: dict[str, Any], body: bytes, command: Command) -> Reply:
        """The reply of a command that is over; its listener is told what it wrote."""
        deadline = time.monotonic() + command.timeout + _LATE
        reply = await self._piece(header, body)
        while True:
            if reply.errno is not None:
                raise SandboxError(f"a box could not start or follow a command: {reply.error}")
            if command.on_output is not None:
                _tell(command, reply)
            if reply.state != "running":
                return reply
            if time.monotonic() > deadline:
                raise SandboxError(f"a command was not over {_LATE:.0f} s after its time was up")
            reply = await self._piece({"op": "wait", "number": header["number"]})

    async def _piece(self, header: Mapping[str, Any], body: bytes = b"") -> Reply:
        piece = self._backend.piece
        return await self._ask({**header, "piece": piece}, body, patience=piece)

    async def _cancel(self, number: int) -> None:
        """End a command. A box that does not is gone, which the next call will say."""
        try:
            await self._ask({"op": "cancel", "number": number})
        except SandboxError:
            pass

    async def _whole(self, reply: Reply, limit: int) -> bytes:
        """What was read or packed, piece by piece. Raises SandboxError when it is over `limit`."""
        if reply.errno is not None:
            raise SandboxError(f"a box could not be copied: {reply.error}")
        if reply.size > limit:
            raise SandboxError(f"a box has {reply.size} bytes for us, more than {limit}")
        content = bytearray(reply.body)
        while len(content) < reply.size:
            piece = await self._ask({"op": "piece", "offset": len(content)})
            if piece.errno is not None or not piece.body:
                raise SandboxError("what a box kept for us is gone")
            content += piece.body
        return bytes(content)

    async def _ask(self, header: Mapping[str, Any], body: bytes = b"", *, patience: float = 0.0) -> Reply:
        given = {"workdir": self._spec.workdir, **header}
        return await self._server.call(given, body, patience=patience)

    async def _end(self) -> None:
        await self._backend.discard(self._machine)
        await self._server.close()


def _tell(command: Command, reply: Reply) -> None:
    assert command.on_output is not None
    if reply.chunk:
        command.on_output(reply.chunk)
    if reply.missed:
        command.on_output(note(reply.missed))


def _result(reply: Reply) -> Exec:
    if reply.state == "lost":
        raise SandboxError("what supervised a command in a box is dead")
    return Exec(
        code=reply.code,
        output=render(reply.head, reply.omitted, reply.tail),
        timed_out=reply.timed_out,
        omitted=reply.omitted,
        seconds=reply.seconds,
    )


def _raise_error(reply: Reply, path: str) -> None:
    if reply.errno is not None:
        raise OSError(reply.errno, os.strerror(reply.errno), path)


class SwerexBackend:
    """Opens boxes by swe-rex. `deploy` makes the deployment of a box: of an image, or of a default one.

    `piece` is how many seconds one call waits for a command, which is also how late it may be cancelled.

    Example: `backend = SwerexBackend(configured({"type": "modal"}, "python:3.12"))`
    """

    name = "swerex"

    def __init__(self, deploy: Deploy, *, piece: float = _PIECE) -> None:
        self.piece = piece
        self._machines = Machines(deploy)
        self._boxes: set[SwerexBox] = set()
        self._closed = False

    async def open(self, spec: BoxSpec) -> SwerexBox:
        """A fresh deployment; see `SandboxBackend.open`. Raises ConfigError for what it cannot do."""
        if spec.mounts:
            raise ConfigError(
                "boxes by swe-rex cannot show folders of this machine, as an agent in its box needs; use "
                "an agent outside (the built-in one), or `--sandbox docker`"
            )
        return await self._opened(spec, None)

    async def fork(self, spec: BoxSpec, files: bytes) -> SwerexBox:
        """A fresh deployment with the files of another; see `Sandbox.fork`."""
        return await self._opened(spec, files)

    async def discard(self, machine: AbstractDeployment) -> None:
        """Stop a deployment. It may be called again after it raised."""
        await self._machines.stop(machine)

    async def close(self) -> None:
        """Stop every deployment. Closing twice is allowed."""
        self._closed = True
        await asyncio.gather(*(box.close() for box in self._boxes))
        self._boxes.clear()
        self._machines.close()

    async def _opened(self, spec: BoxSpec, files: bytes | None) -> SwerexBox:
        if self._closed:
            raise SandboxError("the sandbox backend is closed")
        machine = await self._machines.start(None if spec.image == "host" else spec.image)
        runtime: Any = machine.runtime
        box = SwerexBox(spec, machine, Server(runtime._api_url, runtime._headers), self)
        self._boxes = {other for other in self._boxes if not other.closed} | {box}
        try:
            await box.furnish(files)
        except BaseException:
            await asyncio.shield(box.close())
            raise
        return box
