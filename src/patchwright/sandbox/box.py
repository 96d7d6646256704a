"""What the boxes of every backend share: how a command is asked for, who waits for whom, and the client of
the program (`runner.py`) that serves namespace and Docker boxes from the inside.
"""

from __future__ import annotations

import abc
import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from patchwright.errors import SandboxError
from patchwright.metrics.trace import span
from patchwright.sandbox import wire
from patchwright.sandbox.base import BoxSpec, Handler
from patchwright.sandbox.channel import Channel
from patchwright.sandbox.files import FILE_LIMIT
from patchwright.sandbox.output import CANNOT_RUN, render
from patchwright.types import Exec

_GRACE = 30.0
"""Seconds over a command's timeout after which its box counts as dead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One call of `Sandbox.exec`, with nothing left to default."""

    text: str
    timeout: float
    cwd: str
    """Absolute, or relative to the working directory; empty for the working directory itself."""
    env: Mapping[str, str]
    stdin: bytes
    on_output: Callable[[bytes], None] | None


class Box(abc.ABC):
    """An open box; see `Sandbox` for the contract. A backend fills in what is its own."""

    def __init__(self, spec: BoxSpec) -> None:
        self._spec = spec
        self._turns = Turns()
        self._refuses = False
        """Whether `close` was called."""
        self._ending = asyncio.Lock()
        self.closed = False
        """Whether it is gone. One that could not be removed may be closed again."""

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
        """Run `bash -c command`; see `Sandbox.exec`. Cancelling it kills the command."""
        limit = self._spec.limits.exec_seconds if timeout is None else timeout
        asked = Command(
            text=command, timeout=limit, cwd=cwd or "", env=env or {}, stdin=stdin, on_output=on_output
        )
        async with self._turns.alone():
            self._check_open()
            with span("exec", {"patchwright.command": command}) as note:
                done = await self._run(asked)
                note("patchwright.exit_code", done.code)
                return done

    async def close(self) -> None:
        """Kill every process of the box and remove its files. Closing twice is allowed.

        From the first call on the box is of no use. When it raises, the next call tries again.
        """
        self._refuses = True
        async with self._ending:
            if not self.closed:
                await self._end()
                self.closed = True

    @abc.abstractmethod
    async def fork(self) -> Box:
        """See `Sandbox.fork`."""

    @abc.abstractmethod
    async def listen(self, serve: Handler, *, port: int = 0) -> int:
        """See `Sandbox.listen`."""

    @abc.abstractmethod
    async def read(self, path: str) -> bytes:
        """See `Sandbox.read`."""

    @abc.abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""

    @abc.abstractmethod
    async def _run(self, command: Command) -> Exec: ...

    @abc.abstractmethod
    async def _end(self) -> None:
        """End the box. It is called again after it raised or was cancelled."""

    def _check_open(self) -> None:
        if self._refuses:
            raise SandboxError("the box is closed")


class Turns:
    """Who may use a box at once: one command alone, or any number of copies being taken."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._copies = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait for everybody before, and let nobody in."""
        async with self._lock:
            await self._idle.wait()
            yield

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Wait for the command before, and let others copy too."""
        async with self._lock:
            self._copies += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._copies -= 1
            if not self._copies:
                self._idle.set()


class RunnerBox(Box):
    """A box with a runner inside, on the other end of `channel`."""

    def __init__(self, spec: BoxSpec, channel: Channel) -> None:
        super().__init__(spec)
        self._channel = channel

    async def listen(self, serve: Handler, *, port: int = 0) -> int:
        """Answer connections made in the box; see `Sandbox.listen`."""
        async with self._turns.alone():
            self._check_open()
            self._channel.connections.handler = serve
            reply, _ = await self._ask({"op": "listen", "port": port}, b"")
        if "errno" in reply:
            raise SandboxError(f"port {port} of the box cannot be had: {os.strerror(reply['errno'])}")
        return int(reply["port"])

    async def read(self, path: str) -> bytes:
        """The content of a file of at most 64 MiB; see `Sandbox.read`."""
        async with self._turns.alone():
            reply, body = await self._ask({"op": "read", "path": path}, b"")
        _raise_error(reply, path)
        return body

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file of at most 64 MiB; see `Sandbox.write`."""
        if len(data) > FILE_LIMIT:
            raise OSError(errno.EFBIG, f"more than {FILE_LIMIT} bytes", path)
        async with self._turns.alone():
            reply, _ = await self._ask({"op": "write", "path": path, "mode": mode}, data)
        _raise_error(reply, path)

    async def _run(self, command: Command) -> Exec:
        encoded = command.text.encode("utf-8", "replace")
        if len(encoded) + len(command.stdin) > FILE_LIMIT:
            return Exec(code=CANNOT_RUN, output=f"command and input are over {FILE_LIMIT} bytes\n")
        header: wire.Header = {
            "op": "exec",
            "command": len(encoded),
            "cwd": command.cwd,
            "env": dict(command.env),
            "timeout": command.timeout,
            "stream": command.on_output is not None,
        }
        reply, body = await self._ask(header, encoded + command.stdin, command.timeout, command.on_output)
        head = reply.get("head", len(body))
        return Exec(
            code=reply["code"],
            output=render(body[:head], reply["omitted"], body[head:]),
            timed_out=reply["timed_out"],
            omitted=reply["omitted"],
            seconds=reply["seconds"],
        )

    async def _ask(
        self,
        header: wire.Header,
        body: bytes,
        patience: float = 0.0,
        on_chunk: Callable[[bytes], None] | None = None,
    ) -> wire.Frame:
        """Ask the runner; it may take `patience` seconds and a grace."""
        try:
            async with asyncio.timeout(patience + _GRACE):
                return await self._channel.ask(header, body, on_chunk)
        except TimeoutError:
            self._channel.close("the box did not answer in time")
            raise SandboxError(f"the box did not answer within {patience + _GRACE:.0f} s") from None


def _raise_error(reply: wire.Header, path: str) -> None:
    if "errno" in reply:
        raise OSError(reply["errno"], os.strerror(reply["errno"]), path)
