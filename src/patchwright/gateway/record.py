"""What one session said: turns as sampled, and the ids of the next prompt.

A request continues the recorded turn whose messages it extends: the ids sampled there stay as they are and
only what is new is rendered. A request that continues nothing starts a chain. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from patchwright.gateway.book import Book, CallIds
from patchwright.gateway.drift import FORM_ONLY, Drift
from patchwright.gateway.history import History, Match, Policy
from patchwright.render import Renderer, ToolCall
from patchwright.types import Completion, Turn

__all__ = ["Ahead", "Record"]

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ahead:
    """Where a request goes on. Example: `Ahead(match=match, parent=3, prompt=[...], new=620)`"""

    match: Match
    messages: list[Json]
    parent: int | None
    """The turn whose ids begin the prompt, or None for a new chain."""
    prompt: list[int]
    """All ids the engine is to see."""
    new: int
    """How many of them, at the end, the parent does not have."""


class Record:
    """The conversation trees of one session."""

    def __init__(
        self,
        renderer: Renderer,
        *,
        history: Policy = "splice",
        on_turn: Callable[[Turn], None] | None = None,
    ) -> None:
        self._renderer = renderer
        self._history = History(history)
        self._book = Book(on_turn)
        self._ids = CallIds()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """See `Book.turns`."""
        return self._book.turns

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """See `Book.messages`."""
        return self._book.messages

    def ahead(self, messages: list[Json], tools: Sequence[Json] | None) -> Ahead:
        """The prompt of a request. Raises AgentError when the chat template refuses the conversation."""
        match = self._history.match(messages, tools)
        if match.turn is not None:
            prompt, reply = self._ids_before(match.turn), self._book[match.turn].completion_ids
            new = self._renderer.extend(prompt, reply, self._native(messages[match.known :]), tools)
            if new is not None:
                prompt += reply
                prompt += new
                return Ahead(match=match, messages=messages, parent=match.turn, prompt=prompt, new=len(new))
            if FORM_ONLY.issuperset(match.drift):
                match = replace(match, drift=(*match.drift, Drift.RERENDERED))
        prompt = self._renderer.render(self._native(messages), tools)
        return Ahead(match=match, messages=messages, parent=None, prompt=prompt, new=len(prompt))

    def alone(self, prompt: list[int]) -> Ahead:
        """The place of a prompt that is no conversation: a chain of its own."""
        messages: list[Json] = [{"role": "prompt", "content": self._renderer.decode(prompt)}]
        match = self._history.match(messages, None)
        return Ahead(match=match, messages=messages, parent=None, prompt=list(prompt), new=len(prompt))

    def add(
        self,
        ahead: Ahead,
        completion: Completion,
        message: Json,
        calls: Sequence[ToolCall],
        started: float,
    ) -> Turn:
        """Record what was sampled: `message` as the agent gets it, its `calls` as the model made them."""
        turn = Turn(
            id=len(self._book),
            parent=ahead.parent,
            prompt_ids=tuple(ahead.prompt[len(ahead.prompt) - ahead.new :]),
            completion_ids=completion.token_ids,
            logprobs=completion.logprobs,
            version=completion.version,
            versions=completion.versions,
            finish=completion.finish,
            text=self._renderer.decode(completion.token_ids),
            drift=ahead.match.drift,
            started=started,
            seconds=time.time() - started,
        )
        self._ids.learn(message, calls)
        self._history.record(ahead.match, message, turn.id)
        size = len(turn.prompt_ids) + len(turn.completion_ids)
        self._book.add(turn, kind=ahead.match.kind, size=size, messages=[*ahead.messages, message])
        return turn

    def _ids_before(self, turn: int) -> list[int]:
        """The whole prompt of a turn: its chain's ids, less its own completion."""
        chain, at = [turn], self._book[turn].parent
        while at is not None:
            chain.append(at)
            at = self._book[at].parent
        ids: list[int] = []
        for at in reversed(chain[1:]):
            ids += self._book[at].prompt_ids
            ids += self._book[at].completion_ids
        ids += self._book[turn].prompt_ids
        return ids

    def _native(self, messages: Sequence[Json]) -> list[Json]:
        """Messages as chat formats want them: calls under the ids the model gave them, results with the name
        of their tool (some formats write one or the other; agents send back the gateway's ids, and no names).
        """
        names = {
            call["id"]: call["function"]["name"]
            for message in messages
            for call in message.get("tool_calls") or ()
            if isinstance(call.get("id"), str)
        }
        return [self._native_message(message, names) for message in messages]

    def _native_message(self, message: Json, names: Mapping[str, str]) -> Json:
        if message["role"] != "tool":
            return self._ids.native(message)
        id = message.get("tool_call_id")
        known = self._ids.get(id)
        name = known.name if known else names.get(str(id))
        named = {} if name is None or message.get("name") else {"name": name}
        return self._ids.native(message | named)
