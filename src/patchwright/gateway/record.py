"""What one session said: turns as sampled, and the ids of the next prompt.

A request continues the recorded turn whose messages it extends: the ids sampled there stay as they are and
only what is new is rendered. A request that continues nothing starts a chain. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from patchwright.gateway.drift import FORM_ONLY, Drift, call_ids
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
        self._on_turn = on_turn
        self._history = History(history)
        self._turns: list[Turn] = []
        self._kinds: list[bytes] = []
        self._calls: dict[str, ToolCall] = {}
        self._conversations: dict[bytes, list[Json]] = {}

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every call recorded so far.

        Calls whose tools or system prompt are not those of the main conversation (titles, summaries) have
        `train=False`; the main conversation is the one with the most tokens.
        """
        main = self._main()
        pairs = zip(self._turns, self._kinds, strict=True)
        return tuple(turn if kind == main else _aside(turn) for turn, kind in pairs)

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The main conversation as the agent last sent it, and the reply."""
        return tuple(self._conversations.get(self._main(), ()))

    def _main(self) -> bytes:
        tokens: dict[bytes, int] = defaultdict(int)
        for turn, kind in zip(self._turns, self._kinds, strict=True):
            tokens[kind] += len(turn.prompt_ids) + len(turn.completion_ids)
        return max(tokens, key=lambda kind: tokens[kind], default=b"")

    def ahead(self, messages: list[Json], tools: Sequence[Json] | None) -> Ahead:
        """The prompt of a request. Raises AgentError when the chat template refuses the conversation."""
        match = self._history.match(messages, tools)
        if match.turn is not None:
            prompt, reply = self._ids_before(match.turn), self._turns[match.turn].completion_ids
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
            id=len(self._turns),
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
        self._calls.update(zip(call_ids(message), calls, strict=True))
        self._history.record(ahead.match, message, turn.id)
        self._turns.append(turn)
        self._kinds.append(ahead.match.kind)
        self._conversations[ahead.match.kind] = [*ahead.messages, message]
        if self._on_turn is not None:
            self._on_turn(turn)
        return turn

    def _ids_before(self, turn: int) -> list[int]:
        """The whole prompt of a turn: its chain's ids, less its own completion."""
        chain, at = [turn], self._turns[turn].parent
        while at is not None:
            chain.append(at)
            at = self._turns[at].parent
        ids: list[int] = []
        for at in reversed(chain[1:]):
            ids += self._turns[at].prompt_ids
            ids += self._turns[at].completion_ids
        ids += self._turns[turn].prompt_ids
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
        if message.get("tool_calls"):
            calls = [call | {"id": self._native_id(call.get("id"))} for call in message["tool_calls"]]
            return message | {"tool_calls": calls}
        if message["role"] != "tool":
            return message
        id = message.get("tool_call_id")
        known = self._calls.get(id) if isinstance(id, str) else None
        name = known.name if known else names.get(str(id))
        named = {} if name is None or message.get("name") else {"name": name}
        return message | named | {"tool_call_id": self._native_id(id)}

    def _native_id(self, id: Any) -> Any:
        known = self._calls.get(id) if isinstance(id, str) else None
        return known.id or id if known else id


def _aside(turn: Turn) -> Turn:
    return replace(turn, train=False, drift=(*turn.drift, Drift.SIDE_CALL))
