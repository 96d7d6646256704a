"""A registry as a source of images (OCI distribution specification 1.1), with mirrors and resumable blobs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx

from patchwright.errors import ConfigError, ImageError
from patchwright.images.config import ImagesConfig
from patchwright.images.credentials import load_credentials
from patchwright.images.http import Again, Http, is_loopback
from patchwright.images.manifest import (
    ACCEPTED,
    Layer,
    Manifest,
    OnBytes,
    choose,
    diff_ids,
    digest_of,
    is_index,
    parse_json,
    read_manifest,
)
from patchwright.images.names import DOCKER_HUB, Name

__all__ = ["Registry", "mirrored", "places"]

_LIMIT = 8 << 20
"""Bytes of a manifest or a configuration."""
_CHUNK = 1 << 20
_HEADWAY = 64 << 10
"""Bytes; a download that got this much further before it broke has not failed."""


class Registry:
    """The source of images over the network, used in `async with`.

    Example: `async with Registry(ImagesConfig()) as source: await source.manifest(Name.parse("alpine"))`
    """

    def __init__(self, config: ImagesConfig) -> None:
        self._mirrors = _mirrors(config.mirrors)
        self._http = Http(
            credentials=load_credentials(),
            retries=config.retries,
            backoff=config.backoff_seconds,
            insecure=config.insecure,
        )

    async def __aenter__(self) -> Registry:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def manifest(self, name: Name) -> Manifest:
        """What the image is made of, from the first place that has it. Raises ImageError."""
        candidates = places(name, self._mirrors)
        for place in candidates[:-1]:
            try:
                return await self._manifest(name, place)
            except ImageError:
                continue  # the next mirror may have it
        return await self._manifest(name, candidates[-1])

    async def fetch(self, manifest: Manifest, layer: Layer, into: Path, on_bytes: OnBytes) -> None:
        """Download a blob to `into`, going on from what is there, until it has size and digest.

        Raises ImageError.
        """
        url, scope = f"{manifest.place}/blobs/{layer.digest}", _scope(manifest.place)

        async def once() -> None:
            before = _size(into)
            try:
                await self._download(url, scope, layer, into, on_bytes)
            except httpx.TransportError as error:
                moved = _size(into) - before > _HEADWAY
                raise Again(str(error) or type(error).__name__, moved=moved) from None

        await self._http.patiently(url, once)

    async def _manifest(self, name: Name, place: str) -> Manifest:
        manifest, digest = await self._json(f"{place}/manifests/{name.reference}", name.digest)
        if is_index(manifest):
            chosen = choose(manifest, str(name))
            manifest, digest = await self._json(f"{place}/manifests/{chosen}", chosen)
        wanted, blobs = read_manifest(manifest, str(name))
        config, _ = await self._json(f"{place}/blobs/{wanted}", wanted)
        ids = diff_ids(config, str(name))
        if len(ids) != len(blobs):
            raise ImageError(f"{name} has {len(blobs)} layers, and its configuration {len(ids)}")
        layers = (Layer(*blob, diff_id) for blob, diff_id in zip(blobs, ids, strict=True))
        return Manifest(digest, config, tuple(layers), place)

    async def _json(self, url: str, digest: str) -> tuple[dict[str, object], str]:
        """A JSON object and its digest, which must be `digest`, or what the server calls it."""
        place = url.rpartition("/")[0].rpartition("/")[0]
        data, said = await self._http.small(url, scope=_scope(place), accept=f"{ACCEPTED}, */*", limit=_LIMIT)
        found, wanted = digest_of(data), digest or said
        if wanted.startswith("sha256:") and wanted != found:
            raise ImageError(f"{url} came with digest {found}, not {wanted}")
        return parse_json(data, url), found

    async def _download(self, url: str, scope: str, layer: Layer, into: Path, on_bytes: OnBytes) -> None:
        hasher, have = await asyncio.to_thread(_hash_file, into)
        if have > layer.size:
            into.unlink()
            raise Again("what was there is longer than the blob")
        if have < layer.size:
            headers = {"Range": f"bytes={have}-"} if have else {}
            async with self._http.stream(url, scope=scope, headers=headers) as reply:
                if reply.status_code == 416 or (have and reply.status_code != 206):
                    hasher, have = hashlib.sha256(), 0
                    into.unlink()
                if reply.status_code == 416:
                    raise Again("the server does not go on from where it stopped")
                await _append(reply, into, hasher, layer.size - have, on_bytes)
        if _size(into) < layer.size:
            raise Again("the connection ended in the middle", moved=_size(into) - have > _HEADWAY)
        if f"sha256:{hasher.hexdigest()}" != layer.digest:
            into.unlink()
            raise Again(f"the digest is not {layer.digest}")


async def _append(
    reply: httpx.Response, into: Path, hasher: hashlib._Hash, most: int, on_bytes: OnBytes
) -> None:
    with into.open("ab") as file:
        async for chunk in reply.aiter_raw():
            most -= len(chunk)
            if most < 0:
                raise ImageError(f"{reply.url} sends more than its manifest says")
            file.write(chunk)
            hasher.update(chunk)
            on_bytes(len(chunk))


def _hash_file(path: Path) -> tuple[hashlib._Hash, int]:
    hasher, size = hashlib.sha256(), 0
    if path.exists():
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
                size += len(chunk)
    return hasher, size


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _scope(place: str) -> str:
    return f"repository:{place.partition('/v2/')[2]}:pull"


# --- mirrors ----------------------------------------------------------------------------------


def _mirrors(given: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for entry in given:
        prefix, _, url = entry.partition("=")
        if not prefix or not url.startswith(("http://", "https://")) or not httpx.URL(url).host:
            raise ConfigError(f"mirror {entry!r} is not PREFIX=URL; write `docker.io=https://mirror.example`")
        found.append((prefix.rstrip("/"), url.rstrip("/")))
    return found


def places(name: Name, mirrors: Sequence[tuple[str, str]]) -> list[str]:
    """Base addresses to try for an image: those of the mirrors with the longest prefix, else its registry's.

    Example: `places(Name.parse("a/b"), [("docker.io", "http://127.0.0.1:5001")])`
    """
    full = f"{name.registry}/{name.repository}"
    fitting = [(prefix, url) for prefix, url in mirrors if full == prefix or full.startswith(f"{prefix}/")]
    longest = max((len(prefix) for prefix, _ in fitting), default=0)
    chosen = [_rewritten(full, prefix, url) for prefix, url in fitting if len(prefix) == longest]
    if chosen:
        return chosen
    host = "registry-1.docker.io" if name.registry == DOCKER_HUB else name.registry
    return [
        f"{'http' if is_loopback(httpx.URL(f'//{host}').host) else 'https'}://{host}/v2/{name.repository}"
    ]


def _rewritten(full: str, prefix: str, url: str) -> str:
    parts, rest = httpx.URL(url), full[len(prefix) :].strip("/")
    path = "/".join(part for part in (parts.path.strip("/"), rest) if part)
    return f"{parts.scheme}://{parts.netloc.decode('ascii')}/v2/{path}"


def mirrored(name: Name, mirrors: Sequence[str]) -> list[str]:
    """The names under which a Docker daemon finds an image at its mirrors; its own when it has none.

    Example: `mirrored(Name.parse("a/b"), ["docker.io=http://127.0.0.1:5001"])`
    """
    full = f"{name.registry}/{name.repository}"
    known = _mirrors(mirrors)
    if not any(full == prefix or full.startswith(f"{prefix}/") for prefix, _ in known):
        return [str(name)]
    own = str(name).removeprefix(full)
    return [place.partition("://")[2].replace("/v2/", "/", 1) + own for place in places(name, known)]
