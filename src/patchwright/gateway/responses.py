"""The OpenAI Responses format, for Codex and OpenAI's SDKs: /v1/responses.

`response_items.py` translates the items of a conversation; this page has requests, answers and events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patchwright.gateway.chat import error_json
from patchwright.gateway.response_items import custom_parameters, from_items, to_items
from patchwright.gateway.wire import (
    BadRequest,
    ChatRequest,
    Json,
    Recall,
    Reply,
    event,
    joined_text,
    number,
    plain_id,
    read_json,
)
from patchwright.gateway.wishes import Wishes
from patchwright.types import Finish

__all__ = ["ResponsesFormat"]

_PREFIX = "resp_"


class ResponsesFormat:
    """`/v1/responses`."""

    def parse(self, body: bytes, recall: Recall) -> ChatRequest:
        """See `Format.parse`. `previous_response_id` names an answer of the same session."""
        data = read_json(body)
        if data.get("background"):
            raise BadRequest("`background` is not supported: wait for the answer, or stream it")
        thread = [*_earlier(data.get("previous_response_id"), recall), *from_items(data.get("input"))]
        instructions = joined_text(data.get("instructions"), "instructions")
        before = [{"role": "system", "content": instructions}] if instructions else []
        if not thread:
            raise BadRequest("`input` must be a text or a list of at least one item")
        include = data.get("include")
        tools, custom = _tools(data.get("tools"))
        return ChatRequest(
            messages=_one_system([*before, *thread]),
            tools=tools,
            custom=custom,
            wishes=Wishes.of_responses(data),
            stream=bool(data.get("stream")),
            max_tokens=number(data, "max_output_tokens", int, 1),
            temperature=number(data, "temperature", float, 0),
            top_p=number(data, "top_p", float, 0),
            thread=None if data.get("store") is False else thread,
            sealed=isinstance(include, list) and "reasoning.encrypted_content" in include,
        )

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Json:
        """The `response` object."""
        (reply,) = replies
        return _response(reply, _status(reply), to_items(reply, request))

    def writer(self, request: ChatRequest, head: Reply) -> _Writer:
        """Events of output items."""
        return _Writer(head, request)

    def error(self, message: str, kind: str) -> Json:
        """See `Format.error`."""
        return error_json(message, kind)


def _earlier(id: Any, recall: Recall) -> list[Json]:
    if id is None:
        return []
    known = recall("chatcmpl-" + id.removeprefix(_PREFIX)) if isinstance(id, str) else None
    if known is None:
        raise BadRequest(
            "`previous_response_id` is not known here: send the whole conversation as `input` "
            "(answers are remembered within a session, unless `store` is false)"
        )
    return known


def _one_system(messages: Sequence[Json]) -> list[Json]:
    """Instructions and the developer's messages after them as one: chat templates take one, at the start."""
    count = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return list(messages)
    texts = [message["content"] for message in messages[:count]]
    return [{"role": "system", "content": "\n\n".join(texts)}, *messages[count:]]


def _tools(tools: Any) -> tuple[list[Json] | None, frozenset[str]]:
    """Function tools, and the names of those that take plain text, which the model sees as functions of one.
    Tools that OpenAI's own servers run are unknown here, and not offered."""
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise BadRequest("`tools` must be a list of tools")
    made = [
        {
            "type": "function",
            "function": {
                "name": str(tool.get("name", "")),
                "description": str(tool.get("description") or ""),
                "parameters": _parameters(tool),
            },
        }
        for tool in tools or []
        if tool.get("type") in ("function", "custom")
    ]
    custom = frozenset(str(tool.get("name", "")) for tool in tools or [] if tool.get("type") == "custom")
    return made or None, custom


def _parameters(tool: Json) -> Json:
    if tool["type"] == "custom":
        return custom_parameters(tool.get("format"))
    return tool.get("parameters") or {"type": "object", "properties": {}}


# --- answers ------------------------------------------------------------------------------------


class _Writer:
    """See `Writer`. One item after the other: thinking, text, calls."""

    def __init__(self, head: Reply, request: ChatRequest) -> None:
        self._head = head
        self._request = request
        self._number = 0
        self._open: list[Json] = []
        """Items begun, the last one perhaps not ended."""

    @property
    def silence(self) -> bytes:
        """An event, for Codex counts the seconds since the last one; a comment is none."""
        return self._event("response.in_progress", {"response": _response(self._head, "in_progress", [])})

    def start(self) -> bytes:
        response = _response(self._head, "in_progress", [])
        created = self._event("response.created", {"response": response})
        return created + self._event("response.in_progress", {"response": response})

    def reasoning(self, text: str) -> bytes:
        if any(item["type"] == "message" for item in self._open):
            return b""
        id = f"rs_{plain_id(self._head)}"
        opened = self._begin({"type": "reasoning", "id": id, "summary": [], "status": "in_progress"})
        return opened + self._event("response.reasoning_text.delta", {**self._place(), "delta": text})

    def content(self, text: str) -> bytes:
        id = f"msg_{plain_id(self._head)}"
        item = {"type": "message", "id": id, "role": "assistant", "content": [], "status": "in_progress"}
        opened = self._begin(item)
        delta = {**self._place(), "delta": text, "logprobs": []}
        return opened + self._event("response.output_text.delta", delta)

    def end(self, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        items = to_items(reply, self._request)
        parts = []
        for index, item in enumerate(items):
            if index >= len(self._open):
                parts.append(self._begin({**item, **_BARE.get(item["type"], {}), "status": "in_progress"}))
            elif index < len(self._open) - 1:
                continue  # it ended when the next one began
            parts.append(self._ended(index, item))
        status = _status(reply)
        parts.append(self._event(f"response.{status}", {"response": _response(reply, status, items)}))
        return b"".join(parts)

    def fail(self, message: str, kind: str) -> bytes:
        error = {"code": "server_error", "message": message}
        response = _response(self._head, "failed", []) | {"error": error}
        return self._event("response.failed", {"response": response})

    def _begin(self, item: Json) -> bytes:
        """Begin an item, unless it is the one at work."""
        if self._open and self._open[-1]["id"] == item["id"]:
            return b""
        self._open.append(item)
        added = {"output_index": len(self._open) - 1, "item": item}
        begun = self._event("response.output_item.added", added)
        if item["type"] in _TEXT_OF:
            return begun
        part = {"type": "reasoning_text", "text": ""} if item["type"] == "reasoning" else _EMPTY_TEXT
        return begun + self._event("response.content_part.added", {**self._place(), "part": part})

    def _ended(self, index: int, item: Json) -> bytes:
        id = {"item_id": item["id"], "output_index": index}
        if item["type"] in _TEXT_OF:
            kind, key = _TEXT_OF[item["type"]]
            parts = self._event(f"response.{kind}.delta", {**id, "delta": item[key]})
            parts += self._event(f"response.{kind}.done", {**id, key: item[key], "name": item["name"]})
        else:
            id["content_index"] = 0
            part = item["content"][0]
            kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
            extra: Json = {} if item["type"] == "reasoning" else {"logprobs": []}
            parts = self._event(f"response.{kind}.done", {**id, "text": part["text"], **extra})
            parts += self._event("response.content_part.done", {**id, "part": part})
        return parts + self._event("response.output_item.done", {"output_index": index, "item": item})

    def _place(self) -> Json:
        return {
            "item_id": self._open[-1]["id"],
            "output_index": len(self._open) - 1,
            "content_index": 0,
        }

    def _event(self, kind: str, data: Json) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **data}, kind)


_EMPTY_TEXT: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
_BARE: dict[str, Json] = {
    "message": {"content": []},
    "reasoning": {"content": []},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
}
"""What an item has not yet when it begins."""
_TEXT_OF = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
"""A call's events, and where it has its text."""


def _status(reply: Reply) -> str:
    return "incomplete" if reply.finish is Finish.LENGTH else "completed"


def _response(reply: Reply, status: str, output: list[Json]) -> Json:
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": _PREFIX + plain_id(reply),
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "model": reply.model,
        "output": output,
        "error": None,
        "incomplete_details": cut,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": _usage(reply) if output else None,
    }


def _usage(reply: Reply) -> Json:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
