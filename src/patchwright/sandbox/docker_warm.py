"""Containers started ahead of the boxes that will be made in them. Each serves one box, like any other."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from patchwright.errors import SandboxError
from patchwright.sandbox.docker_api import DockerChannel

_KINDS = 16
"""Most kinds of containers held ready at once; the one not asked for the longest goes first."""


@dataclass(frozen=True, slots=True)
class Container:
    """A started container and the way to its runner."""

    name: str
    channel: DockerChannel
    image: str = ""
    """The unnamed image it was forked from, which goes with it; empty when it is no fork."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What containers have in common that can stand in for each other."""

    container: dict[str, Any]
    """As the Engine API takes it: the image, the limits, the mounts."""
    reply_limit: int
    """Most bytes one reply of the runner may carry."""

    @property
    def key(self) -> str:
        """Equal for equal kinds."""
        return json.dumps(self.container, sort_keys=True)


@dataclass(frozen=True, slots=True)
class _Shelf:
    """What is ready of one kind."""

    kind: Kind
    containers: deque[Container] = field(default_factory=deque)


class WarmContainers:
    """Holds `count` containers ready of every kind that was asked for lately.

    Example: `container = await WarmContainers(2, start, discard).take(kind)`
    """

    def __init__(
        self,
        count: int,
        start: Callable[[Kind], Awaitable[Container]],
        discard: Callable[[Container], Awaitable[None]],
    ) -> None:
        self._count = count
        self._start = start
        self._discard = discard
        self._ready: OrderedDict[str, _Shelf] = OrderedDict()
        self._filling: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    async def take(self, kind: Kind) -> Container:
        """A container of this kind: one that is ready, or else a new one. Raises SandboxError."""
        if not self._count or self._closed:
            return await self._start(kind)
        ready = self._shelf(kind).containers
        self._ready.move_to_end(kind.key)
        while ready:
            container = ready.popleft()
            if container.channel.alive:
                self._fill(kind)
                return container
            await self._discard(container)
        container = await self._start(kind)
        self._fill(kind)
        return container

    async def mend(self) -> None:
        """Replace what has died. Raises SandboxError when the engine does not answer."""
        for shelf in tuple(self._ready.values()):
            dead = [one for one in shelf.containers if not one.channel.alive]
            for container in dead:
                shelf.containers.remove(container)
            await asyncio.gather(*(self._discard(container) for container in dead))
            if dead:
                self._fill(shelf.kind)

    async def close(self) -> None:
        """Stop filling. What is ready is left to the backend, which removes all it has made."""
        self._closed = True
        await asyncio.gather(*self._filling.values())

    def _shelf(self, kind: Kind) -> _Shelf:
        return self._ready.setdefault(kind.key, _Shelf(kind))

    def _fill(self, kind: Kind) -> None:
        if kind.key not in self._filling and not self._closed:
            self._filling[kind.key] = asyncio.ensure_future(self._fill_up(kind))

    async def _fill_up(self, kind: Kind) -> None:
        """Start what is missing, one after the other, in the background."""
        try:
            while not self._closed and len(self._shelf(kind).containers) < self._count:
                container = await self._start(kind)
                self._shelf(kind).containers.append(container)
            while len(self._ready) > _KINDS:
                _, old = self._ready.popitem(last=False)
                await asyncio.gather(*(self._discard(container) for container in old.containers))
        except SandboxError:
            pass  # whoever opens a box next is told
        finally:
            del self._filling[kind.key]
