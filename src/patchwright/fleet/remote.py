"""The `remote` sandbox: boxes on other machines, leased from a pool, behind the `Sandbox` protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from patchwright.errors import ConfigError, SandboxError
from patchwright.fleet.client import PoolClient, RemoteLease
from patchwright.metrics.trace import span
from patchwright.sandbox.base import BoxSpec, Handler
from patchwright.types import Exec, Limits

__all__ = ["RemoteBackend", "RemoteBox"]


class RemoteBox:
    """A leased box; see `Sandbox` for the contract."""

    def __init__(
        self, client: PoolClient, lease: RemoteLease, limits: Limits, siblings: set[RemoteBox]
    ) -> None:
        self._client = client
        self._limits = limits
        self._lease: RemoteLease | None = lease
        self._siblings = siblings
        """The backend's open boxes."""
        siblings.add(self)

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
        seconds = self._limits.exec_seconds if timeout is None else timeout
        lease = self._open()
        with span("exec", {"patchwright.command": command}) as note:
            done = await self._client.exec(
                lease, command, timeout=seconds, cwd=cwd or "", env=env, stdin=stdin, on_output=on_output
            )
            note("patchwright.exit_code", done.code)
            return done

    async def fork(self) -> RemoteBox:
        """A copy of the box with a lease of its own, at the same node; see `Sandbox.fork`."""
        lease = await self._client.fork(self._open())
        return RemoteBox(self._client, lease, self._limits, self._siblings)

    async def listen(self, serve: Handler, *, port: int = 0) -> int:
        """Refused: raises ConfigError."""
        raise ConfigError(
            "a remote box has no way back to the model: choose an agent that runs outside the box (`bash`), "
            "or boxes of this machine (`--sandbox namespace` or `docker`)"
        )

    async def read(self, path: str) -> bytes:
        """The content of a file; see `Sandbox.read`."""
        return await self._client.read(self._open(), path)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file; see `Sandbox.write`."""
        await self._client.write(self._open(), path, data, mode=mode)

    async def close(self) -> None:
        """Give the box back. A pool that cannot be told ends the lease with its term."""
        lease, self._lease = self._lease, None
        self._siblings.discard(self)
        if lease is None:
            return
        with contextlib.suppress(SandboxError):
            await self._client.close(lease)

    def _open(self) -> RemoteLease:
        if self._lease is None:
            raise SandboxError("the box is closed")
        return self._lease


class RemoteBackend:
    """Opens boxes on the nodes of a pool.

    Example: `backend = RemoteBackend(PoolClient("http://127.0.0.1:18090", token))`
    """

    name = "remote"

    def __init__(self, client: PoolClient, *, image: str = "host", wait: float = 600.0) -> None:
        """`image` is for boxes that name none; `wait` seconds a box may have to wait for a free slot."""
        self._client = client
        self._image = image
        self._wait = wait
        self._boxes: set[RemoteBox] = set()

    async def open(self, spec: BoxSpec) -> RemoteBox:
        """A fresh box on some node. Raises SandboxError, and ConfigError for folders of this machine."""
        if spec.mounts:
            raise ConfigError(
                "boxes of a pool cannot show folders of this machine, which an agent inside of its box "
                "needs; use `--sandbox namespace` or `--sandbox docker`, or an agent outside"
            )
        with span("queue"):
            lease = await self._client.allocate(
                self._image if spec.image == "host" else spec.image,
                cwd=spec.workdir,
                env=spec.env,
                archive=spec.archive,
                limits=spec.limits,
                wait=self._wait,
            )
        return RemoteBox(self._client, lease, spec.limits, self._boxes)

    async def close(self) -> None:
        """Close what is still open, and the connections. Closing twice is allowed."""
        await asyncio.gather(*(box.close() for box in tuple(self._boxes)))
        await self._client.aclose()
