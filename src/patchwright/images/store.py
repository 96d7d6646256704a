"""The store: layers unpacked once each, and records of the images that stack them.

    blobs/sha256/HEX        layers on their way from a registry, and the beginnings of such
    layers/sha256/HEX/      an unpacked layer, named by the digest of its tar; HEX.bytes: what it takes
    images/NAME.json        an image: configuration and layers; its modification time is its last use
    holds/                  what running programs use
    trash/                  what is being removed

All of it is absent or complete: written beside and renamed. A program that is killed leaves at most files
that the next one goes on with or that `prune` removes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from patchwright.config import Config
from patchwright.errors import ConfigError, ImageError, MissingImage
from patchwright.images.locks import Hold, alone, alone_async, held
from patchwright.images.names import Name
from patchwright.store.files import attributed, write_text

__all__ = ["Image", "Pruned", "Root", "Store", "Usage"]

_LONGEST_FILE = 200


class Image(Config):
    """What the store knows of an image; written as JSON."""

    name: str
    """Its full name."""
    digest: str
    """Digest of its manifest where it came from; empty for archives."""
    config: dict[str, Any]
    """Its configuration (OCI image specification, config.md)."""
    layers: tuple[str, ...]
    """Digests of its layers' tars, bottom first."""


@dataclass(frozen=True, slots=True)
class Root:
    """A root file system for a box.

    Example: `Root(lowers=(Path("/s/layers/sha256/ab"),), env={"PATH": "/usr/bin"}, workdir="/testbed")`
    """

    lowers: tuple[Path, ...]
    """Folders an overlay stacks, topmost first."""
    env: Mapping[str, str]
    workdir: str

    @property
    def image(self) -> str:
        """As `BoxSpec.image` of a namespace box takes it."""
        return ":".join(map(str, self.lowers))


@dataclass(frozen=True, slots=True)
class Usage:
    """What an image takes. Example: `Usage(name="docker.io/a/b:latest", size=9, unique=1, used=1.7e9)`"""

    name: str
    size: int
    """Bytes of all its layers."""
    unique: int
    """Bytes of the layers no other image has."""
    used: float
    """Last use, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed. Example: `Pruned(images=("docker.io/a/b:latest",), bytes=1234)`"""

    images: tuple[str, ...]
    bytes: int


class Store:
    """A folder of images. Any number of programs may use it at once.

    Raises StoreError when the disk refuses.

    Example: `store = Store(Path("~/.cache/patchwright/images").expanduser())`
    """

    def __init__(self, folder: Path) -> None:
        if ":" in str(folder.absolute()) or "," in str(folder.absolute()):
            raise ConfigError(
                f"store {folder} has a colon or a comma in its path, which overlays cannot take"
            )
        self.folder = folder.absolute()
        self._layers = self.folder / "layers" / "sha256"
        self._blobs = self.folder / "blobs" / "sha256"
        self._images = self.folder / "images"
        self._holds = self.folder / "holds"
        self._trash = self.folder / "trash"
        self._locks = self.folder / "locks"
        with attributed("make an image store", self.folder):
            for place in (self._layers, self._blobs, self._images, self._holds, self._trash, self._locks):
                place.mkdir(parents=True, exist_ok=True)

    # --- reading ------------------------------------------------------------------------------

    def images(self) -> list[Image]:
        """Every image, by name."""
        with attributed("read the images", self._images):
            found = [_read(path) for path in sorted(self._images.glob("*.json"))]
        return [image for image in found if image is not None]

    def image(self, name: Name) -> Image | None:
        """The image of that name, or None when it is not in the store."""
        with attributed("read an image", self._images):
            return _read(self._record(str(name)))

    def resolve(self, name: Name) -> Root:
        """The root file system of an image. Raises ConfigError when the store does not have it."""
        return self._root(self._known(name))

    def usage(self) -> list[Usage]:
        """What every image takes, most recently used first."""
        images = self.images()
        shared = Counter(layer for image in images for layer in set(image.layers))
        found = []
        for image in images:
            sizes = {layer: self.layer_bytes(layer) for layer in image.layers}
            unique = sum(size for layer, size in sizes.items() if shared[layer] == 1)
            found.append(Usage(image.name, sum(sizes.values()), unique, self._used(image)))
        return sorted(found, key=lambda one: -one.used)

    def bytes(self) -> int:
        """All that the store takes, what is on its way too."""
        with attributed("measure the images", self.folder):
            layers = sum(_number(path) for path in self._layers.glob("*.bytes"))
            return layers + sum(_size(path) for path in self._blobs.iterdir())

    # --- using --------------------------------------------------------------------------------

    def hold(self, things: Collection[str]) -> Hold:
        """Keep names of images and digests of layers from being pruned."""
        with attributed("hold an image", self.folder), self._alone():
            return Hold(self._holds, things)

    def use(self, name: Name) -> tuple[Root, Hold]:
        """The root file system of an image, held; this is its last use.

        Raises ConfigError when the store does not have it.
        """
        with attributed("hold an image", self.folder), self._alone():
            image = self._known(name)
            os.utime(self._record(image.name))
            return self._root(image), Hold(self._holds, [image.name, *image.layers])

    # --- adding -------------------------------------------------------------------------------

    def writing(self, digest: str) -> AbstractAsyncContextManager[None]:
        """The right to write one layer; another program, or task, that wants it waits."""
        return alone_async(self._locks / digest.removeprefix("sha256:"))

    def blob(self, digest: str) -> Path:
        """Where a layer's blob is downloaded to."""
        return self._blobs / digest.removeprefix("sha256:")

    def blob_bytes(self, digest: str) -> int:
        """What of a layer's blob is there."""
        return _size(self.blob(digest))

    def layer(self, diff_id: str) -> Path:
        """Where an unpacked layer is, if it is there."""
        return self._layers / diff_id.removeprefix("sha256:")

    def layer_bytes(self, diff_id: str) -> int:
        """What an unpacked layer takes."""
        return _number(self.layer(diff_id).with_suffix(".bytes"))

    def fresh(self, diff_id: str) -> Path:
        """An empty folder to unpack a layer into; call it with the right to write it."""
        folder = self.layer(diff_id).with_suffix(".tmp")
        self._discard(folder)
        folder.mkdir(mode=0o755)
        return folder

    def add_layer(self, diff_id: str, unpacked: Path, size: int) -> None:
        """Take an unpacked layer of `size` bytes in, for good."""
        final = self.layer(diff_id)
        write_text(final.with_suffix(".bytes"), str(size))
        _sync_disk(unpacked)  # thousands of files at once, before any record names them
        unpacked.rename(final)

    def add_image(self, image: Image) -> None:
        """Record an image whose layers are all there, and held by the caller."""
        missing = [layer for layer in image.layers if not self.layer(layer).is_dir()]
        if missing:
            raise ImageError(f"{image.name} lacks layer {missing[0]}")
        with attributed("record an image", self._images), self._alone():  # two may pull it at once
            write_text(self._record(image.name), image.model_dump_json())

    # --- removing -----------------------------------------------------------------------------

    def prune(self, *, budget: int | None = None, names: Collection[str] = ()) -> Pruned:
        """Remove leftovers, the images `names`, and then images used longest ago until all fits in `budget`.

        Nothing that is held is removed. Raises ConfigError for one of `names` that is held or not there.
        """
        with attributed("prune images", self.folder):
            with self._alone():
                pruned = self._prune(budget, names)
            for gone in self._trash.iterdir():
                shutil.rmtree(gone, ignore_errors=True)  # another program may be at it too
        return pruned

    def _prune(self, budget: int | None, names: Collection[str]) -> Pruned:
        busy, before = held(self._holds), self.bytes()
        records = {image.name: image for image in self.images()}
        for name in names:
            self._refuse(name, records, busy)
        gone = list(dict.fromkeys(names))
        for name in gone:
            self._forget(records.pop(name))
        self._sweep(records, busy)
        if budget is not None and self.bytes() > budget:
            gone += self._forget_oldest(budget, records, busy)
            self._sweep(records, busy)
        return Pruned(tuple(gone), before - self.bytes())

    def _forget_oldest(self, budget: int, records: dict[str, Image], busy: Collection[str]) -> list[str]:
        """Drop the records of images used longest ago until what is left fits in `budget`; their names."""
        gone: list[str] = []
        total = self.bytes()
        users = Counter(layer for image in records.values() for layer in set(image.layers))
        for image in sorted(records.values(), key=self._used):
            if total <= budget:
                break
            if image.name in busy:
                continue
            users.subtract(set(image.layers))
            freed = [layer for layer in set(image.layers) if not users[layer] and layer not in busy]
            total -= sum(map(self.layer_bytes, freed))
            self._forget(records.pop(image.name))
            gone.append(image.name)
        return gone

    def _refuse(self, name: str, records: Mapping[str, Image], busy: Collection[str]) -> None:
        if name not in records:
            raise ConfigError(
                f"image {name} is not in the store {self.folder}; see `patchwright images list`"
            )
        if name in busy:
            raise ConfigError(f"image {name} is in use; close what uses it first")

    def _sweep(self, records: Mapping[str, Image], busy: Collection[str]) -> None:
        """Remove the layers and blobs that no image has and nobody holds."""
        wanted = {layer for image in records.values() for layer in image.layers} | set(busy)
        hexes = {one.removeprefix("sha256:") for one in wanted}
        for path in sorted(self._layers.iterdir()):  # a layer goes before the note of its size
            if path.name.partition(".")[0] not in hexes:
                self._discard(path)
        for path in self._blobs.iterdir():
            if path.name not in hexes:
                path.unlink()

    def _forget(self, image: Image) -> None:
        self._record(image.name).unlink(missing_ok=True)

    def _discard(self, path: Path) -> None:
        """Remove a file or a folder: at once for whoever looks, its contents a little later."""
        if path.is_dir():
            gone = self._trash / secrets.token_hex(8)
            path.rename(gone)
        else:
            path.unlink(missing_ok=True)

    # --- inside -------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with alone(self.folder / "lock"):
            yield

    def _known(self, name: Name) -> Image:
        image = _read(self._record(str(name)))
        if image is None:
            raise MissingImage(f"image {name} is not in {self.folder}; run `patchwright images pull {name}`")
        return image

    def _root(self, image: Image) -> Root:
        config = image.config.get("config")
        config = config if isinstance(config, dict) else {}
        pairs = (str(one).partition("=") for one in config.get("Env") or [])
        return Root(
            lowers=tuple(self.layer(layer) for layer in dict.fromkeys(reversed(image.layers))),
            env={name: value for name, equals, value in pairs if equals and name},
            workdir=str(config.get("WorkingDir") or "/"),
        )

    def _record(self, name: str) -> Path:
        file = quote(name, safe="")
        if len(file) > _LONGEST_FILE:
            file = f"{file[:100]}-{hashlib.sha256(name.encode()).hexdigest()}"
        return self._images / f"{file}.json"

    def _used(self, image: Image) -> float:
        try:
            return self._record(image.name).stat().st_mtime
        except FileNotFoundError:  # pruned by another program just now
            return time.time()


def _read(path: Path) -> Image | None:
    try:
        return Image.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise ConfigError(f"{path} is not a record of an image; remove it and pull the image again") from None


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sync_disk(folder: Path) -> None:
    """syncfs(2): what was written to this disk survives a power cut; Python has no name for it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(handle)
