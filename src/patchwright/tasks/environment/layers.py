"""Steps of an environment as images of the store: each named by what it is made of, and made once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from patchwright.errors import ImageError
from patchwright.images.names import Name
from patchwright.images.store import Image, Store
from patchwright.images.unpack import unpack
from patchwright.store.files import attributed

__all__ = ["Layers", "key_of"]

_PREFIX = "localhost/patchwright"
_LIMIT = 64 << 30


def key_of(*parts: object) -> str:
    """What a step is named by. Example: `key_of("base", "bookworm", ["make"])`"""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=list).encode()).hexdigest()[:16]


class Layers:
    """Adds layers to a store.

    Example: `base = await Layers(store).step("base", key, None, write, {"PATH": "/usr/bin"})`
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def step(
        self, kind: str, key: str, below: Image | None, write: Callable[[Path], object], env: dict[str, str]
    ) -> Image:
        """The image of one step on top of another; `write` makes its tar, in a thread, unless it is there."""
        name = Name.parse(f"{_PREFIX}/{kind}:{key}")
        async with self._store.writing(f"{kind}-{key}"):
            found = self._store.image(name)
            if found is None:
                found = await asyncio.to_thread(self._add, str(name), below, write, env)
            return found

    def known(self, kind: str, key: str) -> Image | None:
        """The image of a step that was made before."""
        return self._store.image(Name.parse(f"{_PREFIX}/{kind}:{key}"))

    def _add(
        self, name: str, below: Image | None, write: Callable[[Path], object], env: dict[str, str]
    ) -> Image:
        with (
            attributed("make an environment", self._store.folder),
            tempfile.TemporaryDirectory(dir=self._store.folder, prefix="making-") as scratch,
        ):
            tar = Path(scratch) / "layer.tar"
            write(tar)
            return self._take(name, below, tar, env)

    def _take(self, name: str, below: Image | None, tar: Path, env: dict[str, str]) -> Image:
        with tar.open("rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        layers = (*(below.layers if below else ()), digest)
        hold = self._store.hold([*layers, *([below.name] if below else [])])
        try:
            if not self._store.layer(digest).is_dir():
                folder = self._store.fresh(digest)
                found, size = unpack(tar, folder, limit=_LIMIT, stopped=lambda: False)
                if found != digest:
                    raise ImageError(f"the tar of {name} has bytes after its end; build it again")
                self._store.add_layer(digest, folder, size)
            image = Image(name=name, digest="", config=_config(layers, env), layers=layers)
            self._store.add_image(image)
            return image
        finally:
            hold.release()


def _config(layers: Iterable[str], env: dict[str, str]) -> dict[str, object]:
    """As the OCI image specification has it."""
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": [f"{key}={value}" for key, value in env.items()], "WorkingDir": "/testbed"},
        "rootfs": {"type": "layers", "diff_ids": list(layers)},
    }


def write_files(tar: Path, paths: Iterable[Path], root: Path = Path("/")) -> None:
    """A tar of files of this machine, named below `root`; folders without what is in them."""
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
        for path in paths:
            name = path.relative_to(root).as_posix()
            try:
                member = out.gettarinfo(path, name)
            except OSError:
                continue  # gone meanwhile
            if member.isreg():
                with path.open("rb") as content:
                    out.addfile(member, content)
            elif member.isdir() or member.issym():
                out.addfile(member)
            elif member.islnk():
                _add_again(out, path, member)


def _add_again(out: tarfile.TarFile, path: Path, member: tarfile.TarInfo) -> None:
    """A second name of a file that is in the tar already."""
    member.type, member.size = tarfile.REGTYPE, path.stat().st_size
    with path.open("rb") as content:
        out.addfile(member, content)
