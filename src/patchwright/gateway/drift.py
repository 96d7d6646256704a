"""How a request can depart from what was recorded, each way by name.

Agents do not send back quite what they were sent: absent content becomes null or "", text becomes parts,
thinking is dropped, arguments are re-serialised, turns are dropped, histories are summarised. What no chat
template can see (null or "", parts or a string) is no drift; all else is, and stands in `Turn.drift`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

__all__ = ["FORM_ONLY", "Drift", "call_ids", "canonical", "exact", "reply_drift"]

Json = Mapping[str, Any]
_THINKING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


class Drift(StrEnum):
    """What a request did to the recorded history.

    The first four change a reply in form only. Spliced (`history="splice"`), such a reply stays in the
    model's context as it was sampled; forked, the model sees the agent's version in a new chain. After the
    others the model always sees what the agent sent.
    """

    RESERIALISED = "reserialised"
    """Arguments of a tool call with the same values, written differently."""
    WHITESPACE = "whitespace"
    """Blanks at the ends of a reply's text came or went."""
    REASONING_RESTORED = "reasoning_restored"
    """The agent dropped or changed the thinking; the recorded thinking stayed in the context (splice)."""
    REASONING_DROPPED = "reasoning_dropped"
    """The agent dropped, moved or changed the thinking, and so the model no longer sees its own (fork)."""
    REWRITTEN_CALL = "rewritten_call"
    """A tool call came back under its id with another name or other arguments."""
    EDITED_HISTORY = "edited_history"
    """An earlier message was changed, or the conversation went on from an earlier point."""
    DROPPED_TURN = "dropped_turn"
    """The last reply is missing from a conversation that goes on after it."""
    RESAMPLED = "resampled"
    """The same conversation was sent again, and sampled again."""
    COMPACTION = "compaction"
    """Messages were left out, or replaced by a summary."""
    SIDE_CALL = "side_call"
    """Another system prompt or other tools than the main conversation's: a title, a summary, a sub-agent."""
    RERENDERED = "rerendered"
    """The whole prompt was rendered anew, for no reason above: the agent put a reply of its own after the
    model's, or the chat format cannot go on from what was sampled."""


FORM_ONLY = frozenset(
    (Drift.RESERIALISED, Drift.WHITESPACE, Drift.REASONING_RESTORED, Drift.REASONING_DROPPED)
)
"""The message says the same, written differently."""


def reply_drift(said: Json, sent: Json, *, spliced: bool) -> list[Drift]:
    """What an agent changed in a reply that it sends back, canonically equal to what the model said."""
    found = []
    if _arguments(said) != _arguments(sent):
        found.append(Drift.RESERIALISED)
    if spliced and _thinking(said) != _thinking(sent):
        found.append(Drift.REASONING_RESTORED)
    if not spliced and _reasoning(said) != _reasoning(sent):
        found.append(Drift.REASONING_DROPPED)
    if _THINKING.sub("", said["content"], 1) != _THINKING.sub("", sent["content"], 1):
        found.append(Drift.WHITESPACE)
    return found


def call_ids(message: Json) -> list[Any]:
    """Ids of a message's tool calls: unique as the gateway issues them, so a key to the turn."""
    return [call.get("id") for call in message.get("tool_calls") or ()]


def exact(message: Json) -> list[Any]:
    """All of a message that a chat template can show the model."""
    role, content = message["role"], message.get("content") or ""
    if role != "assistant":
        return [role, content, message.get("tool_call_id")]
    return [role, content, _reasoning(message), _arguments(message)]


def canonical(message: Json) -> list[Any]:
    """A message less what agents change in form only: equal for a reply and its copy."""
    if message["role"] != "assistant":
        return exact(message)
    content = _THINKING.sub("", message.get("content") or "", 1).strip()
    return ["assistant", content, [[name, _values(text)] for name, text in _arguments(message)]]


def _thinking(message: Json) -> str:
    inline = _THINKING.match(message["content"])
    text = inline[0].strip()[len("<think>") : -len("</think>")] if inline else ""
    return (text or _reasoning(message)).strip()


def _reasoning(message: Json) -> str:
    return str(message.get("reasoning_content") or "")


def _arguments(message: Json) -> list[list[str]]:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [[function["name"], function.get("arguments") or "{}"] for function in calls]


def _values(text: str) -> str:
    """JSON in one form; what is none, or nested beyond reading, as it stands."""
    try:
        return json.dumps(json.loads(text, parse_float=_by_value), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _by_value(text: str) -> int | float:
    """6e4 and 60000 are the same number to a client that re-serialises."""
    number = float(text)
    return int(number) if number.is_integer() else number
