"""A node as the pool sees it: how to reach it, what is known of it, and how to look again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from patchwright.fleet import api
from patchwright.fleet.choose import NodeState
from patchwright.fleet.link import Streamed
from patchwright.fleet.node_reply import Reply

__all__ = ["NodeApi", "PoolNode", "Sight"]

_LOOK_SECONDS = 5.0
"""A node that does not answer within this time counts as gone."""
_IMAGES_EVERY = 20
"""Looks between two of the node's images."""


class NodeApi(Protocol):
    """The part of a `Link` that the pool needs."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        key: str = "",
        token: str = "",
        timeout: float = 60.0,
        retry: bool = True,
    ) -> Reply:
        """One call, the answer as it came. Raises NodeError when there is none."""
        ...

    def stream(
        self, path: str, body: bytes, *, key: str, token: str = "", timeout: float = 60.0
    ) -> AbstractAsyncContextManager[Streamed]:
        """POST, and the answer as it comes. Raises NodeError when none begins."""
        ...

    async def close(self) -> None:
        """Drop the connections."""
        ...


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at a node showed."""

    healthy: bool
    leases: frozenset[str]
    """Leases with a box there."""
    others: int
    """Boxes without a lease: somebody else's."""


class PoolNode:
    """One node of a pool."""

    def __init__(self, url: str, cap: int, link: NodeApi) -> None:
        self.state = NodeState(url=url, cap=cap)
        self.link = link
        self.reachable = False
        self._looks = 0
        self._hopeful: set[asyncio.Task[Reply]] = set()
        """Requests that make no sense once the node is out of reach."""

    @property
    def url(self) -> str:
        """Its address."""
        return self.state.url

    def reserve(self) -> None:
        """A slot is taken, for a box that is about to be made; `made` must follow."""
        self.state = replace(self.state, busy=self.state.busy + 1, creating=self.state.creating + 1)

    def made(self) -> None:
        """The box is there, or will never be."""
        self.state = replace(self.state, creating=self.state.creating - 1)

    def occupy(self) -> None:
        """A slot is taken by a box that was made before this pool started."""
        self.state = replace(self.state, busy=self.state.busy + 1)

    def release(self) -> None:
        """A slot is free: its box is gone, or was never made."""
        self.state = replace(self.state, busy=self.state.busy - 1)

    async def post(
        self, path: str, fields: Mapping[str, Any], *, key: str = "", timeout: float = 60.0
    ) -> Reply:
        """POST a JSON object. Raises NodeError when there is no answer."""
        body = json.dumps(fields).encode()
        return await self.link.request("POST", path, body=body, key=key, timeout=timeout)

    async def make(self, path: str, fields: Mapping[str, Any], *, key: str, timeout: float) -> Reply:
        """POST what another node can do as well: given up as soon as a look shows this one out of reach."""
        task = asyncio.create_task(self.post(path, fields, key=key, timeout=timeout))
        self._hopeful.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            raise api.NodeError(f"node {self.url} stopped answering") from None
        finally:
            self._hopeful.discard(task)

    async def look(self) -> Sight:
        """Ask for health and boxes, now and then for images.

        Raises NodeError, ValueError, KeyError or TypeError when the node does not answer as nodes do.
        """
        health = await self._get(api.HEALTH)
        boxes = (await self._get(api.STATUS))["containers"]
        healthy = health["ok"] is True
        if healthy and self._looks % _IMAGES_EVERY == 0:
            images = (await self._get(api.IMAGES))["images"]
            self.state = replace(self.state, images=frozenset(map(str, images)))
        self._looks += healthy  # an engine that is down cannot name its images either
        owners = [str(box.get("lease_id") or "") for box in boxes]
        return Sight(healthy, frozenset(filter(None, owners)), owners.count(""))

    def seen(self, sight: Sight | None) -> None:
        """Take note of a look; None when it failed."""
        self.reachable = sight is not None
        for task in () if self.reachable else tuple(self._hopeful):
            task.cancel()
        healthy = sight is not None and sight.healthy
        if healthy != self.state.healthy:
            self.state = replace(self.state, healthy=healthy)

    async def _get(self, path: str) -> Any:
        reply = await self.link.request("GET", path, timeout=_LOOK_SECONDS, retry=False)
        if reply.status != 200:
            raise ValueError(f"{path} answered {reply.status}")
        return json.loads(reply.body)
