"""Which recorded turn a request continues, and how it departs from the record.

Every conversation is a path in a tree: the digest of its messages, one after the other. A request continues
the deepest recorded turn whose request and reply begin its messages.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from patchwright.gateway.drift import Drift, call_ids, canonical, exact, reply_drift

__all__ = ["History", "Match", "Policy"]

Json = Mapping[str, Any]

Policy = Literal["splice", "fork"]
"""What becomes of a reply that an agent sends back changed in form only: the model keeps what it sampled, or
sees the agent's version in a chain of its own."""

_RECENT = 2
"""Requests whose digests are kept: an agent and a side call may take turns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """Where a conversation goes on. Example: `Match(turn=3, known=7, kind=b"...", drift=("whitespace",))`"""

    turn: int | None
    """The turn it continues, or None when it starts a chain."""
    known: int
    """Messages up to and including that turn's reply."""
    kind: bytes
    """Digest of the tools and the system prompt: the same for all requests of one conversation."""
    drift: tuple[Drift, ...]
    """How it departs from the record."""
    length: int
    """Messages of the request."""
    ends: tuple[bytes, ...]
    """Digests of the whole conversation: `History.record` takes them back."""
    continues: int | None
    """The turn it continues when forms do not count."""


class History:
    """Conversations seen in one session. Keeps two digests and the reply per turn, and the last requests."""

    def __init__(self, policy: Policy = "splice") -> None:
        self._policy = policy
        self._near = _Tree(canonical)
        self._trees: tuple[_Tree, ...] = (self._near,) if policy == "splice" else (self._near, _Tree(exact))
        self._said: list[Json] = []
        self._continued: set[int] = set()
        self._last: dict[bytes, tuple[int, int]] = {}

    def match(self, messages: list[Any], tools: Sequence[Json] | None) -> Match:
        """The deepest recorded turn that `messages` continue under the same tools.

        Messages equal to those of a recent request are replaced by these, so that a long conversation is in
        memory once.
        """
        paths = [tree.path(messages, tools) for tree in self._trees]
        near = self._find(self._near, paths[0], messages)
        turn, known = near if len(paths) == 1 else self._find(self._trees[1], paths[1], messages)
        first = 1 if messages[0]["role"] == "system" else 0
        kind = paths[0].digests[first]
        return Match(
            turn=turn,
            known=known,
            kind=kind,
            drift=tuple(dict.fromkeys(self._drift(messages, paths[0], near, kind))),
            length=len(messages),
            ends=tuple(path.digests[-1] for path in paths),
            continues=near[0],
        )

    def record(self, match: Match, reply: Json, turn: int) -> None:
        """Remember that `turn`, the next one, answered the conversation of `match` with `reply`."""
        for tree, end in zip(self._trees, match.ends, strict=True):
            tree.add(end, reply, turn)
        self._said.append(reply)
        self._last[match.kind] = (match.length, turn)
        if match.continues is not None:
            self._continued.add(match.continues)

    def _find(self, tree: _Tree, path: _Path, messages: Sequence[Json]) -> tuple[int | None, int]:
        """The deepest turn on a path, and how many messages it knows. Call ids tell twins apart."""
        for known in range(len(messages), 0, -1):
            turns = tree.replies.get(path.digests[known])
            if turns:
                ids = call_ids(messages[known - 1])
                twins = [turn for turn in turns if ids and call_ids(self._said[turn]) == ids]
                return (twins or turns)[-1], known
        return None, 0

    # --- naming ---------------------------------------------------------------------------------

    def _drift(
        self, messages: Sequence[Json], path: _Path, near: tuple[int | None, int], kind: bytes
    ) -> list[Drift]:
        turn, known = near
        found = []
        for index in range(path.shared, known):
            turns = self._near.replies.get(path.digests[index + 1])
            if turns:
                said = self._said[self._twin(turns, messages[index])]
                found += reply_drift(said, messages[index], spliced=self._policy == "splice")
        asked = next(
            (i for i in range(len(messages), known, -1) if path.digests[i] in self._near.asked), None
        )
        if asked is not None:
            return [*found, self._after_asked(messages, asked, path, kind)]
        if (turn is None and kind in self._last) or turn in self._continued:
            return [*found, self._elsewhere(messages, kind)]
        return found

    def _twin(self, turns: Sequence[int], message: Json) -> int:
        ids = call_ids(message)
        return next((turn for turn in reversed(turns) if call_ids(self._said[turn]) == ids), turns[-1])

    def _after_asked(self, messages: Sequence[Json], asked: int, path: _Path, kind: bytes) -> Drift:
        """The request repeats one that was answered; what stands where the answer should?"""
        turn = self._near.asked[path.digests[asked]]
        if asked == len(messages):
            return Drift.RESAMPLED
        if messages[asked]["role"] != "assistant":
            last = kind in self._last and turn == self._last[kind][1]
            return Drift.DROPPED_TURN if last else self._elsewhere(messages, kind)
        ids = call_ids(messages[asked])
        return Drift.REWRITTEN_CALL if ids and ids == call_ids(self._said[turn]) else Drift.EDITED_HISTORY

    def _elsewhere(self, messages: Sequence[Json], kind: bytes) -> Drift:
        """The conversation did not go on from its last request: is something missing, or changed?"""
        length, turn = self._last[kind]
        replies = [message for message in messages if message["role"] == "assistant"]
        follows = bool(replies) and canonical(replies[-1]) == canonical(self._said[turn])
        expected = length + 2 if follows else length
        return Drift.COMPACTION if len(messages) < expected else Drift.EDITED_HISTORY


@dataclass(frozen=True, slots=True)
class _Path:
    """A request in the tree."""

    digests: list[bytes]
    """Entry i is the digest of the tools and the first i messages."""
    shared: int
    """Messages that a recent request had, word for word."""


class _Tree:
    """Conversations by digest, equal as a view of their messages sees them."""

    def __init__(self, view: Callable[[Json], list[Any]]) -> None:
        self._view = view
        self._recent: deque[tuple[Sequence[Json], list[Any], list[bytes]]] = deque(maxlen=_RECENT)
        self.replies: dict[bytes, list[int]] = {}
        """Conversation with the reply -> the turns that gave it."""
        self.asked: dict[bytes, int] = {}
        """Conversation without the reply -> the last turn that answered it."""

    def path(self, messages: list[Any], tools: Sequence[Json] | None) -> _Path:
        """Only messages that no recent request had are hashed."""
        tools = tools or []
        known, digests = self._longest(messages, tools)
        shared = len(known)
        messages[:shared] = known
        for message in messages[shared:]:
            digests.append(_digest(digests[-1], self._view(message)))
        self._recent.append((tools, messages, digests))
        return _Path(digests, shared)

    def add(self, end: bytes, reply: Json, turn: int) -> None:
        """`turn` answered the conversation that ends in `end`."""
        self.replies.setdefault(_digest(end, self._view(reply)), []).append(turn)
        self.asked[end] = turn

    def _longest(self, messages: Sequence[Json], tools: Sequence[Json]) -> tuple[list[Json], list[bytes]]:
        """The longest beginning that a recent request had, and its digests."""
        best: tuple[list[Json], list[bytes]] | None = None
        for other_tools, others, digests in reversed(self._recent):
            if other_tools != tools:
                continue
            pairs = zip(messages, others, strict=False)
            shared = next((i for i, (message, other) in enumerate(pairs) if message != other), None)
            shared = min(len(messages), len(others)) if shared is None else shared
            if best is None or shared > len(best[0]):
                best = [*others[:shared]], digests[: shared + 1]
            if shared == len(others):
                break
        return best or ([], [_digest(b"", tools)])


def _digest(before: bytes, value: Any) -> bytes:
    """Digest of a JSON value after another digest."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(before + text.encode(), digest_size=16).digest()
