"""Rows that begin alike -> a forest in which every shared prefix stands once. No torch; serves `batch`.

Rows in lexicographic order are a depth-first walk of their prefix tree: each adds the tokens after what it
shares with its neighbour. The walk is stored as it comes, with one number per token, `ends`: token i may see
token j exactly if `j <= i < ends[j]`, that is, if j is i itself or one of its ancestors. Whatever rows are
laid behind each other this way (of one tree, of several, of none), no token sees anything but its own past.

    rows    a b c d     ids     a b c d x y     ends    6 6 4 4 6 6
            a b x y     depth   0 1 2 3 2 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from patchwright.types import Sample

__all__ = ["WORTH", "Forest", "Segment", "forest_size", "shared", "shared_parts"]

WORTH = 0.9
"""Rows stay a padded batch when a forest would still compute more than this share of what they do: the plain
causal kernel is the fastest there is."""

Range = tuple[int, int]
"""First and one past the last place in a forest."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens each of which follows the one before it.

    Example: `Segment(4, 6, ((0, 2),))` is `x y` above: it sees `a b` and itself.
    """

    start: int
    stop: int
    past: tuple[Range, ...]
    """Where the tokens before it are, in their order."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Rows laid out with every shared prefix once.

    Example: `Forest.of([(1, 2, 3), (1, 2, 4)]).token_ids == (1, 2, 3, 4)`
    """

    token_ids: tuple[int, ...]
    depths: tuple[int, ...]
    """How many tokens come before each in its row: its position."""
    ends: tuple[int, ...]
    """One past the last descendant of each token."""
    segments: tuple[Segment, ...]
    places: tuple[tuple[int, ...], ...]
    """Per row, where each of its tokens is."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def of(cls, rows: Sequence[tuple[int, ...]]) -> Forest:
        """The forest of rows of token ids, in any order."""
        walk = _Walk()
        order = sorted(range(len(rows)), key=rows.__getitem__)
        places = {index: walk.add(rows[index]) for index in order}
        walk.back_to(0)
        return cls(
            token_ids=tuple(walk.ids),
            depths=tuple(walk.depths),
            ends=tuple(walk.ends),
            segments=tuple(walk.segments),
            places=tuple(places[index] for index in range(len(rows))),
        )


class _Walk:
    """The forest while rows are added in order."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.depths: list[int] = []
        self.ends: list[int] = []
        self.segments: list[Segment] = []
        self._row: tuple[int, ...] = ()
        self._path: list[int] = []

    def add(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Walk to a row that is not before the last one; returns the places of its tokens."""
        common = shared(self._row, ids)
        self.back_to(common)
        start, fresh = len(self.ids), len(ids) - common
        if fresh:
            self._segment(start, start + fresh, straight=common == len(self._row))
        self.ids += ids[common:]
        self.depths += range(common, len(ids))
        self.ends += [0] * fresh
        self._path += range(start, start + fresh)
        self._row = ids
        return tuple(self._path)

    def back_to(self, depth: int) -> None:
        """Leave the subtrees of the current row's tokens from `depth` on."""
        for place in self._path[depth:]:
            self.ends[place] = len(self.ids)
        del self._path[depth:]

    def _segment(self, start: int, stop: int, *, straight: bool) -> None:
        last = self.segments[-1] if self.segments else None
        if straight and self._row and last and last.stop == start:  # goes on where the last row ended
            self.segments[-1] = Segment(last.start, stop, last.past)
        else:
            self.segments.append(Segment(start, stop, _ranges(self._path)))


def _ranges(places: Sequence[int]) -> tuple[Range, ...]:
    """Ascending places as runs."""
    breaks = [at for at in range(1, len(places)) if places[at] != places[at - 1] + 1]
    edges = [0, *breaks, len(places)]
    pairs = pairwise(edges)
    return tuple((places[first], places[last - 1] + 1) for first, last in pairs if first < last)


def shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Length of the common prefix; compares slices, which is fast, and halves."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # the first `low` are alike, the first `high` are not
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def forest_size(rows: Sequence[Sample]) -> int:
    """Tokens of the forest of rows, without making it."""
    ids = sorted(row.token_ids for row in rows)
    return sum(map(len, ids)) - sum(shared(first, second) for first, second in pairwise(ids))


def shared_parts(
    rows: Sequence[Sample], max_tokens: int
) -> tuple[list[tuple[list[Sample], int]], list[Sample]]:
    """Rows to compute as forests of at most `max_tokens` tokens, with the tokens of each, and those better
    off as they are.

    A tree that is too large is cut between rows, and its stem is computed once in each part.
    """
    parts = _parts(rows, max_tokens)
    grown = [(part, size) for part, size in parts if size <= WORTH * sum(map(len, part))]
    within = {id(row) for part, _ in grown for row in part}
    return grown, [row for row in rows if id(row) not in within]


def _parts(rows: Sequence[Sample], max_tokens: int) -> list[tuple[list[Sample], int]]:
    """Neighbours together, with the number of tokens of their forest."""
    parts: list[tuple[list[Sample], int]] = []
    last: tuple[int, ...] = ()
    for row in sorted(rows, key=lambda row: row.token_ids):
        fresh = len(row) - shared(last, row.token_ids)
        if parts and parts[-1][1] + fresh <= max_tokens:
            part, size = parts[-1]
            part.append(row)
            parts[-1] = (part, size + fresh)
        else:
            parts.append(([row], len(row)))
        last = row.token_ids
    return parts
