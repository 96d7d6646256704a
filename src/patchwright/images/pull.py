"""Pulls images from a source into the store: layers in parallel, each fetched and unpacked once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from threading import Event
from typing import Protocol, TypeVar

from patchwright.errors import ConfigError, ImageError, InfraError
from patchwright.images.config import ImagesConfig, parse_bytes
from patchwright.images.manifest import Layer, Manifest, Source
from patchwright.images.names import Name
from patchwright.images.store import Image, Store
from patchwright.images.threads import in_thread
from patchwright.images.unpack import unpack
from patchwright.store.files import attributed

__all__ = ["Puller", "Watch"]

T = TypeVar("T")
_NO_BUDGET = 1 << 42
"""Bytes one layer may take at most when the store has no budget."""


class Watch(Protocol):
    """Told how pulling gets on."""

    def bytes(self, count: int) -> None:
        """So many more bytes have come."""
        ...

    def done(self, name: Name, error: InfraError | None) -> None:
        """An image is there, or cannot be had."""
        ...


class Puller:
    """Pulls from one source into one store; what one puller has pulled is not pruned while it lives.

    Example: `found = await Puller(store, registry, ImagesConfig(), watch).pull([Name.parse("alpine")])`
    """

    def __init__(self, store: Store, source: Source, config: ImagesConfig, watch: Watch) -> None:
        self._store = store
        self._source = source
        self._budget = parse_bytes(config.budget)
        self._slots = asyncio.Semaphore(config.parallel)
        self._at_once = asyncio.Semaphore(config.parallel)
        self._watch = watch

    async def pull(self, names: Sequence[Name], *, refresh: bool = False) -> dict[Name, InfraError | None]:
        """Pull all of `names`, and say of each what went wrong, if anything did.

        An image that is in the store is not asked for again unless `refresh`. Raises ConfigError when the
        budget does not hold them, with what was pulled so far complete.
        """
        wanted = list(dict.fromkeys(names))
        hold = self._store.hold(
            [str(name) for name in wanted]
        )  # the earlier are not to make room for the later
        try:
            return dict(zip(wanted, await _all([self._one(name, refresh) for name in wanted]), strict=True))
        finally:
            hold.release()

    async def _one(self, name: Name, refresh: bool) -> InfraError | None:
        async with self._at_once:
            error: InfraError | None = None
            try:
                if refresh or self._store.image(name) is None:
                    await self._pull(name)
            except InfraError as failure:
                error = failure
            self._watch.done(name, error)
            return error

    async def _pull(self, name: Name) -> None:
        manifest = await self._source.manifest(name)
        if not manifest.layers:
            raise ImageError(f"{name} has no layers: there is nothing in it to run")
        ids = tuple(layer.diff_id for layer in manifest.layers)
        hold = self._store.hold([*ids, *(layer.digest for layer in manifest.layers)])
        try:
            missing = [layer for layer in manifest.layers if not self._store.layer(layer.diff_id).is_dir()]
            await self._make_room(sum(map(self._to_come, missing)))
            unique = {layer.diff_id: layer for layer in missing}.values()
            await _all([self._layer(manifest, layer) for layer in unique])
            image = Image(name=str(name), digest=manifest.digest, config=dict(manifest.config), layers=ids)
            self._store.add_image(image)
        finally:
            hold.release()
        await self._make_room(0)

    async def _make_room(self, size: int) -> None:
        """Prune for `size` more bytes. Files take at least what their compressed tar does."""
        if self._budget is None:
            return
        if await asyncio.to_thread(self._store.bytes) + size <= self._budget:
            return
        await asyncio.to_thread(self._store.prune, budget=max(self._budget - size, 0))
        used = await asyncio.to_thread(self._store.bytes)
        if used + size > self._budget:
            raise ConfigError(
                f"the images asked for need {(used + size) / 1e9:.2f} GB, over the store's budget of "
                f"{self._budget / 1e9:.2f} GB; raise --budget, or ask for fewer"
            )

    def _to_come(self, layer: Layer) -> int:
        return max(0, layer.size - self._store.blob_bytes(layer.digest or layer.diff_id))

    async def _layer(self, manifest: Manifest, layer: Layer) -> None:
        async with self._store.writing(layer.diff_id):
            if self._store.layer(layer.diff_id).is_dir():
                return
            blob = self._store.blob(layer.digest or layer.diff_id)
            async with self._slots:
                with attributed("fetch a layer", blob):
                    await self._source.fetch(manifest, layer, blob, self._watch.bytes)
                await in_thread(lambda stop: self._unpack(layer, blob, stop))

    def _unpack(self, layer: Layer, blob: Path, stop: Event) -> None:
        with attributed("unpack a layer", self._store.layer(layer.diff_id)):
            folder = self._store.fresh(layer.diff_id)
            limit = _NO_BUDGET if self._budget is None else self._budget
            diff_id, size = unpack(blob, folder, limit=limit, stopped=stop.is_set)
            blob.unlink()
            if diff_id != layer.diff_id:
                raise ImageError(f"a layer unpacks to {diff_id}, not to {layer.diff_id} as its image says")
            self._store.add_layer(layer.diff_id, folder, size)


async def _all(works: Sequence[Awaitable[T]]) -> list[T]:
    """Every result; the first error ends the rest and is raised as it is, when all of them have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
