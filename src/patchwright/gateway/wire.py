"""The OpenAI chat wire format: request bytes to a `ChatRequest`, a `Reply` to response objects.

Pure functions. What a client sends is untrusted; whatever cannot be served raises BadRequest with one
sentence that the client gets to see.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from patchwright.render import ToolCall
from patchwright.types import Finish, Sampling

__all__ = [
    "BadRequest",
    "ChatRequest",
    "Reply",
    "calls_delta",
    "chunk_json",
    "dumps",
    "error_json",
    "message_json",
    "parse_request",
    "reply_json",
    "request_sampling",
    "usage_chunk_json",
]

Json = dict[str, Any]
_ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_CHOICES = 128


class BadRequest(Exception):
    """The request cannot be served as it stands (HTTP 400)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """A chat completion request, checked.

    Example: `ChatRequest(messages=[{"role": "user", "content": "hi"}], stop=("END",))`
    """

    messages: list[Json]
    """Content is text (parts joined), never absent."""
    n: int = 1
    """Replies to sample, each from the same prompt."""
    tools: list[Json] | None = None
    stream: bool = False
    include_usage: bool = False
    """Streaming only: end with a chunk that carries the usage."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One choice of an answer. Example: `Reply(id="chatcmpl-ab-0", created=1, content="Done.")`"""

    id: str
    created: int
    """Seconds since the epoch."""
    model: str = "policy"
    index: int = 0
    """Its place among the choices."""
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = Finish.STOP
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


# --- requests ---------------------------------------------------------------------------------


def parse_request(body: bytes) -> ChatRequest:
    """Check a request body. Unknown fields are ignored. Raises BadRequest."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    n = _number(data, "n", int, 1) or 1
    if n > _MAX_CHOICES:
        raise BadRequest(f"`n` must be at most {_MAX_CHOICES}")
    if n > 1 and data.get("stream"):
        raise BadRequest("`n` must be 1 in a stream: leave `stream` out, or send one request per sample")
    options = data.get("stream_options")
    return ChatRequest(
        messages=_messages(data),
        n=n,
        tools=_tools(data),
        stream=bool(data.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        max_tokens=_max_tokens(data),
        temperature=_number(data, "temperature", float, 0),
        top_p=_number(data, "top_p", float, 0),
        seed=_number(data, "seed", int),
        stop=_stop(data),
    )


def request_sampling(request: ChatRequest, base: Sampling, *, pinned: bool) -> Sampling:
    """How to sample a request, given how its session samples.

    `max_tokens` is the smaller of the two and `stop` is added. Temperature, top_p and seed are the
    session's when it is `pinned` (a rollout is sampled as its recipe says), else the request's if given.
    """
    sampling = replace(
        base,
        max_tokens=min(base.max_tokens, request.max_tokens or base.max_tokens),
        stop=(*base.stop, *request.stop),
    )
    if pinned:
        return sampling
    asked = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
    return replace(sampling, **{key: value for key, value in asked.items() if value is not None})  # type: ignore[arg-type]


def _messages(data: Json) -> list[Json]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a list of at least one message")
    return [_message(message, index) for index, message in enumerate(messages)]


def _message(message: Any, index: int) -> Json:
    if not isinstance(message, dict):
        raise BadRequest(f"`messages[{index}]` must be an object")
    role = message.get("role")
    if role not in _ROLES:
        raise BadRequest(f"`messages[{index}].role` must be one of {', '.join(_ROLES)}")
    checked = {**message, "content": _text(message.get("content"), f"messages[{index}].content")}
    if role == "developer":
        checked["role"] = "system"
    calls = message.get("tool_calls")
    if calls is not None:
        _check_calls(calls, f"messages[{index}].tool_calls")
    return checked


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text") for part in content]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise BadRequest(f"`{where}` must be text or a list of text parts; other parts are not supported")


def _check_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list):
        raise BadRequest(f"`{where}` must be a list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"`{where}` must hold function calls with a name")
        if not isinstance(function.get("arguments", ""), str):
            raise BadRequest(f"`{where}` must hold arguments as JSON text")


def _tools(data: Json) -> list[Json] | None:
    tools = data.get("tools")
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools
    ):
        raise BadRequest("`tools` must be a list of function tools")
    return tools


def _max_tokens(data: Json) -> int | None:
    given = [_number(data, key, int, 1) for key in ("max_tokens", "max_completion_tokens")]
    return min((int(value) for value in given if value is not None), default=None)


def _stop(data: Json) -> tuple[str, ...]:
    stop = data.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(item, str) and item for item in stops):
        raise BadRequest("`stop` must be a string or a list of strings")
    return tuple(stops)


def _number(data: Json, key: str, kind: type[Any], least: float | None = None) -> Any:
    value = data.get(key)
    if value is None:
        return None
    right = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if not right or not math.isfinite(value) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise BadRequest(f"`{key}` must be {'a number' if kind is float else 'an integer'}{bound}")
    return value


# --- responses --------------------------------------------------------------------------------


def reply_json(replies: Sequence[Reply]) -> Json:
    """The `chat.completion` object of an answer's choices, at least one."""
    choices = [
        {
            "index": reply.index,
            "message": message_json(reply),
            "finish_reason": _finish(reply),
            "logprobs": None,
        }
        for reply in replies
    ]
    return {**_envelope(replies[0], "chat.completion"), "choices": choices, "usage": _usage(replies)}


def message_json(reply: Reply) -> Json:
    """The assistant's message of a choice."""
    message: Json = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = _calls_json(reply)
    return message


def chunk_json(reply: Reply, delta: Json, *, last: bool = False) -> Json:
    """One `chat.completion.chunk` object; the last one carries the finish reason."""
    choice = {"index": 0, "delta": delta, "finish_reason": _finish(reply) if last else None}
    return {**_envelope(reply, "chat.completion.chunk"), "choices": [choice]}


def usage_chunk_json(reply: Reply) -> Json:
    """The chunk after the last, asked for by `stream_options.include_usage`."""
    return {**_envelope(reply, "chat.completion.chunk"), "choices": [], "usage": _usage([reply])}


def calls_delta(reply: Reply) -> Json:
    """The delta that carries every tool call whole."""
    return {"tool_calls": [{"index": index, **call} for index, call in enumerate(_calls_json(reply))]}


def _usage(replies: Sequence[Reply]) -> Json:
    """Token counts: the whole prompt once, and all that was sampled."""
    prompt, completion = replies[0].prompt_tokens, sum(reply.completion_tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": replies[0].cached_tokens},
    }


def error_json(message: str, kind: str) -> Json:
    """The error object of the OpenAI API."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def dumps(data: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Compact UTF-8 JSON; lone surrogates become `?`."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _envelope(reply: Reply, kind: str) -> Json:
    return {"id": reply.id, "object": kind, "created": reply.created, "model": reply.model}


def _calls_json(reply: Reply) -> list[Json]:
    answer = reply.id.removeprefix("chatcmpl-") + (f"_{reply.index}" if reply.index else "")
    return [
        {
            "id": f"call_{answer}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(reply.tool_calls)
    ]


def _finish(reply: Reply) -> str:
    if reply.finish is Finish.LENGTH:
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"
