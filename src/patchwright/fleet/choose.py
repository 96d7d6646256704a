"""Which node gets the next box: pure functions over what the pool knows of its nodes.

A node that fails to make a box is left alone for a while (doubling, with jitter), first for that kind of box
only: it may be the request's fault. Once a second kind has failed with no success in between, it is left
alone for all. When the time is up, one create is let through; if that succeeds the node is itself again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

__all__ = [
    "Backoff",
    "NodeState",
    "Want",
    "after_failure",
    "after_success",
    "choose",
    "may_take",
    "next_chance",
]

_FIRST, _LONGEST = 1.0, 60.0
"""Seconds a node is left alone after its first failure, and at most."""
_REMEMBERED = 64
"""Kinds of boxes whose failures are remembered for one node."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures in a row, and when (clock of the pool) the node may be tried again."""

    failures: int
    until: float


@dataclass(frozen=True, slots=True)
class Want:
    """A box that is wanted: `kind` tells those apart that have the same image and differ in the rest."""

    image: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What the pool knows of a node. Example: `NodeState(url="http://10.0.0.5:5000", cap=16, busy=3)`"""

    url: str
    cap: int
    """Most boxes at once."""
    busy: int = 0
    """Boxes there, counted until their removal is confirmed, and boxes being made."""
    creating: int = 0
    """Boxes being made right now."""
    healthy: bool = False
    draining: bool = False
    images: frozenset[str] = frozenset()
    troubles: Mapping[str, Backoff] = field(default_factory=dict)
    """Kind of box -> its failed creates."""
    streak: frozenset[str] = frozenset()
    """Kinds that failed since the last create that succeeded."""


def choose(nodes: Iterable[NodeState], want: Want, now: float) -> NodeState | None:
    """The node for a box, or None when none can take it now.

    Nodes that have the image first, then the least loaded share.
    """
    able = [node for node in nodes if may_take(node, want, now)]
    return min(able, key=lambda node: _preference(node, want.image), default=None)


def _preference(node: NodeState, image: str) -> tuple[bool, float, str]:
    return image not in node.images, node.busy / node.cap, node.url


def may_take(node: NodeState, want: Want, now: float) -> bool:
    """Whether a create may be sent to `node` now."""
    if not node.healthy or node.draining or node.busy >= node.cap:
        return False
    return not _on_probation(node, want.kind) or (node.creating == 0 and now >= _until(node, want.kind))


def next_chance(nodes: Iterable[NodeState], want: Want) -> float | None:
    """When the first of the nodes with room that are left alone may be tried; None when there is none."""
    left_alone = (
        _until(node, want.kind)
        for node in nodes
        if node.healthy and not node.draining and node.busy < node.cap and _on_probation(node, want.kind)
    )
    return min(left_alone, default=None)


def after_failure(node: NodeState, kind: str, now: float, jitter: float) -> NodeState:
    """`node` after a create that failed; `jitter` in [0, 1) shortens the wait to no less than half."""
    failures = (node.troubles[kind].failures if kind in node.troubles else 0) + 1
    wait = min(_LONGEST, _FIRST * 2 ** min(failures - 1, 16)) * (1 - jitter / 2)
    others = [(name, trouble) for name, trouble in node.troubles.items() if name != kind]
    troubles = dict(others[-(_REMEMBERED - 1) :])
    troubles[kind] = Backoff(failures, now + wait)
    streak = (node.streak | {kind}) & troubles.keys()
    return replace(node, troubles=troubles, streak=frozenset(streak))


def after_success(node: NodeState, kind: str) -> NodeState:
    """`node` after a create that succeeded."""
    if not node.streak and kind not in node.troubles:
        return node
    troubles = {name: trouble for name, trouble in node.troubles.items() if name != kind}
    return replace(node, troubles=troubles, streak=frozenset())


def _on_probation(node: NodeState, kind: str) -> bool:
    return kind in node.troubles or len(node.streak) > 1


def _until(node: NodeState, kind: str) -> float:
    """When the node may be tried with that kind: its own time, or the last of all that failed in a row."""
    names = node.streak | {kind} if len(node.streak) > 1 else {kind}
    return max((node.troubles[name].until for name in names if name in node.troubles), default=0.0)
