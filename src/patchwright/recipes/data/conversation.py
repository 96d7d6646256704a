"""Chat messages in one plain form, whoever wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Message", "Unfit", "plain", "spoken", "text_of"]

Message = dict[str, Any]
"""`role` and `content` (text), and where there is something in them `tool_calls`, `tool_call_id`, `name`,
`reasoning_content` and `weight`."""

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "observation": "tool",
}
"""Roles as data sets write them -> as chat templates know them."""
_CONTENT = ("content", "value", "text")
_KEPT = ("name", "tool_call_id", "reasoning_content", "weight")


class Unfit(ValueError):
    """A conversation that cannot be written in the form asked for; it is left out and counted."""


def plain(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages in plain form. Raises Unfit for what is no conversation."""
    return [_plain(message) for message in messages]


def _plain(message: Mapping[str, Any]) -> Message:
    if not isinstance(message, Mapping):
        raise Unfit(f"a message is {type(message).__name__}, not an object")
    written = message.get("role", message.get("from"))
    role = _ROLES.get(str(written).lower())
    if role is None:
        raise Unfit(f"a message has the role {written!r}")
    found: Message = {
        "role": role,
        "content": text_of(next((message[k] for k in _CONTENT if k in message), None)),
    }
    found |= {key: message[key] for key in _KEPT if message.get(key) not in (None, "")}
    calls = message.get("tool_calls")
    if calls:
        found["tool_calls"] = [_call(call) for call in calls]
    return found


def _call(call: Any) -> dict[str, Any]:
    """Arguments are JSON text, as the API has them."""
    try:
        function = call["function"]
        name, arguments = function["name"], function.get("arguments")
    except (TypeError, KeyError, AttributeError):
        raise Unfit("a tool call has no function name") from None
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": str(name), "arguments": written},
    }


def text_of(content: Any) -> str:
    """The text of a message's content: text, a list of parts of which the texts count, or nothing. What UTF-8
    cannot hold is replaced."""
    if isinstance(content, list | tuple):
        parts = [part.get("text") or "" for part in content if isinstance(part, Mapping)]
        content = "".join(str(part) for part in parts)
    return str(content or "").encode("utf-8", "replace").decode()


def spoken(messages: Sequence[Mapping[str, Any]]) -> str:
    """All that the assistant said and called: two attempts that agree in it are the same attempt."""
    said = [(m["content"], m.get("tool_calls", [])) for m in plain(messages) if m["role"] == "assistant"]
    calls = [(text, [call["function"] for call in calls]) for text, calls in said]
    return json.dumps(calls, ensure_ascii=False)
