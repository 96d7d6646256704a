"""What of a conversation the model is shown when it grows too long: policies, chosen by `use`.

A policy sees the opening messages and the exchanges after them (a reply and what answered it) and gives the
messages of the next request. Exchanges stay whole and in order, and the newest is always there. The gateway
records every request as it was sent, so that what the model saw is what training sees.

A cut stays where it is until the budget is reached again: between two cuts requests extend each other, and
their shared prefix is computed and trained once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from patchwright.agent.chat import Message
from patchwright.config import Config, pick

__all__ = [
    "Ask",
    "Context",
    "ContextConfig",
    "Cut",
    "HeadTail",
    "Size",
    "Summarise",
    "Whole",
    "cut",
    "open_context",
    "shorten",
]

Exchange = Sequence[Message]
Ask = Callable[[Sequence[Message], str], Awaitable[str]]
"""Asks the model for a summary: of the messages it is shown now (to be trained on), or of a transcript."""

_SUMMARY_SHARE = 0.15
"""Of the budget, what a summary may take at most."""
_OVERHEAD = 8
"""Tokens a chat template puts around a message, about."""


class ContextConfig(Config):
    """What the model is shown of a conversation that grows too long."""

    use: str = "none"
    """`none` (everything; a full context ends the attempt), `head_tail` (the first and the last exchanges),
    `window` (the last ones), `summarise` (a summary by the model, and the last ones), or `module:Class`."""
    budget: int = Field(default=12_288, ge=1)
    """Tokens a request may have before something is left out; leave room for the reply. Counted by what the
    endpoint says earlier requests had."""
    head: float = Field(default=0.3, ge=0, lt=1)
    """`head_tail`: share of the room given to the first exchanges; the last ones get the rest."""
    fill: float = Field(default=0.8, gt=0, le=1)
    """Share of the budget a cut leaves filled; what is free lets the next requests extend each other."""
    train_summary: bool = False
    """`summarise`: ask within the conversation, so that the summary is trained like any reply. Otherwise it
    is a side call with a system message of its own, which is recorded and trains nothing."""


class Size:
    """How many tokens messages have, by the ratio to characters that the endpoint's counts show."""

    def __init__(self, per_character: float = 1 / 3) -> None:
        self._per_character = per_character

    def __call__(self, *messages: Message) -> int:
        """Tokens of the messages, about."""
        return int(sum(map(_characters, messages)) * self._per_character) + _OVERHEAD * len(messages)

    def characters(self, tokens: int) -> int:
        """How long a text of so many tokens is, about."""
        return max(2, int(tokens / self._per_character))

    def learn(self, messages: Sequence[Message], tokens: object) -> None:
        """A request of these messages had so many tokens, if the endpoint says so."""
        characters = sum(map(_characters, messages))
        if isinstance(tokens, int) and tokens > 0 and characters:
            self._per_character = max(tokens - _OVERHEAD * len(messages), 1) / characters


def _characters(message: Message) -> int:
    calls = message.get("tool_calls")
    return len(message.get("content") or "") + (len(json.dumps(calls)) if calls else 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """Which exchanges are shown: the first `head`, and those from index `tail` on.

    Example: `Cut(2, 12)` leaves out ten.
    """

    head: int
    tail: int


def cut(sizes: Sequence[int], room: int, head: float) -> Cut:
    """Keep whole exchanges at both ends, at most `room` in all: `head` of it for the first, the rest for the
    last. The newest is kept however long it is."""
    if not sizes or sum(sizes) <= room:
        return Cut(len(sizes), len(sizes))
    first = _fitting(sizes[:-1], min(int(room * head), room - sizes[-1]))
    left = room - sizes[-1] - sum(sizes[:first])
    return Cut(first, len(sizes) - 1 - _fitting(sizes[-2::-1], left))


def shorten(text: str, limit: int) -> tuple[str, int]:
    """At most `limit` characters of a text, head and tail, and how many were left out of its middle."""
    omitted = len(text) - limit
    if omitted <= 0:
        return text, 0
    head = limit // 2
    return f"{text[:head]}\n[... {omitted} characters left out ...]\n{text[head + omitted :]}", omitted


def _fitting(sizes: Sequence[int], room: int) -> int:
    """How many of the sizes, from the first on, fit."""
    used = 0
    for count, size in enumerate(sizes):
        used += size
        if used > room:
            return count
    return len(sizes)


class Context(Protocol):
    """The policy of one attempt."""

    size: Size

    async def view(
        self, opening: Sequence[Message], exchanges: Sequence[Exchange], ask: Ask
    ) -> list[Message]:
        """The messages of the next request."""
        ...


class Whole:
    """`none`: everything."""

    def __init__(self, config: ContextConfig) -> None:
        self.size = Size()

    async def view(
        self, opening: Sequence[Message], exchanges: Sequence[Exchange], ask: Ask
    ) -> list[Message]:
        """All there is."""
        return [*opening, *(message for exchange in exchanges for message in exchange)]


class HeadTail:
    """`head_tail`: the first exchanges, a marker that says how many are missing, the last ones.

    The marker is the end of the message before the gap, so that roles go on taking turns.
    """

    def __init__(self, config: ContextConfig) -> None:
        self.size = Size()
        self._config = config
        self._head = config.head
        self._cut: Cut | None = None
        self._marker = ""

    async def view(
        self, opening: Sequence[Message], exchanges: Sequence[Exchange], ask: Ask
    ) -> list[Message]:
        """As much as the budget allows; what was cut before stays cut."""
        shown = self._shown(opening, exchanges)
        if self.size(*shown) > self._config.budget:
            before, self._cut = self._cut, self._new_cut(opening, exchanges)
            if self._cut != before:
                self._marker = await self._mark(shown, exchanges, before, ask)
            shown = self._shown(opening, exchanges)
        return shown

    def _new_cut(self, opening: Sequence[Message], exchanges: Sequence[Exchange]) -> Cut | None:
        filled = int(self._config.budget * self._config.fill)
        room = filled - self.size(*opening) - self._reserved()
        found = cut([self.size(*exchange) for exchange in exchanges], room, self._head)
        if self._cut is not None:  # what is gone stays gone, whatever the counts say now
            found = Cut(min(found.head, self._cut.head), max(found.tail, self._cut.tail))
        return found if found.head < found.tail else None

    def _reserved(self) -> int:
        """Tokens for the marker."""
        return self.size({"content": _gap(10_000)})

    async def _mark(
        self, shown: Sequence[Message], exchanges: Sequence[Exchange], before: Cut | None, ask: Ask
    ) -> str:
        return _gap(self._cut.tail - self._cut.head) if self._cut else ""

    def _shown(self, opening: Sequence[Message], exchanges: Sequence[Exchange]) -> list[Message]:
        if self._cut is None:
            return [*opening, *(message for exchange in exchanges for message in exchange)]
        head = [*opening, *(message for exchange in exchanges[: self._cut.head] for message in exchange)]
        if not head:
            head = [{"role": "user"}]
        last = {**head[-1], "content": f"{head[-1].get('content') or ''}\n\n{self._marker}".lstrip()}
        tail = [message for exchange in exchanges[self._cut.tail :] for message in exchange]
        return [*head[:-1], last, *tail]


class Window(HeadTail):
    """`window`: the last exchanges only."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__(config)
        self._head = 0.0


class Summarise(Window):
    """`summarise`: what was left out is summed up by the model, each summary taking in the one before."""

    def _reserved(self) -> int:
        return int(self._config.budget * _SUMMARY_SHARE)

    async def _mark(
        self, shown: Sequence[Message], exchanges: Sequence[Exchange], before: Cut | None, ask: Ask
    ) -> str:
        if self._cut is None:
            return ""
        old = exchanges[before.tail if before else 0 : self._cut.tail]
        said = [self._marker, *(_spoken(message) for exchange in old for message in exchange)]
        most = self.size.characters(self._config.budget)
        summary = await ask(shown, shorten("\n\n".join(filter(None, said)), most)[0])
        most = self.size.characters(self._reserved())
        gap = _gap(self._cut.tail)
        return f"{gap}\n<summary>\n{summary[:most]}\n</summary>" if summary.strip() else gap


def _gap(count: int) -> str:
    return f"[{count} exchange{'s' * (count != 1)} left out here to save room]"


def _spoken(message: Message) -> str:
    calls = [json.dumps(call.get("function")) for call in message.get("tool_calls") or ()]
    return f"{message['role']}:\n" + "\n".join(filter(None, [message.get("content"), *calls]))


_POLICIES: dict[str, Callable[[ContextConfig], Context] | str] = {
    "none": Whole,
    "head_tail": HeadTail,
    "window": Window,
    "summarise": Summarise,
}


def open_context(config: ContextConfig) -> Context:
    """A fresh policy for one attempt. Raises ConfigError for an unknown `use`."""
    policy: Callable[[ContextConfig], Context] = pick(config.use, _POLICIES, key="context.use")
    return policy(config)
