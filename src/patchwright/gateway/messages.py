"""The Anthropic Messages format, for Claude Code and Anthropic's SDKs: /v1/messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from patchwright.gateway.wire import (
    BadRequest,
    ChatRequest,
    Json,
    Recall,
    Reply,
    calls_json,
    event,
    joined_text,
    number,
    plain_id,
    read_json,
    stop_strings,
)
from patchwright.gateway.wishes import Wishes
from patchwright.types import Finish

__all__ = ["MessagesFormat"]

_SIGNATURE = "patchwright"
"""Clients want one, and send it back; nobody checks it."""
_RAW = "_raw_arguments"
"""Arguments that are no JSON object, which is all that a `tool_use` block can hold."""
_BILLING = "x-anthropic-billing-header:"
"""Claude Code begins its system prompt with a block of this, which may differ in every request (`cch=`)."""
_KINDS = {"server_error": "api_error", "server_busy": "overloaded_error"}


class MessagesFormat:
    """`/v1/messages`."""

    def parse(self, body: bytes, recall: Recall) -> ChatRequest:
        """See `Format.parse`."""
        data = read_json(body)
        return ChatRequest(
            messages=_conversation(data),
            tools=_tools(data.get("tools")),
            stream=bool(data.get("stream")),
            max_tokens=number(data, "max_tokens", int, 1),
            temperature=number(data, "temperature", float, 0),
            top_p=number(data, "top_p", float, 0),
            stop=stop_strings(data, "stop_sequences"),
            wishes=Wishes.of_messages(data),
        )

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Json:
        """The `message` object."""
        (reply,) = replies
        ending = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stopped_by or None}
        return {**_envelope(reply), "content": _blocks(reply), **ending, "usage": _usage(reply)}

    def writer(self, request: ChatRequest, head: Reply) -> _Writer:
        """Events of content blocks."""
        return _Writer(head)

    def error(self, message: str, kind: str) -> Json:
        """See `Format.error`."""
        return {"type": "error", "error": {"type": _KINDS.get(kind, kind), "message": message}}


# --- requests -----------------------------------------------------------------------------------


def _conversation(data: Json) -> list[Json]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a list of at least one message")
    system = _system(data.get("system"))
    made = [{"role": "system", "content": system}] if system else []
    for index, message in enumerate(messages):
        made += _message(message, f"messages[{index}]")
    return made


def _system(content: Any) -> str:
    """The system prompt, which is the same in all requests of one conversation."""
    if isinstance(content, list):
        content = [block for block in content if not _is_billing(block)]
    return joined_text(content, "system")


def _is_billing(block: Any) -> bool:
    return isinstance(block, dict) and str(block.get("text", "")).startswith(_BILLING)


def _message(message: Any, where: str) -> Iterator[Json]:
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise BadRequest(f"`{where}` must be an object whose role is user or assistant")
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise BadRequest(f"`{where}.content` must be text or a list of blocks")
    if message["role"] == "assistant":
        return iter([_assistant(blocks, where)])
    return _told(message["role"], blocks, where)


def _told(role: str, blocks: Sequence[Json], where: str) -> Iterator[Json]:
    """What tools and the user say, in this order within a message: texts together are one message."""
    texts: list[Json] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            content = joined_text(block.get("content"), f"{where}.content.tool_result")
            yield {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": content}
        else:
            texts.append(block)
    if texts or not blocks:
        yield {"role": role, "content": joined_text(texts, f"{where}.content")}


def _assistant(blocks: Sequence[Json], where: str) -> Json:
    thinking = [str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking"]
    calls = [_call(block, where) for block in blocks if block.get("type") == "tool_use"]
    rest = [
        block for block in blocks if block.get("type") not in ("thinking", "redacted_thinking", "tool_use")
    ]
    message: Json = {"role": "assistant", "content": joined_text(rest, f"{where}.content")}
    if any(thinking):
        message["reasoning_content"] = "".join(thinking)
    return message | ({"tool_calls": calls} if calls else {})


def _call(block: Json, where: str) -> Json:
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str) or not isinstance(given, dict):
        raise BadRequest(f"`{where}.content` must hold tool_use blocks with a name and an input object")
    raw = given.get(_RAW) if len(given) == 1 else None
    arguments = raw if isinstance(raw, str) else json.dumps(given, ensure_ascii=False)
    return {
        "id": str(block.get("id", "")),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _tools(tools: Any) -> list[Json] | None:
    """Function tools. Those that Anthropic's own servers run are unknown here, and not offered."""
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise BadRequest("`tools` must be a list of tools")
    made = [
        {
            "type": "function",
            "function": {
                "name": str(tool.get("name", "")),
                "description": str(tool.get("description") or ""),
                "parameters": tool["input_schema"],
            },
        }
        for tool in tools or []
        if isinstance(tool.get("input_schema"), dict)
    ]
    return made or None


# --- answers ------------------------------------------------------------------------------------


class _Writer:
    """See `Writer`. One block after the other: thinking, text, calls."""

    silence = event({"type": "ping"}, "ping")

    def __init__(self, head: Reply) -> None:
        self._head = head
        self._index = -1
        self._kind = ""

    def start(self) -> bytes:
        message = {**_envelope(self._head), "content": [], "stop_reason": None, "stop_sequence": None}
        return _event("message_start", {"message": message | {"usage": _usage(self._head)}})

    def reasoning(self, text: str) -> bytes:
        if self._kind == "text":
            return b""
        opened = self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return opened + self._delta({"type": "thinking_delta", "thinking": text})

    def content(self, text: str) -> bytes:
        opened = self._open("text", {"type": "text", "text": ""})
        return opened + self._delta({"type": "text_delta", "text": text})

    def end(self, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        parts = [] if self._kind or reply.tool_calls else [self._open("text", {"type": "text", "text": ""})]
        for block in _blocks(reply):
            if block["type"] == "tool_use":
                parts.append(self._open(block["id"], block | {"input": {}}))
                arguments = json.dumps(block["input"], ensure_ascii=False)
                parts.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        ending = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stopped_by or None}
        last = _event("message_delta", {"delta": ending, "usage": _usage(reply)})
        return b"".join([*parts, self._close(), last, _event("message_stop", {})])

    def fail(self, message: str, kind: str) -> bytes:
        return _event("error", {"error": {"type": _KINDS.get(kind, kind), "message": message}})

    def _open(self, kind: str, block: Json) -> bytes:
        if self._kind == kind:
            return b""
        closed = self._close()
        self._kind, self._index = kind, self._index + 1
        return closed + _event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        stop = _event("content_block_stop", {"index": self._index})
        if self._kind == "thinking":
            return self._delta({"type": "signature_delta", "signature": _SIGNATURE}) + stop
        return stop

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": delta})


def _event(kind: str, data: Json) -> bytes:
    return event({"type": kind, **data}, kind)


def _blocks(reply: Reply) -> list[Json]:
    blocks: list[Json] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": _SIGNATURE})
    if reply.content or not (reply.tool_calls or reply.reasoning):
        blocks.append({"type": "text", "text": reply.content})
    for call in calls_json(reply):
        made = _input(call["function"]["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": made})
    return blocks


def _input(arguments: str) -> Json:
    try:
        made = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        made = None
    return made if isinstance(made, dict) else {_RAW: arguments}


def _stop_reason(reply: Reply) -> str:
    if reply.finish is Finish.LENGTH:
        return "max_tokens"
    if reply.tool_calls:
        return "tool_use"
    return "stop_sequence" if reply.stopped_by else "end_turn"


def _usage(reply: Reply) -> Json:
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_read_input_tokens": reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": reply.completion_tokens,
    }


def _envelope(reply: Reply) -> Json:
    return {"id": f"msg_{plain_id(reply)}", "type": "message", "role": "assistant", "model": reply.model}
