"""What a pool does on its own: look at its nodes, end leases that are over, remove boxes nobody owns, keep
warm ones ready."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from patchwright.errors import InfraError, StoreError
from patchwright.fleet import api
from patchwright.fleet.journal import LeaseState
from patchwright.fleet.lease_book import Lease
from patchwright.fleet.pool_api import AllocateRequest, PoolError
from patchwright.fleet.pool_node import PoolNode, Sight

if TYPE_CHECKING:
    from patchwright.fleet.pool import Pool

__all__ = ["Caretaker"]

_FIRST_WAIT, _LONGEST_WAIT = 0.2, 15.0
"""Seconds between two tries to remove a box."""
_TICK = 1.0
_NO_ANSWER = (api.NodeError, ValueError, KeyError, TypeError, AttributeError)
"""What comes of asking a node that is down, or that is none."""


class Caretaker:
    """The background of one pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._tasks: set[asyncio.Task[None]] = set()
        self._lookers: dict[str, asyncio.Task[None]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._running = False

    async def start(self) -> None:
        """Look at every node once, then go on in the background."""
        self._running = True
        await asyncio.gather(*(self.look(node) for node in self._pool.nodes.values()))
        for lease in self._pool.book.all():
            if lease.row.state is not LeaseState.OPEN:
                self.remove(lease)
        for node in self._pool.nodes.values():
            self.adopt(node)
        self._spawn(self._ticking())

    async def close(self) -> None:
        """Stop everything."""
        self._running = False
        tasks = [*self._tasks, *self._lookers.values(), *self._removals.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- nodes --------------------------------------------------------------------------------

    def adopt(self, node: PoolNode) -> None:
        """Look at a node from now on, and give it boxes."""
        node.state = replace(node.state, draining=False)
        if self._running and node.url not in self._lookers:
            self._lookers[node.url] = asyncio.create_task(self._looking(node))

    def drain(self, node: PoolNode) -> None:
        """Give a node no more boxes; it is forgotten when it has none."""
        node.state = replace(node.state, draining=True)

    async def look(self, node: PoolNode) -> None:
        """Look at a node once, and settle what follows for its leases."""
        started = self._pool.book.clock()
        try:
            sight = await node.look()
        except _NO_ANSWER:
            sight = None
        node.seen(sight)
        if sight is not None:
            self._settle(node, sight, started)
        self._pool.line.serve()

    async def _looking(self, node: PoolNode) -> None:
        while True:
            with contextlib.suppress(StoreError):  # a full disk: the next look tries again
                await self.look(node)
            await asyncio.sleep(self._pool.options.look_seconds * random.uniform(0.8, 1.2))

    def _settle(self, node: PoolNode, sight: Sight, started: float) -> None:
        """Compare the leases of a node with its boxes, as they were when the look began."""
        book = self._pool.book
        for lease in book.at(node):
            if lease.since >= started:
                continue
            if lease.row.state is LeaseState.OPEN and lease.id in sight.leases:
                book.used(lease)
            elif lease.row.state is LeaseState.OPEN:
                self._pool.counts["expired"] += 1
                self.remove(lease)
            elif lease.row.state is LeaseState.CLOSING and lease.id not in sight.leases:
                self._gone(lease)
        for lease_id in sight.leases:
            if book.is_mine(lease_id) and lease_id not in book:
                self._spawn(self._close_orphan(node, lease_id))

    async def _close_orphan(self, node: PoolNode, lease_id: str) -> None:
        """One try: the next look finds it again."""
        fields = {"lease_id": lease_id, "fence": self._pool.book.journal.next_fence()}
        with contextlib.suppress(api.NodeError):
            await node.post(api.CLOSE_LEASE, fields)

    # --- leases -------------------------------------------------------------------------------

    def remove(self, lease: Lease) -> asyncio.Task[None]:
        """Close a lease now and have its box removed, until the node confirms it. The removal's task."""
        if lease.row.state is not LeaseState.CLOSING:
            self._pool.book.closing(lease)
        if lease.id not in self._removals:
            task = self._removals[lease.id] = asyncio.create_task(self._removing(lease))
            task.add_done_callback(lambda _: self._removals.pop(lease.id, None))
        return self._removals[lease.id]

    async def _removing(self, lease: Lease) -> None:
        wait = _FIRST_WAIT
        while lease.id in self._pool.book:
            if await self._removed(lease):
                self._gone(lease)
                return
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(_LONGEST_WAIT, 2 * wait)

    async def _removed(self, lease: Lease) -> bool:
        fields = {"lease_id": lease.id, "fence": self._pool.book.journal.next_fence()}
        try:
            return (await lease.node.post(api.CLOSE_LEASE, fields)).status == 200
        except api.NodeError:
            return False

    def _gone(self, lease: Lease) -> None:
        self._pool.book.gone(lease)
        self._pool.line.serve()

    # --- time ---------------------------------------------------------------------------------

    async def _ticking(self) -> None:
        while True:
            with contextlib.suppress(StoreError):
                self.tick()
            await asyncio.sleep(_TICK)

    def tick(self) -> None:
        """What the passing of time brings about."""
        now = self._pool.book.clock()
        for lease in self._pool.book.all():
            if lease.expires <= now and lease.row.state is not LeaseState.ALLOCATING:
                self._over(lease)
        for node in list(self._pool.nodes.values()):
            if node.state.draining and not self._pool.book.at(node) and node.state.busy == 0:
                self._forget(node)
        self._keep_warm()
        self._pool.line.serve()

    def _over(self, lease: Lease) -> None:
        """Its term is over. A node that cannot be reached ended the box on its own clock: if not, the first
        look at it shows a box that nobody owns."""
        self._pool.counts["expired"] += lease.row.state is LeaseState.OPEN
        if lease.node.reachable:
            self.remove(lease)
        else:
            self._gone(lease)

    def _forget(self, node: PoolNode) -> None:
        del self._pool.nodes[node.url]
        looker = self._lookers.pop(node.url, None)
        if looker is not None:
            looker.cancel()
        self._spawn(node.link.close())

    # --- warm boxes ---------------------------------------------------------------------------

    def ready(self, image: str) -> list[Lease]:
        """The warm boxes of an image that can be handed over."""
        return [lease for lease in self._pool.book.spares(image) if lease.row.state is LeaseState.OPEN]

    def _keep_warm(self) -> None:
        """Order what is missing; while somebody waits, give back what is ready instead."""
        for image, wanted in self._pool.options.warm.items():
            spares = self.ready(image)
            if len(self._pool.line):
                for lease in spares:
                    self.remove(lease)
                continue
            for lease in spares:
                self._spawn(self._renew(lease))
            for _ in range(wanted - len(list(self._pool.book.spares(image)))):
                self._spawn(self._warm(image))

    async def _warm(self, image: str) -> None:
        pool, ask = self._pool, AllocateRequest(image=image)
        try:
            node = await pool.line.turn(ask.want, 0.0)
        except PoolError:
            return
        lease = pool.begin(node, image=image, ttl=pool.options.ttl, spare=True)
        try:
            pool.book.opened(lease, await pool.create(lease, api.CREATE, ask.box, ask.want.kind))
        except InfraError:
            self.remove(lease)

    async def _renew(self, lease: Lease) -> None:
        with contextlib.suppress(api.NodeError):
            await lease.node.post(api.RENEW, {"leases": {lease.id: lease.row.ttl}})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
