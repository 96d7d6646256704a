"""The leases of a pool, in memory and in its journal at once."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from patchwright.errors import StoreError
from patchwright.fleet.journal import Journal, LeaseRow, LeaseState
from patchwright.fleet.pool_api import PoolError
from patchwright.fleet.pool_node import PoolNode

__all__ = ["Lease", "LeaseBook"]

_PREFIX = "swe-lease-"


@dataclass(slots=True, eq=False)
class Lease:
    """One lease and the node its box is on."""

    row: LeaseRow
    node: PoolNode
    expires: float
    """When it is over unless it is used (clock of the pool)."""
    since: float
    """When it got into its state."""

    @property
    def id(self) -> str:
        """Its name."""
        return self.row.lease_id

    def answer(self) -> dict[str, object]:
        """What its owner is told."""
        row = self.row
        return {
            "lease_id": row.lease_id,
            "container_id": row.container_id,
            "node_url": row.node,
            "token": row.token,
            "fence": row.fence,
            "ttl": row.ttl,
        }


class LeaseBook:
    """Every lease that is not closed. What it says to others is in the journal first.

    Ids carry the pool's own mark, so that among the boxes of a node a pool knows those it once asked for.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self.journal = journal
        self.clock = clock
        self._mark = _PREFIX + str(journal.fact("mark", secrets.token_hex(3)))
        self._leases: dict[str, Lease] = {}
        self._keys: dict[str, Lease] = {}
        self._gone: list[str] = []
        """Leases that are still to be struck out of the journal."""

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, lease_id: object) -> bool:
        return lease_id in self._leases

    def all(self) -> list[Lease]:
        """The leases, oldest first; a copy, for the book may change."""
        return list(self._leases.values())

    def at(self, node: PoolNode) -> list[Lease]:
        """The leases on a node."""
        return [lease for lease in self._leases.values() if lease.node is node]

    def is_mine(self, lease_id: str) -> bool:
        """Whether this pool gave that id, in this process or an earlier one."""
        return lease_id.startswith(self._mark)

    def restore(self, row: LeaseRow, node: PoolNode) -> Lease:
        """A lease read from the journal gets a new term."""
        node.occupy()
        return self._enter(row, node)

    def begin(self, node: PoolNode, *, image: str, ttl: float, key: str = "", spare: bool = False) -> Lease:
        """A new lease on a slot that was reserved, before its box is asked for."""
        row = LeaseRow(
            lease_id=self._mark + secrets.token_hex(5),
            node=node.url,
            image=image,
            token=secrets.token_urlsafe(24),
            fence=self.journal.next_fence(),
            ttl=ttl,
            key=key,
            spare=spare,
        )
        self.journal.put(row)
        return self._enter(row, node)

    def opened(self, lease: Lease, container_id: str) -> None:
        """Its box is there."""
        self._write(lease, replace(lease.row, state=LeaseState.OPEN, container_id=container_id))

    def hand_over(self, lease: Lease, key: str) -> None:
        """A spare lease gets an owner."""
        self._write(lease, replace(lease.row, spare=False, key=key))

    def closing(self, lease: Lease) -> None:
        """Nobody may use it any more; its box is to be removed.

        A journal that cannot be written does not matter here: the next pool finds no box and closes it too.
        """
        with contextlib.suppress(StoreError):
            self.journal.put(replace(lease.row, state=LeaseState.CLOSING))
        self._change(lease, replace(lease.row, state=LeaseState.CLOSING))

    def gone(self, lease: Lease) -> None:
        """Its box is known to be gone: the slot is free. Saying it twice is allowed."""
        if lease.id not in self._leases:
            return
        self._forget_key(lease)
        del self._leases[lease.id]
        lease.node.release()
        self._gone.append(lease.id)
        with contextlib.suppress(StoreError):  # the next one takes it along
            while self._gone:
                self.journal.remove(self._gone[-1])
                self._gone.pop()

    def used(self, lease: Lease) -> None:
        """It was used: a new term begins."""
        lease.expires = self.clock() + lease.row.ttl

    def find(self, lease_id: str) -> Lease:
        """The open lease of that id. Raises PoolError: 404 never given, 410 over."""
        lease = self._leases.get(lease_id)
        if lease is not None and lease.row.state is LeaseState.OPEN and not lease.row.spare:
            return lease
        if lease is None and not self.is_mine(lease_id):
            raise PoolError(f"there is no lease {lease_id[:80]!r} here; allocate one", 404)
        raise PoolError(f"lease {lease_id} is over: closed, expired, or its box died; allocate another", 410)

    def by_key(self, key: str) -> Lease | None:
        """The open lease that was asked for with that idempotency key."""
        return self._keys.get(key) if key else None

    def spares(self, image: str) -> list[Lease]:
        """Warm boxes of an image, ready or being made."""
        over = LeaseState.CLOSING
        rows = ((x, x.row) for x in self._leases.values())
        return [x for x, row in rows if row.spare and row.image == image and row.state is not over]

    def _enter(self, row: LeaseRow, node: PoolNode) -> Lease:
        now = self.clock()
        lease = Lease(row, node, now + row.ttl, now)
        self._leases[row.lease_id] = lease
        self._remember_key(lease)
        return lease

    def _write(self, lease: Lease, row: LeaseRow) -> None:
        self.journal.put(row)
        self._change(lease, row)

    def _change(self, lease: Lease, row: LeaseRow) -> None:
        self._forget_key(lease)
        lease.row, lease.since = row, self.clock()
        self.used(lease)
        self._remember_key(lease)

    def _remember_key(self, lease: Lease) -> None:
        if lease.row.key and lease.row.state is LeaseState.OPEN:
            self._keys[lease.row.key] = lease

    def _forget_key(self, lease: Lease) -> None:
        if self._keys.get(lease.row.key) is lease:
            del self._keys[lease.row.key]
