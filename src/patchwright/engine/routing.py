"""Which replica a request goes to: where most of its prompt is cached, unless that one is crowded. Pure.

    cost of a replica = prompt tokens it would compute anew + CROWD * requests under way there

The cheapest takes the request. A conversation so returns to whoever answered it before, and moves when its
replica is so much busier than another that computing the prompt again is the lesser evil.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["BLOCK", "CROWD", "Router"]

BLOCK = 32
"""Tokens whose prefix is remembered as one; what lies past the last whole block counts as new."""
CROWD = 512
"""Prompt tokens that one more request under way is worth."""
_MOST = 1 << 16
"""Blocks remembered of a replica, two million tokens; the longest unused are forgotten first."""


class Router:
    """Remembers what was sent where. Names of replicas are the caller's.

    Example: `router.choose(prompt, ["a", "b"])`, then `router.begin("a", prompt)` and `router.end("a", ids)`
    """

    def __init__(self, *, most_blocks: int = _MOST) -> None:
        self._most = most_blocks
        self._known: dict[str, OrderedDict[int, None]] = {}
        self._under_way: dict[str, int] = {}
        self._sent: dict[str, int] = {}

    def under_way(self, name: str) -> int:
        """Requests begun there and not ended."""
        return self._under_way.get(name, 0)

    def cached(self, name: str, prompt: Sequence[int]) -> int:
        """Tokens at the start of a prompt that the replica has seen, in whole blocks."""
        return _seen(self._known.get(name, {}), list(_blocks(prompt)))

    def choose(self, prompt: Sequence[int], names: Iterable[str]) -> str:
        """The cheapest of `names`, of which there must be one. Among equals the one that was sent least."""
        blocks = list(_blocks(prompt))

        def cost(name: str) -> tuple[int, int]:
            anew = len(prompt) - _seen(self._known.get(name, {}), blocks)
            return anew + CROWD * self.under_way(name), self._sent.get(name, 0)

        return min(names, key=cost)

    def begin(self, name: str, prompt: Sequence[int]) -> None:
        """A request was sent: others with this prompt may share what is computed for it."""
        self._under_way[name] = self.under_way(name) + 1
        self._sent[name] = self._sent.get(name, 0) + 1
        self._remember(name, prompt)

    def end(self, name: str, ids: Sequence[int] = ()) -> None:
        """It ended; `ids` is its prompt and what was sampled, when that is known."""
        self._under_way[name] = max(0, self.under_way(name) - 1)
        self._remember(name, ids)

    def forget(self, name: str) -> None:
        """Nothing is cached there any more: it was restarted, or has new weights."""
        self._known.pop(name, None)

    def _remember(self, name: str, ids: Sequence[int]) -> None:
        known = self._known.setdefault(name, OrderedDict())
        for block in reversed(list(_blocks(ids))):  # a prefix is forgotten after what continues it
            known[block] = None
            known.move_to_end(block)
        while len(known) > self._most:
            known.popitem(last=False)


def _blocks(ids: Sequence[int]) -> Iterator[int]:
    """A number for every prefix of whole blocks. Two prefixes of one number would cost a detour, no more."""
    number = 0
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        number = hash((number, *ids[start : start + BLOCK]))
        yield number


def _seen(known: OrderedDict[int, None] | dict[int, None], blocks: Sequence[int]) -> int:
    count = 0
    for block in blocks:
        if block not in known:
            break
        count += BLOCK
    return count
