"""The pool: grants leases on the boxes of many nodes, and sees to it that none leaks.

    client --HTTP--> pool_server --> Pool --NodeApi--> nodes
                                      |--> WaitingLine (who is next), choose (which node)
                                      |--> LeaseBook (memory and journal)
                                      `--> Caretaker (looks at nodes, ends what is over)

A lease lives as long as its box, and the node holds the clock: any use of the box there begins a new term.
The pool learns of it when it looks. Every attempt to make a box is a lease of its own, so that what an
unsuccessful one may have left behind is removed before its slot is given away.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from patchwright.fleet import api
from patchwright.fleet.choose import Want, after_failure, after_success
from patchwright.fleet.journal import Journal
from patchwright.fleet.lease_book import Lease, LeaseBook
from patchwright.fleet.link import Streamed
from patchwright.fleet.node_reply import Reply
from patchwright.fleet.pool_api import AllocateRequest, ForkRequest, PoolError
from patchwright.fleet.pool_care import Caretaker
from patchwright.fleet.pool_node import NodeApi, PoolNode
from patchwright.fleet.waiting import WaitingLine

__all__ = ["Pool", "PoolOptions"]

_CREATES = 3
"""Nodes that are asked to make one box before its request fails."""
_CREATE_SECONDS = 120.0
_CLOSE_SECONDS = 10.0
"""How long a request to close waits for the node; the removal goes on behind it."""
_GRACE = 60.0
"""Seconds that a node has beyond a command's own limit to answer."""
_BUSY_STATUS = 503


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """How a pool behaves. Example: `PoolOptions(max_per_node=32, ttl=60)`"""

    max_per_node: int = 16
    """Most boxes on one node."""
    ttl: float = 300.0
    """Seconds an unused lease lives when its request names no term."""
    max_waiting: int = 10_000
    """Most requests in the queue."""
    look_seconds: float = 3.0
    """Seconds between two looks at a node."""
    warm: Mapping[str, int] = field(default_factory=dict)
    """Image -> boxes kept ready for requests that want nothing else."""


@dataclass(eq=False)
class _Request:
    """An allocation or a fork on its way."""

    path: str
    box: dict[str, Any]
    want: Want
    ttl: float
    deadline: float
    """Of the waiting (event loop time)."""
    key: str
    only: str = ""
    """The node it must be at."""
    watchers: int = 0
    """Clients that wait for the answer."""
    queued: bool = True


class Pool:
    """Leases on the boxes of nodes. `start` it before use and `close` it in the same event loop.

    Example::

        pool = Pool(["http://10.0.0.5:5000"], lambda url: NodeClient(url, token), Journal(file))
        await pool.start()
        lease = await pool.allocate(AllocateRequest(image="host"))
        reply = await pool.forward(lease["lease_id"], api.EXEC, {"command": "git status"})
    """

    def __init__(
        self,
        urls: list[str],
        connect: Callable[[str], NodeApi],
        journal: Journal,
        options: PoolOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or PoolOptions()
        self.nodes: dict[str, PoolNode] = {}
        self.counts: Counter[str] = Counter()
        self.book = LeaseBook(journal, clock)
        self.line = WaitingLine(self.nodes, clock, self.options.max_waiting)
        self._connect = connect
        self._asked: dict[str, tuple[_Request, asyncio.Task[Lease]]] = {}
        self._care = Caretaker(self)
        for url in dict.fromkeys([*urls, *journal.nodes()]):
            self.join(url.rstrip("/"))

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the journal, look at every node, go on with what is alive and close what is not."""
        for row in list(self.book.journal.leases()):
            known = row.node in self.nodes
            node = self.nodes[row.node] if known else self.join(row.node)
            if not known:
                self._care.drain(node)
            self.book.restore(row, node)
        await self._care.start()

    async def close(self) -> None:
        """Stop. Leases stay in the journal and boxes at their nodes: the next pool goes on with them."""
        tasks = [task for _, task in self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._care.close()
        await asyncio.gather(*(node.link.close() for node in self.nodes.values()))
        self.book.journal.close()

    # --- nodes --------------------------------------------------------------------------------

    def join(self, url: str) -> PoolNode:
        """A node joins, or one that was leaving stays."""
        node = self.nodes.get(url)
        if node is None:
            node = self.nodes[url] = PoolNode(url, self.options.max_per_node, self._connect(url))
        self._care.adopt(node)
        return node

    def leave(self, url: str) -> None:
        """A node gets no more boxes, and is gone when it has none. Raises PoolError (404)."""
        if url not in self.nodes:
            raise PoolError(f"there is no node {url} here; GET /nodes names them", 404)
        self.book.journal.remove_node(url)
        self._care.drain(self.nodes[url])

    # --- leases -------------------------------------------------------------------------------

    async def allocate(self, ask: AllocateRequest, key: str = "") -> dict[str, object]:
        """A lease on a new box, on whichever node suits. The same `key` gets the same lease.

        Cancelled, it leaves the queue; a box that nobody would know of is closed. Raises PoolError.
        """
        known = self._known(key, ask.image)
        if known is not None:
            return known.answer()
        if ask.plain and ask.ttl is None:
            for spare in self._care.ready(ask.image):
                self.book.hand_over(spare, key)
                return spare.answer()
        request = self._request(ask, key, path=api.CREATE, box=ask.box, want=ask.want)
        return (await self._watch(request)).answer()

    async def fork(self, ask: ForkRequest, key: str = "") -> dict[str, object]:
        """A lease on a copy of a box, at the same node. Otherwise as `allocate`."""
        source = self.book.find(ask.lease_id)
        known = self._known(key, source.row.image)
        if known is not None:
            return known.answer()
        if source.node.state.draining:
            raise PoolError(f"node {source.node.url} is leaving and takes no more boxes", _BUSY_STATUS)
        self.book.used(source)
        box = {"container_id": source.row.container_id}
        want, only = Want(source.row.image, f"fork of {source.id}"), source.node.url
        request = self._request(ask, key, path=api.FORK, box=box, want=want, only=only)
        return (await self._watch(request)).answer()

    async def forward(
        self, lease_id: str, path: str, fields: Mapping[str, Any], *, key: str = "", timeout: float = 180.0
    ) -> Reply:
        """Do something in a lease's box, once; the node's answer as it came. Raises PoolError."""
        lease = self.book.find(lease_id)
        body, key = _in_box(lease, fields), key or _new_key()
        return await self._at_node(lease, "POST", path, body=body, key=key, timeout=timeout + _GRACE)

    @asynccontextmanager
    async def stream(
        self, lease_id: str, fields: Mapping[str, Any], *, key: str = "", timeout: float = 180.0
    ) -> AsyncIterator[Streamed]:
        """Run a command in a lease's box; the node's answer as it comes. Raises PoolError.

        When the node is lost on the way `chunks` raises Lost: whoever asks again with the same key finds the
        command where it is by then.
        """
        lease = self.book.find(lease_id)
        async with AsyncExitStack() as stack:
            try:
                asked = lease.node.link.stream(
                    api.STREAM, _in_box(lease, fields), key=key or _new_key(), timeout=timeout + _GRACE
                )
                streamed = await stack.enter_async_context(asked)
            except api.NodeError as error:
                raise _unreachable(lease, error) from None
            self._note(lease, streamed.status)
            yield streamed

    async def file(self, lease_id: str, path: str, content: bytes | None = None, mode: str = "644") -> Reply:
        """Read a file of a lease's box, or write `content` to it. Raises PoolError."""
        lease = self.book.find(lease_id)
        params = {"container_id": lease.row.container_id, "path": path}
        if content is None:
            return await self._at_node(lease, "GET", api.FILE, params=params)
        headers = {api.FILE_MODE: mode}
        return await self._at_node(lease, "PUT", api.FILE, params=params, headers=headers, body=content)

    async def heartbeat(self, lease_id: str) -> None:
        """A new term for a lease. Raises PoolError: it is over, or its node does not answer."""
        lease = self.book.find(lease_id)
        body = json.dumps({"leases": {lease_id: lease.row.ttl}}).encode()
        reply = await self._at_node(lease, "POST", api.RENEW, body=body)
        if lease_id in json.loads(reply.body)["unknown"]:
            self._lost(lease)

    async def end(self, lease_id: str) -> bool:
        """Close a lease. Nobody can use it from now on; True once its box is gone too, which goes on behind
        a node that does not answer. Raises PoolError (404) for an id that was never given."""
        try:
            lease = self.book.find(lease_id)
        except PoolError as error:
            if error.status != 410:
                raise
            return lease_id not in self.book
        removal = self._care.remove(lease)
        await asyncio.wait([removal], timeout=_CLOSE_SECONDS)
        return lease_id not in self.book

    # --- making a box -------------------------------------------------------------------------

    def _request(
        self, ask: AllocateRequest | ForkRequest, key: str, *, path: str, box: dict[str, Any], want: Want,
        only: str = "",
    ) -> _Request:  # fmt: skip
        deadline = asyncio.get_running_loop().time() + ask.wait
        ttl = ask.ttl or self.options.ttl
        return _Request(path=path, box=box, want=want, ttl=ttl, deadline=deadline, key=key, only=only)

    def _known(self, key: str, image: str) -> Lease | None:
        lease = self.book.by_key(key)
        if lease is not None and lease.row.image != image:
            other = lease.row.image
            raise PoolError(f"the idempotency key was used for a box of {other!r}; take another", 409)
        return lease

    async def _watch(self, request: _Request) -> Lease:
        """Wait for a request, or join one with the same key; the last to leave takes it out of the queue."""
        name = request.key or str(id(request))
        if name not in self._asked:
            task = asyncio.create_task(self._serve(request))
            self._asked[name] = request, task
            task.add_done_callback(lambda _: self._asked.pop(name, None))
        request, task = self._asked[name]
        request.watchers += 1
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if request.watchers == 1 and request.queued:
                task.cancel()
            raise
        finally:
            request.watchers -= 1

    async def _serve(self, request: _Request) -> Lease:
        """A slot, then a box; on another node when one cannot make it or has no such image."""
        loop, tried = asyncio.get_running_loop(), dict[str, PoolError]()
        while True:
            left = request.deadline - loop.time()
            request.queued = True
            node = await self.line.turn(request.want, left, only=request.only, avoid=frozenset(tried))
            request.queued = False
            lease = self.begin(node, image=request.want.image, ttl=request.ttl, key=request.key)
            try:
                await self._make(lease, request)
                break
            except PoolError as error:
                tried[node.url] = error
                if request.only or not self._others(tried):
                    raise max(tried.values(), key=lambda one: one.status) from None  # a fault tells more
        self.counts["leases"] += 1
        if not request.watchers and not request.key:
            self._care.remove(lease)
        return lease

    def _others(self, tried: Collection[str]) -> bool:
        """Whether it makes sense to ask one more node."""
        states = [node.state for node in self.nodes.values() if node.url not in tried]
        return len(tried) < _CREATES and any(x.healthy and not x.draining for x in states)

    def begin(self, node: PoolNode, *, image: str, ttl: float, key: str = "", spare: bool = False) -> Lease:
        """A new lease on a slot that was reserved; the slot is free again when it cannot be written down."""
        try:
            return self.book.begin(node, image=image, ttl=ttl, key=key, spare=spare)
        except BaseException:
            node.made()
            node.release()
            raise

    async def _make(self, lease: Lease, request: _Request) -> None:
        try:
            container = await self.create(lease, request.path, request.box, request.want.kind)
            self.book.opened(lease, container)
        except BaseException as error:
            self._care.remove(lease)
            self.counts["create_failures"] += isinstance(error, PoolError) and error.status >= 500
            raise

    async def create(self, lease: Lease, path: str, box: Mapping[str, Any], kind: str) -> str:
        """Have the node make the box of a new lease: its container id. Raises PoolError."""
        node, row = lease.node, lease.row
        owner = {"lease_id": row.lease_id, "lease_token": row.token, "fence": row.fence, "ttl": row.ttl}
        try:
            fields, patience = {**box, **owner}, _CREATE_SECONDS + _GRACE
            reply = await node.make(path, fields, key=row.lease_id, timeout=patience)
            container = str(_content(reply)["container_id"])
        except (api.NodeError, PoolError, ValueError, KeyError, TypeError) as error:
            status = error.status if isinstance(error, PoolError) else 500
            if status >= 500:
                node.state = after_failure(node.state, kind, self.book.clock(), random.random())
            raise PoolError(f"node {node.url} made no box of {row.image!r}: {error}", status) from None
        finally:
            node.made()
        node.state = after_success(node.state, kind)
        return container

    # --- using a box --------------------------------------------------------------------------

    async def _at_node(
        self, lease: Lease, method: str, path: str, *, body: bytes = b"", key: str = "",
        params: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Reply:  # fmt: skip
        try:
            reply = await lease.node.link.request(
                method, path, body=body, params=params, headers=headers, key=key, timeout=timeout
            )
        except api.NodeError as error:
            raise _unreachable(lease, error) from None
        self._note(lease, reply.status)
        return reply

    def _note(self, lease: Lease, status: int) -> None:
        """What a node's answer says of the lease: in use, or over. Raises PoolError (410)."""
        if status in (404, 410):
            self._lost(lease)
        self.book.used(lease)

    def _lost(self, lease: Lease) -> None:
        """The node has no box for it any more: it is over. Always raises PoolError (410)."""
        if lease.id in self.book:
            self.counts["lost"] += 1
            self._care.remove(lease)
        raise PoolError(f"lease {lease.id} is over: its box expired or died on {lease.node.url}", 410)


def _in_box(lease: Lease, fields: Mapping[str, Any]) -> bytes:
    """The body of a request to a lease's node, in which the box has the node's name for it."""
    return json.dumps({**fields, "container_id": lease.row.container_id}).encode()


def _new_key() -> str:
    """For requests that came without: what the pool sends again must not be done again."""
    return secrets.token_hex(12)


def _unreachable(lease: Lease, error: api.NodeError) -> PoolError:
    return PoolError(f"the box of lease {lease.id} cannot be reached: {error}", 500)


def _content(reply: Reply) -> dict[str, Any]:
    """The JSON object of an answer. Raises PoolError with the node's own words, or ValueError."""
    content = json.loads(reply.body)
    if not isinstance(content, dict):
        raise ValueError("it answered with no JSON object")
    if reply.status != 200:
        refused = reply.status if reply.status in (400, 404, 409, 410, 413) else 500
        raise PoolError(str(content.get("error", f"status {reply.status}")), refused)
    return content
