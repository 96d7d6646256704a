"""The queue for boxes: first come, first served, with deadlines, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from patchwright.fleet.choose import Want, choose, next_chance
from patchwright.fleet.pool_api import PoolError
from patchwright.fleet.pool_node import PoolNode

__all__ = ["WaitingLine"]

_LEAST_WAIT = 0.01


class _Waiter:
    """One request for a slot; `only` names the node it must be at, `avoid` those that have failed it."""

    __slots__ = ("avoid", "only", "turn", "want")

    def __init__(self, want: Want, only: str, avoid: frozenset[str]) -> None:
        self.want = want
        self.only = only
        self.avoid = avoid
        self.turn: asyncio.Future[PoolNode] = asyncio.get_running_loop().create_future()


class WaitingLine:
    """Gives out the slots of nodes in the order in which they were asked for.

    Somebody who waits for one certain node does not hold up those behind, but they do not get its next slot.
    Call `serve` whenever a slot or a node may have become free.
    """

    def __init__(self, nodes: Mapping[str, PoolNode], clock: Callable[[], float], limit: int) -> None:
        self._nodes = nodes
        self._clock = clock
        self._limit = limit
        self._waiting: dict[_Waiter, None] = {}
        self._alarm: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def turn(
        self, want: Want, seconds: float, *, only: str = "", avoid: frozenset[str] = frozenset()
    ) -> PoolNode:
        """Wait for a slot and reserve it. Who had a turn and was let down names the nodes to `avoid`, and
        does not wait behind the others again.

        Raises PoolError (503) when the line is full or `seconds` are over.
        """
        if len(self._waiting) >= self._limit:
            raise PoolError(f"{self._limit} requests wait for a box already; try again later", 503)
        waiter = _Waiter(want, only, avoid)
        self._waiting = {waiter: None, **self._waiting} if avoid else self._waiting
        self._waiting[waiter] = None
        self.serve()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                return await waiter.turn
        except TimeoutError:
            self._give_back(waiter)
            where = f"on node {only}" if only else "on any node"
            trouble = f"no free slot for a box of {want.image!r} {where} in time; try again later"
            raise PoolError(trouble, 503) from None
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            self._waiting.pop(waiter, None)

    def serve(self) -> None:
        """Give every slot that can be given."""
        if not self._waiting:
            return
        hopeless: set[tuple[Want, str, frozenset[str]]] = set()
        held: set[str] = set()
        for waiter in list(self._waiting) if self._room() else ():
            kind = (waiter.want, waiter.only, waiter.avoid)
            if kind in hopeless or waiter.turn.done():
                continue
            node = self._node_for(waiter, held)
            if node is None:
                hopeless.add(kind)
                held |= {waiter.only} - {""}
                continue
            node.reserve()
            waiter.turn.set_result(node)
            del self._waiting[waiter]
            if not self._room():
                break
        self._set_alarm()

    def _room(self) -> bool:
        states = (node.state for node in self._nodes.values())
        return any(state.healthy and state.busy < state.cap for state in states)

    def _node_for(self, waiter: _Waiter, held: set[str]) -> PoolNode | None:
        barred = waiter.avoid | held
        nodes = self._nodes.items()
        able = (node.state for url, node in nodes if url == waiter.only or not (waiter.only or url in barred))
        state = choose(able, waiter.want, self._clock())
        return self._nodes[state.url] if state else None

    def _give_back(self, waiter: _Waiter) -> None:
        """The slot that came just when its waiter left goes to the next."""
        if waiter.turn.done() and not waiter.turn.cancelled():
            node = waiter.turn.result()
            node.made()
            node.release()
            self.serve()

    def _set_alarm(self) -> None:
        """Serve again when the first node that is left alone may be tried."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        states = [node.state for node in self._nodes.values() if node.state.troubles]
        if not states:
            return
        wants = {waiter.want for waiter in self._waiting}
        chances = [chance for want in wants if (chance := next_chance(states, want)) is not None]
        if chances:
            delay = max(_LEAST_WAIT, min(chances) - self._clock())
            self._alarm = asyncio.get_running_loop().call_later(delay, self.serve)
