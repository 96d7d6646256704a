"""Manifests and configurations of images: OCI image specification 1.1, Docker schema 2. Pure: no I/O.

All of it comes from outside and is read as hostile: whatever is not as the specification says is an
ImageError.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from patchwright.errors import ImageError
from patchwright.images.names import Name

__all__ = [
    "ACCEPTED",
    "Layer",
    "Manifest",
    "OnBytes",
    "Source",
    "check_digest",
    "choose",
    "diff_ids",
    "digest_of",
    "is_index",
    "parse_json",
    "read_manifest",
]

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPTED = ", ".join((*_MANIFESTS, *_INDEXES))
"""The `Accept` header of a request for a manifest."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_LAYERS = 500  # as many as an overlay stacks
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}

OnBytes = Callable[[int], None]
"""Told how many more bytes have come."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its blob as it is stored outside (empty digest: unknown), and the digest of its tar.

    Example: `Layer(digest="sha256:ab..", size=1234, diff_id="sha256:cd..")`
    """

    digest: str
    size: int
    diff_id: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """An image as a source describes it; `place` is the source's own word for where its blobs are.

    Example: `Manifest("sha256:ab..", {"config": {"Env": []}}, (layer,), "http://127.0.0.1:5001/v2/a/b")`
    """

    digest: str
    config: Mapping[str, Any]
    layers: tuple[Layer, ...]
    place: str = ""


class Source(Protocol):
    """Where images come from. Both methods raise ImageError."""

    async def manifest(self, name: Name) -> Manifest:
        """What the image is made of."""
        ...

    async def fetch(self, manifest: Manifest, layer: Layer, into: Path, on_bytes: OnBytes) -> None:
        """Write the blob of a layer to `into`; what is there already is the beginning of it."""
        ...


def digest_of(data: bytes) -> str:
    """`sha256:` and the hexadecimal digest."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def check_digest(text: object) -> str:
    """`text`, if it is a digest; it becomes part of paths and addresses."""
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise ImageError(f"{str(text)[:100]!r} is not a sha256 digest")
    return text


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImageError(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ImageError(f"{what} is not a JSON object")
    return found


def is_index(manifest: Mapping[str, Any]) -> bool:
    """Whether it lists the manifests of several platforms."""
    return manifest.get("mediaType") in _INDEXES or "manifests" in manifest


def choose(index: Mapping[str, Any], what: str) -> str:
    """The digest of this machine's manifest in a list, else that of linux/amd64."""
    entries = [entry for entry in _sequence(index.get("manifests"), what) if isinstance(entry, dict)]
    machine = platform.machine()
    for wanted in (_MACHINES.get(machine, machine), "amd64"):
        for entry in entries:
            about = entry.get("platform") or {}
            if isinstance(about, dict) and (about.get("os"), about.get("architecture")) == ("linux", wanted):
                return check_digest(entry.get("digest"))
    if len(entries) == 1 and not entries[0].get("platform"):
        return check_digest(entries[0].get("digest"))
    raise ImageError(f"{what} has no image for linux on {machine} or amd64")


def diff_ids(config: Mapping[str, Any], what: str) -> tuple[str, ...]:
    """The digests of an image's layers, bottom first, as tar files."""
    rootfs = config.get("rootfs")
    found = _sequence(rootfs.get("diff_ids") if isinstance(rootfs, dict) else None, what)
    if len(found) > _MOST_LAYERS:
        raise ImageError(f"{what} has {len(found)} layers; an overlay stacks at most {_MOST_LAYERS}")
    return tuple(check_digest(one) for one in found)


def read_manifest(manifest: Mapping[str, Any], what: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """The digest of the configuration, and digest and size (bytes) of every layer, bottom first."""
    if manifest.get("schemaVersion") != 2 or not isinstance(manifest.get("config"), dict):
        raise ImageError(
            f"{what} is not a manifest of OCI or Docker schema 2; it may be too old to be pulled"
        )
    layers = [_descriptor(one, what) for one in _sequence(manifest.get("layers"), what)]
    return check_digest(manifest["config"].get("digest")), tuple(layers)


def _descriptor(layer: object, what: str) -> tuple[str, int]:
    if not isinstance(layer, dict) or not isinstance(layer.get("size"), int) or layer["size"] < 0:
        raise ImageError(f"{what} has a layer without a size")
    if layer.get("urls"):
        raise ImageError(f"{what} has a layer that its registry does not hold; such layers are not fetched")
    return check_digest(layer.get("digest")), layer["size"]


def _sequence(value: object, what: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise ImageError(f"{what} has no list where one must be")
    return value
