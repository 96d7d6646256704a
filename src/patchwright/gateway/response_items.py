"""Items of the OpenAI Responses format to chat messages, and a reply to items.

One reply is several items there: thinking, text, and each call. They become one message again.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from patchwright.gateway.wire import (
    BadRequest,
    ChatRequest,
    Json,
    Reply,
    calls_json,
    check_message,
    joined_text,
    plain_id,
)

__all__ = ["custom_parameters", "from_items", "to_items"]

_INPUT = "input"
"""The one parameter of a tool that takes plain text."""
_ANSWER = re.compile(r"call_.*-\d+(_\d+)?_(?=\d+\Z)", re.DOTALL)
"""What the ids have in common that `calls_json` gives to the calls of one reply."""


def from_items(items: Any) -> list[Json]:
    """The messages that an `input` is, empty if there is none. Raises BadRequest."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if items is None:
        return []
    if not isinstance(items, list):
        raise BadRequest("`input` must be a text or a list of items")
    messages: list[Json] = []
    for index, item in enumerate(items):
        _add(messages, item, f"input[{index}]")
    return messages


def custom_parameters(form: Any) -> Json:
    """A tool that takes plain text, as a function of one text; its grammar is told, not enforced."""
    about = "The input, as it stands."
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        about = f"The input, by this {form.get('syntax', '')} grammar:\n{form['definition']}"
    text = {"type": "string", "description": about}
    return {"type": "object", "properties": {_INPUT: text}, "required": [_INPUT]}


def to_items(reply: Reply, request: ChatRequest) -> list[Json]:
    """A reply's output items, in the forms that the request wants."""
    items: list[Json] = []
    if reply.reasoning:
        item: Json = {
            "type": "reasoning",
            "id": f"rs_{plain_id(reply)}",
            "summary": [],
            "status": "completed",
        }
        item["content"] = [{"type": "reasoning_text", "text": reply.reasoning}]
        items.append(item | ({"encrypted_content": _seal(reply.reasoning)} if request.sealed else {}))
    if reply.content or not reply.tool_calls:
        part = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": []}
        id = f"msg_{plain_id(reply)}"
        items.append(
            {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [part]}
        )
    for index, call in enumerate(calls_json(reply)):
        item = {"id": f"fc_{plain_id(reply)}_{index}", "status": "completed", "call_id": call["id"]}
        items.append(item | _called(call["function"], request.custom))
    return items


def _called(function: Json, custom: frozenset[str]) -> Json:
    if function["name"] not in custom:
        return {"type": "function_call", **function}
    text = _plain(function["arguments"])
    return {"type": "custom_tool_call", "name": function["name"], "input": text}


def _plain(arguments: str) -> str:
    """The text that a call of a tool for plain text has; what is of no such form is all of it."""
    try:
        made = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    only = made.get(_INPUT) if isinstance(made, dict) else None
    return only if isinstance(only, str) else arguments


def _add(messages: list[Json], item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise BadRequest(f"`{where}` must be an object")
    kind = item.get("type", "message")
    if kind == "message":
        _add_message(messages, check_message(item, where))
    elif kind == "reasoning":
        _open(messages, "content", "tool_calls", "reasoning_content")["reasoning_content"] = _thinking(item)
    elif kind == "function_call":
        call = _call(item, where)
        _asking(messages, call["id"]).setdefault("tool_calls", []).append(call)
    elif kind == "custom_tool_call":
        arguments = json.dumps({_INPUT: item.get("input")}, ensure_ascii=False)
        call = _call({**item, "arguments": arguments}, where)
        _asking(messages, call["id"]).setdefault("tool_calls", []).append(call)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        content = joined_text(item.get("output"), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": content})
    else:
        raise BadRequest(
            f"`{where}.type` must be message, reasoning, function_call, custom_tool_call or what one gave, "
            f"not {kind!r}"
        )


def _add_message(messages: list[Json], message: Json) -> None:
    if message["role"] == "assistant":
        _open(messages, "content", "tool_calls")["content"] = message["content"]
    else:
        messages.append({"role": message["role"], "content": message["content"]})


def _open(messages: list[Json], *closing: str) -> Json:
    """The assistant's message that goes on; a new one when the last is not one, or has a `closing` part."""
    last: Json = messages[-1] if messages else {"role": ""}
    if last["role"] != "assistant" or any(last.get(key) for key in closing):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    return last


def _asking(messages: list[Json], id: str) -> Json:
    """The message a call belongs to. Clients may put a result between two calls of one reply."""
    answer = _ANSWER.match(id)
    for message in reversed(messages):
        calls = message.get("tool_calls") or ()
        if answer and any(call["id"].startswith(answer[0]) for call in calls):
            return message
        if message["role"] != "tool":
            break
    return _open(messages)


def _call(item: Json, where: str) -> Json:
    name, arguments = item.get("name"), item.get("arguments", "")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise BadRequest(f"`{where}` must have a name, and arguments as JSON text")
    function = {"name": name, "arguments": arguments}
    return {"id": str(item.get("call_id", "")), "type": "function", "function": function}


def _thinking(item: Json) -> str:
    """The text of a thinking item: as it was said, sealed, or at least its summary."""
    for key in ("content", "summary"):
        parts = item.get(key)
        text = joined_text(parts, key) if parts else ""
        if text:
            return text
        if key == "content" and isinstance(item.get("encrypted_content"), str):
            return _unseal(item["encrypted_content"])
    return ""


def _seal(text: str) -> str:
    """No secret: an opaque form that clients keep byte for byte."""
    return base64.b64encode(text.encode("utf-8", "replace")).decode()


def _unseal(sealed: str) -> str:
    try:
        return base64.b64decode(sealed, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
