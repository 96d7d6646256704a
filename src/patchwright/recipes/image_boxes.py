"""Namespace boxes of images: a backend over a backend that looks `image` up in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from patchwright.errors import InfraError
from patchwright.images.config import ImagesConfig
from patchwright.images.locks import Hold
from patchwright.images.names import Name
from patchwright.images.pull import Puller
from patchwright.images.registry import Registry
from patchwright.images.store import Root, Store
from patchwright.sandbox.base import BoxSpec, Handler, Sandbox, SandboxBackend
from patchwright.types import Exec

__all__ = ["ImageBackend"]


class ImageBackend:
    """Opens boxes of images through `backend`, which stacks folders. Image `host` and paths pass unchanged.

    What an image says of its environment comes below what the spec says. With `config.pull`, an image that
    the store lacks is pulled when a box wants it.

    Example: `backend = ImageBackend(NamespaceBackend(), ImagesConfig())`
    """

    def __init__(self, backend: SandboxBackend, config: ImagesConfig) -> None:
        self.name = backend.name
        self._backend = backend
        self._config = config
        self._store: Store | None = None
        self._in_use: dict[Name, _Share] = {}
        self._pulling: dict[Name, asyncio.Lock] = {}

    async def open(self, spec: BoxSpec) -> Sandbox:
        """A fresh box; see `SandboxBackend.open`. Raises ConfigError when the store lacks its image."""
        if spec.image == "host" or spec.image.startswith("/"):
            return await self._backend.open(spec)
        share = await self._share(Name.parse(spec.image))
        try:
            env = {**share.root.env, **spec.env}
            box = await self._backend.open(replace(spec, image=share.root.image, env=env))
        except BaseException:
            share.drop()
            raise
        return _ImageBox(box, share)

    async def close(self) -> None:
        """Close every box; see `SandboxBackend.close`."""
        await self._backend.close()
        for share in self._in_use.values():
            share.hold.release()
        self._in_use.clear()

    async def _share(self, name: Name) -> _Share:
        """One more user of an image: the hold is taken by the first, and given back by the last."""
        async with self._pulling.setdefault(name, asyncio.Lock()):
            share = self._in_use.get(name)
            if share is None:
                if self._store is None:
                    self._store = Store(Path(self._config.store).expanduser())
                if self._config.pull and self._store.image(name) is None:
                    await self._pull(self._store, name)
                share = _Share(*self._store.use(name), forget=lambda: self._in_use.pop(name, None))
                self._in_use[name] = share
            share.users += 1
            return share

    async def _pull(self, store: Store, name: Name) -> None:
        async with Registry(self._config) as registry:
            found = await Puller(store, registry, self._config, _Quiet()).pull([name])
        if (error := found[name]) is not None:
            raise error


class _Share:
    """A root file system in use by several boxes."""

    def __init__(self, root: Root, hold: Hold, forget: Callable[[], object]) -> None:
        self.root = root
        self.hold = hold
        self.users = 0
        self._forget = forget

    def drop(self) -> None:
        """One user fewer."""
        self.users -= 1
        if self.users == 0:
            self.hold.release()
            self._forget()


class _ImageBox:
    """A box that holds its image until it is closed."""

    def __init__(self, box: Sandbox, share: _Share) -> None:
        self._box = box
        self._share: _Share | None = share

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
        """See `Sandbox.exec`."""
        return await self._box.exec(
            command, timeout=timeout, cwd=cwd, env=env, stdin=stdin, on_output=on_output
        )

    async def listen(self, serve: Handler, *, port: int = 0) -> int:
        """See `Sandbox.listen`."""
        return await self._box.listen(serve, port=port)

    async def read(self, path: str) -> bytes:
        """See `Sandbox.read`."""
        return await self._box.read(path)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""
        await self._box.write(path, data, mode=mode)

    async def fork(self) -> Sandbox:
        """See `Sandbox.fork`; the fork holds the image too."""
        share = self._share
        if share is None:
            return await self._box.fork()  # which says that it is closed
        share.users += 1
        try:
            return _ImageBox(await self._box.fork(), share)
        except BaseException:
            share.drop()
            raise

    async def close(self) -> None:
        """See `Sandbox.close`."""
        await self._box.close()  # when it raises, the box may still be there, on its image
        if self._share is not None:
            self._share.drop()
            self._share = None


class _Quiet:
    """Nobody watches."""

    def bytes(self, count: int) -> None:
        """Say nothing."""

    def done(self, name: Name, error: InfraError | None) -> None:
        """Say nothing."""
