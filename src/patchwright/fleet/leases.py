"""The fences of one node: a grant of a lease that is over can never make a box again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from patchwright.fleet.api import NodeError

__all__ = ["Fences"]

_REMEMBERED = 100_000
"""Leases whose fences are kept."""


@dataclass(slots=True)
class _Lease:
    highest: int = -1
    """Highest fence seen."""
    closed: int = -1
    """Highest fence with which it was closed."""
    closings: int = 0


class Fences:
    """What is known of leases.

    Example: `ticket = fences.admit("a", 3)`, make the box, then `fences.confirm("a", ticket)`.
    """

    def __init__(self) -> None:
        self._leases: OrderedDict[str, _Lease] = OrderedDict()

    def admit(self, lease_id: str, fence: int | None) -> int:
        """Let a request of a lease in. Raises NodeError (409) when its grant is over.

        The ticket that is returned says which closings had been when the request came.
        """
        lease = self._lease(lease_id)
        if fence is not None:
            self._check(lease, lease_id, fence)
            if fence <= lease.closed:
                raise NodeError(
                    f"lease {lease_id} was closed with fence {lease.closed}; {fence} is over", 409
                )
            lease.highest = fence
        return lease.closings

    def confirm(self, lease_id: str, ticket: int) -> None:
        """Raises NodeError (410) when the lease was closed since its request was admitted."""
        if lease_id and self._lease(lease_id).closings != ticket:
            raise NodeError(f"lease {lease_id} was closed while its box was being made", 410)

    def close(self, lease_id: str, fence: int) -> None:
        """The grants up to `fence` are over. Raises NodeError (409) when a later one is known."""
        lease = self._lease(lease_id)
        self._check(lease, lease_id, fence)
        lease.highest = lease.closed = fence
        lease.closings += 1

    def _check(self, lease: _Lease, lease_id: str, fence: int) -> None:
        if fence < lease.highest:
            raise NodeError(f"fence {fence} of lease {lease_id} is stale: {lease.highest} is known", 409)

    def _lease(self, lease_id: str) -> _Lease:
        lease = self._leases.setdefault(lease_id, _Lease())
        self._leases.move_to_end(lease_id)
        if len(self._leases) > _REMEMBERED:
            self._leases.popitem(last=False)
        return lease
