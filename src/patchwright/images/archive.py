"""Images in a file or folder: an OCI image layout (image-layout.md), or what `docker save` writes."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import IO, Any

from patchwright.errors import ConfigError, ImageError
from patchwright.images.manifest import (
    Layer,
    Manifest,
    OnBytes,
    check_digest,
    choose,
    diff_ids,
    digest_of,
    is_index,
    parse_json,
    read_manifest,
)
from patchwright.images.names import Name
from patchwright.images.threads import in_thread

__all__ = ["Archive"]

_LIMIT = 8 << 20
_CHUNK = 1 << 20
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
"""Annotations that name an image; the second is often only its tag."""


@dataclass
class _Contents:
    """What an archive holds, by name; `unnamed` when it does not say whose they are."""

    named: dict[Name, Manifest] = field(default_factory=dict)
    unnamed: list[Manifest] = field(default_factory=list)


class Archive:
    """A source of images that needs no network. A Manifest's layers are found by their paths in it.

    Raises ConfigError when `path` is no such archive, ImageError when its contents are not as they should.

    Example: `Archive(Path("image.tar")).names()`
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._paths: dict[str, str] = {}
        if not path.exists():
            raise ConfigError(f"there is no image archive {path}; check the path given to --archive")
        with self._opened() as files:
            self._contents = self._read(files)

    def names(self) -> list[Name]:
        """The names it gives its images."""
        return list(self._contents.named)

    async def manifest(self, name: Name) -> Manifest:
        """What the image is made of; any name will do for the only image of an archive."""
        found = self._contents.named.get(name)
        everything = [*self._contents.named.values(), *self._contents.unnamed]
        if found is None and len(everything) == 1:
            return everything[0]
        if found is None:
            known = ", ".join(map(str, self._contents.named)) or "images without names"
            raise ImageError(f"{self._path} has no image {name}; it holds {known}"[:1000])
        return found

    async def fetch(self, manifest: Manifest, layer: Layer, into: Path, on_bytes: OnBytes) -> None:
        """Copy a layer out; its digest is looked at when it is unpacked."""
        await in_thread(lambda stop: self._copy(layer, into, stop))
        on_bytes(layer.size)

    def _copy(self, layer: Layer, into: Path, stop: Event) -> None:
        with (
            self._opened() as files,
            files.open(self._paths[layer.diff_id]) as source,
            into.open("wb") as out,
        ):
            while not stop.is_set() and (chunk := source.read(_CHUNK)):
                out.write(chunk)

    @contextmanager
    def _opened(self) -> Iterator[_Files]:
        if self._path.is_dir():
            yield _Files(self._path)
            return
        try:
            with tarfile.open(self._path) as tar:
                yield _Files(tar)
        except tarfile.TarError as error:
            raise ConfigError(f"{self._path} is no image archive: {error}") from None

    def _read(self, files: _Files) -> _Contents:
        saved = files.small("manifest.json", missing=True)
        if saved is not None:
            return self._saved(files, saved)
        index = files.small("index.json", missing=True)
        if index is None:
            raise ConfigError(
                f"{self._path} has neither index.json nor manifest.json: it is no image archive"
            )
        contents = _Contents()
        self._layout(files, parse_json(index, "index.json"), contents, depth=0)
        return contents

    # --- docker save --------------------------------------------------------------------------

    def _saved(self, files: _Files, data: bytes) -> _Contents:
        contents = _Contents()
        entries = parse_json(b'{"images":' + data + b"}", "manifest.json")["images"]
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, dict) or not isinstance(entry.get("Layers"), list):
                raise ImageError(f"manifest.json of {self._path} is not what `docker save` writes")
            config = files.json(str(entry.get("Config")))
            manifest = self._manifest(files, config, [str(path) for path in entry["Layers"]])
            names = [Name.parse(str(tag)) for tag in entry.get("RepoTags") or []]
            contents.named.update(dict.fromkeys(names, manifest))
            contents.unnamed += [] if names else [manifest]
        return contents

    # --- OCI layout ---------------------------------------------------------------------------

    def _layout(self, files: _Files, index: Mapping[str, Any], contents: _Contents, depth: int) -> None:
        """The images of an index; one level of indexes below it names platforms."""
        for entry in index.get("manifests") or []:
            digest = check_digest(entry.get("digest") if isinstance(entry, dict) else None)
            found = files.json(_blob(digest), digest)
            if is_index(found) and depth == 0:
                digest = choose(found, str(self._path))
                found = files.json(_blob(digest), digest)
            config, blobs = read_manifest(found, str(self._path))
            paths = [_blob(blob) for blob, _ in blobs]
            manifest = self._manifest(files, files.json(_blob(config), config), paths, digest)
            name = _annotated(entry.get("annotations"))
            if name is None:
                contents.unnamed.append(manifest)
            else:
                contents.named[name] = manifest

    def _manifest(
        self, files: _Files, config: Mapping[str, Any], paths: list[str], digest: str = ""
    ) -> Manifest:
        ids = diff_ids(config, str(self._path))
        if len(ids) != len(paths):
            raise ImageError(f"an image of {self._path} has {len(paths)} layers and names {len(ids)}")
        self._paths.update(zip(ids, paths, strict=True))
        layers = (Layer("", files.size(path), diff_id) for diff_id, path in zip(ids, paths, strict=True))
        return Manifest(digest, config, tuple(layers))


class _Files:
    """The files of an archive, be it a folder or a tar. No path leads out of it."""

    def __init__(self, place: Path | tarfile.TarFile) -> None:
        self._place = place

    def open(self, path: str) -> IO[bytes]:
        """A file's content. Raises ImageError when it is not there."""
        try:
            if isinstance(self._place, Path):
                return self._inside(self._place, path).open("rb")
            found = self._place.extractfile(path)
        except (KeyError, OSError) as error:
            raise ImageError(f"an image archive lacks {path[:200]!r}: {error}") from None
        if found is None:
            raise ImageError(f"{path[:200]!r} in an image archive is no file")
        return found

    def size(self, path: str) -> int:
        """Bytes of a file."""
        with self.open(path) as file:
            return file.seek(0, 2)

    def small(self, path: str, *, missing: bool = False) -> bytes | None:
        """A file of a few MiB; with `missing`, None when it is not there."""
        try:
            with self.open(path) as file:
                data = file.read(_LIMIT + 1)
        except ImageError:
            if missing:
                return None
            raise
        if len(data) > _LIMIT:
            raise ImageError(f"{path[:200]!r} in an image archive is longer than {_LIMIT} bytes")
        return data

    def json(self, path: str, digest: str = "") -> dict[str, Any]:
        """A JSON object; `digest`, when given, must be its."""
        data = self.small(path) or b""
        if digest and digest_of(data) != digest:
            raise ImageError(f"{path} in an image archive does not have the digest of its name")
        return parse_json(data, path)

    def _inside(self, folder: Path, path: str) -> Path:
        full = (folder / path).resolve()
        if not full.is_relative_to(folder.resolve()):
            raise ImageError(f"an image archive points out of itself: {path[:200]!r}")
        return full


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _annotated(annotations: object) -> Name | None:
    for key in _NAMES if isinstance(annotations, dict) else ():
        text = annotations.get(key) if isinstance(annotations, dict) else None
        if isinstance(text, str) and ("/" in text or ":" in text):
            return Name.parse(text)
    return None
