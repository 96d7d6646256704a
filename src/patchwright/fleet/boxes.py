"""The boxes of one node: which there are, which there were, and which token opens which."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import math
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from patchwright.fleet.answers import Answers
from patchwright.fleet.api import NodeError
from patchwright.sandbox.base import Sandbox

__all__ = ["Boxes", "NodeBox", "digest"]

HungUp = Callable[[], Awaitable[bool]]
"""Whether the client of a request in progress is gone."""

_REMEMBERED = 100_000
"""Closed boxes a node can tell from boxes that never were."""


@dataclass(eq=False, kw_only=True, slots=True)
class NodeBox:
    """An open box and who may use it until when."""

    sandbox: Sandbox
    image: str
    lease_id: str = ""
    owner: bytes = b""
    """Digest of the lease's token; empty: only the node's own token opens the box."""
    ttl: float = math.inf
    """Seconds without use after which the box is closed."""
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    created: float = field(default_factory=time.time)
    answers: Answers = field(default_factory=Answers)
    used: float = 0.0
    """When it was last used, by the monotonic clock."""
    deadline: float = math.inf
    """When it may be closed, by the monotonic clock."""
    clients: list[HungUp] = field(default_factory=list)
    """Requests in progress."""
    closing: asyncio.Task[None] | None = None
    """Its end, from the first try on; nobody gets in any more."""

    @property
    def lingers(self) -> bool:
        """Whether the last try to end it failed."""
        closing = self.closing
        return closing is not None and closing.done() and (closing.cancelled() or bool(closing.exception()))

    @property
    def name(self) -> str:
        """As the exec server this stands in for called its containers."""
        return f"swe-{self.id[:12]}"

    def touch(self, ttl: float | None = None) -> None:
        """The box is in use: its time begins anew, with another `ttl` if one is given."""
        self.ttl = self.ttl if ttl is None else ttl
        self.used = time.monotonic()
        self.deadline = self.used + self.ttl

    @contextlib.contextmanager
    def in_use(self, hung_up: HungUp) -> Iterator[None]:
        """A request in progress keeps its box for as long as its client is there."""
        self.touch()
        self.clients.append(hung_up)
        try:
            yield
        finally:
            self.clients.remove(hung_up)
            self.touch()

    async def abandoned(self) -> bool:
        """Whether no request in progress has a client any more."""
        for hung_up in tuple(self.clients):
            if not await hung_up():
                return False
        return True


class Boxes:
    """Open boxes by id, the ids of closed ones, and the leases' tokens. A box is here until it is gone."""

    def __init__(self) -> None:
        self.open: dict[str, NodeBox] = {}
        self._owners: OrderedDict[str, bytes] = OrderedDict()
        """Every box there was -> digest of its lease's token."""
        self._tokens: Counter[bytes] = Counter()

    def add(self, box: NodeBox) -> None:
        """From now on the box can be found, and its token is known."""
        self.open[box.id] = box
        self._owners[box.id] = box.owner
        self._tokens[box.owner] += 1
        if len(self._owners) > _REMEMBERED:
            self._forget()

    def remove(self, box: NodeBox) -> None:
        """The box is gone; its id stays known as one that was here."""
        self.open.pop(box.id, None)

    def find(self, id: str) -> NodeBox:
        """An open box. Raises NodeError: 410 for one that was, 404 for one that never was."""
        box = self.open.get(id)
        if box is None:
            self.check_known(id)
        if box is None or box.closing is not None:
            raise NodeError(f"container {id} is closed", 410)
        return box

    def check_known(self, id: str) -> None:
        """Raises NodeError (404) for a box that this node never made."""
        if id not in self._owners:
            raise NodeError(f"there is no container {id[:80]!r} of this node", 404)

    def of_lease(self, lease_id: str) -> list[NodeBox]:
        """The open boxes of a lease."""
        return [box for box in self.open.values() if box.lease_id == lease_id]

    def knows_token(self, token: str) -> bool:
        """Whether it is the token of a lease that has, or had, a box here."""
        return bool(token) and digest(token) in self._tokens

    def check_owner(self, id: str, token: str) -> None:
        """Raises NodeError (403) when the box is not one that this lease's token opens."""
        owner = self._owners.get(id)
        if owner is not None and not (owner and hmac.compare_digest(owner, digest(token))):
            raise NodeError(f"container {id} belongs to another lease", 403)

    def _forget(self) -> None:
        id, owner = next((id, owner) for id, owner in self._owners.items() if id not in self.open)
        del self._owners[id]
        self._tokens[owner] -= 1
        if not self._tokens[owner]:
            del self._tokens[owner]


def digest(token: str) -> bytes:
    """What is kept of a lease's token; looking it up tells nothing about the token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest() if token else b""
