"""The turns of one session and the conversations they are of. Knows neither tokens nor HTTP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from patchwright.gateway.drift import Drift, call_ids
from patchwright.render import ToolCall
from patchwright.types import Turn

__all__ = ["Book", "CallIds"]

Json = dict[str, Any]


class Book:
    """Every call in order; `book[3]` is turn 3. Its kind is the digest of its tools and system prompt."""

    def __init__(self, on_turn: Callable[[Turn], None] | None = None) -> None:
        self._on_turn = on_turn
        self._turns: list[Turn] = []
        self._kinds: list[bytes] = []
        self._sizes: dict[bytes, int] = defaultdict(int)
        self._conversations: dict[bytes, list[Json]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __getitem__(self, turn: int) -> Turn:
        return self._turns[turn]

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every call recorded so far.

        Calls whose tools or system prompt are not those of the main conversation (titles, summaries) have
        `train=False`; the main conversation is the largest one.
        """
        main = self._main()
        pairs = zip(self._turns, self._kinds, strict=True)
        return tuple(turn if kind == main else _aside(turn) for turn, kind in pairs)

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The main conversation as the agent last sent it, and the reply."""
        return tuple(self._conversations.get(self._main(), ()))

    def add(self, turn: Turn, *, kind: bytes, size: int, messages: list[Json]) -> None:
        """Keep a turn, how much there is of it, and its conversation with the reply."""
        self._turns.append(turn)
        self._kinds.append(kind)
        self._sizes[kind] += size
        self._conversations[kind] = messages
        if self._on_turn is not None:
            self._on_turn(turn)

    def _main(self) -> bytes:
        return max(self._sizes, key=lambda kind: self._sizes[kind], default=b"")


class CallIds:
    """The ids of tool calls: agents are given ids of the gateway's, the model sees those it gave."""

    def __init__(self) -> None:
        self._calls: dict[str, ToolCall] = {}

    def learn(self, message: Json, calls: Sequence[ToolCall]) -> None:
        """Remember the `calls` of a reply, as the model made them, by their ids in its `message`."""
        self._calls.update(zip(call_ids(message), calls, strict=True))

    def get(self, id: Any) -> ToolCall | None:
        """The call that an agent knows by this id."""
        return self._calls.get(id) if isinstance(id, str) else None

    def native(self, message: Json) -> Json:
        """A message with the model's ids."""
        if message.get("tool_calls"):
            calls = [call | {"id": self._native(call.get("id"))} for call in message["tool_calls"]]
            return message | {"tool_calls": calls}
        if message["role"] != "tool":
            return message
        return message | {"tool_call_id": self._native(message.get("tool_call_id"))}

    def _native(self, id: Any) -> Any:
        known = self.get(id)
        return known.id or id if known else id


def _aside(turn: Turn) -> Turn:
    return replace(turn, train=False, drift=(*turn.drift, Drift.SIDE_CALL))
