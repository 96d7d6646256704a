"""Which recorded turn a request continues: a chain of digests over canonical messages.

Agents do not send back quite what they were sent: absent content becomes null or "", text becomes parts,
thinking is dropped, arguments are re-serialised. Canonical messages are equal across all of that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["History", "Match", "digest"]

Json = Mapping[str, Any]
_THINKING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """Where a conversation goes on. Example: `Match(turn=3, known=7, digest=b"...")`"""

    turn: int | None
    """The turn it continues, or None when it starts a chain."""
    known: int
    """Messages up to and including that turn's reply."""
    digest: bytes
    """Of the whole conversation: give it back to `History.record`."""


class History:
    """Conversations seen in one session; memory is one digest per turn and the last request."""

    def __init__(self) -> None:
        self._turns: dict[bytes, int] = {}
        self._root = b""
        self._messages: Sequence[Json] = ()
        self._digests: list[bytes] = []

    def match(self, messages: Sequence[Json], tools: Sequence[Json] | None) -> Match:
        """The latest recorded turn whose request and reply begin `messages`, under the same tools."""
        root = digest(b"", tools or [])
        digests = self._known_digests(messages, root)
        for message in messages[len(digests) :]:
            digests.append(digest(digests[-1] if digests else root, _canonical(message)))
        self._root, self._messages, self._digests = root, messages, digests
        known = len(messages)
        while known and digests[known - 1] not in self._turns:
            known -= 1
        turn = self._turns[digests[known - 1]] if known else None
        return Match(turn=turn, known=known, digest=digests[-1])

    def record(self, match: Match, reply: Json, turn: int) -> None:
        """Remember that `turn` answered the conversation of `match` with `reply`."""
        self._turns[digest(match.digest, _canonical(reply))] = turn

    def _known_digests(self, messages: Sequence[Json], root: bytes) -> list[bytes]:
        """Digests of the messages shared with the last request: only new ones are hashed."""
        if root != self._root:
            return []
        shared = 0
        for message, last in zip(messages, self._messages, strict=False):
            if message != last:
                break
            shared += 1
        return self._digests[:shared]


def digest(before: bytes, value: Any) -> bytes:
    """Digest of a JSON value after another digest."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(before + text.encode(), digest_size=16).digest()


def _canonical(message: Json) -> list[Any]:
    role, content = message["role"], message.get("content") or ""
    if role != "assistant":
        return [role, content]
    calls = [_canonical_call(call["function"]) for call in message.get("tool_calls") or ()]
    return [role, _THINKING.sub("", content, count=1).strip(), calls]


def _canonical_call(function: Json) -> list[Any]:
    arguments = function.get("arguments") or "{}"
    try:
        arguments = json.loads(arguments, parse_float=_by_value)
    except (ValueError, RecursionError):
        pass
    return [function["name"], arguments]


def _by_value(text: str) -> int | float:
    """6e4 and 60000 are the same number to a client that re-serialises."""
    number = float(text)
    return int(number) if number.is_integer() else number
