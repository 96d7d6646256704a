"""The OpenAI chat completions format. Text formats of the platform reference: /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from patchwright.gateway.wire import (
    BadRequest,
    ChatRequest,
    Json,
    Recall,
    Reply,
    calls_json,
    check_message,
    event,
    message_json,
    number,
    read_json,
    stop_strings,
)
from patchwright.gateway.wishes import Wishes
from patchwright.types import Finish

__all__ = ["ChatFormat", "error_json", "finish_reason", "usage"]

_MAX_CHOICES = 128


class ChatFormat:
    """`/v1/chat/completions`."""

    def parse(self, body: bytes, recall: Recall) -> ChatRequest:
        """See `Format.parse`."""
        data = read_json(body)
        options = data.get("stream_options")
        return ChatRequest(
            messages=_messages(data),
            n=choices(data),
            tools=_tools(data),
            stream=bool(data.get("stream")),
            include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
            max_tokens=_max_tokens(data),
            temperature=number(data, "temperature", float, 0),
            top_p=number(data, "top_p", float, 0),
            seed=number(data, "seed", int),
            stop=stop_strings(data, "stop"),
            logprobs=bool(data.get("logprobs")),
            wishes=Wishes.of_chat(data),
        )

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Json:
        """The `chat.completion` object."""
        made = [
            {
                "index": reply.index,
                "message": message_json(reply),
                "finish_reason": finish_reason(reply),
                "logprobs": _logprobs(reply),
            }
            for reply in replies
        ]
        return {**_envelope(replies[0], "chat.completion"), "choices": made, "usage": usage(replies)}

    def writer(self, request: ChatRequest, head: Reply) -> _Writer:
        """`chat.completion.chunk` objects."""
        return _Writer(request, head)

    def error(self, message: str, kind: str) -> Json:
        """See `Format.error`."""
        return error_json(message, kind)


class _Writer:
    """See `Writer`. With several choices each is written whole, one after the other."""

    silence = b": keep-alive\n\n"

    def __init__(self, request: ChatRequest, head: Reply) -> None:
        self._request = request
        self._head = head

    def start(self) -> bytes:
        return b"".join(
            self._chunk({"role": "assistant", "content": ""}, index) for index in range(self._request.n)
        )

    def reasoning(self, text: str) -> bytes:
        return self._chunk({"reasoning_content": text})

    def content(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def end(self, replies: Sequence[Reply]) -> bytes:
        parts = []
        for reply in replies:
            if reply.index:
                parts += [self._chunk(self._said(reply), reply.index)]
            if reply.tool_calls:
                calls = [{"index": index, **call} for index, call in enumerate(calls_json(reply))]
                parts.append(self._chunk({"tool_calls": calls}, reply.index))
            parts.append(self._last(reply))
        if self._request.include_usage:
            envelope = _envelope(self._head, "chat.completion.chunk")
            parts.append(event({**envelope, "choices": [], "usage": usage(replies)}))
        return b"".join([*parts, b"data: [DONE]\n\n"])

    def fail(self, message: str, kind: str) -> bytes:
        return event(error_json(message, kind))

    def _said(self, reply: Reply) -> Json:
        message = message_json(reply)
        return {key: value for key, value in message.items() if key in ("content", "reasoning_content")}

    def _chunk(self, delta: Json, index: int = 0) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": None}
        return event({**_envelope(self._head, "chat.completion.chunk"), "choices": [choice]})

    def _last(self, reply: Reply) -> bytes:
        choice: Json = {"index": reply.index, "delta": {}, "finish_reason": finish_reason(reply)}
        if reply.logprobs:
            choice["logprobs"] = _logprobs(reply)
        return event({**_envelope(self._head, "chat.completion.chunk"), "choices": [choice]})


def choices(data: Json) -> int:
    """How many replies a request asks for. Raises BadRequest."""
    n: int = number(data, "n", int, 1) or 1
    if n > _MAX_CHOICES:
        raise BadRequest(f"`n` must be at most {_MAX_CHOICES}")
    return n


def finish_reason(reply: Reply) -> str:
    """Why a reply ended, in OpenAI's words."""
    if reply.finish is Finish.LENGTH:
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


def usage(replies: Sequence[Reply]) -> Json:
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


def _envelope(reply: Reply, kind: str) -> Json:
    return {"id": reply.id, "object": kind, "created": reply.created, "model": reply.model}


def _logprobs(reply: Reply) -> Json | None:
    """Of the tokens as sampled, special ones with them; the alternatives are not known."""
    if not reply.logprobs:
        return None
    tokens = [
        {"token": text, "logprob": value, "bytes": list(text.encode("utf-8", "replace")), "top_logprobs": []}
        for text, value in reply.logprobs
    ]
    return {"content": tokens, "refusal": None}


def _messages(data: Json) -> list[Json]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a list of at least one message")
    return [check_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


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
    given = [number(data, key, int, 1) for key in ("max_tokens", "max_completion_tokens")]
    return min((int(value) for value in given if value is not None), default=None)
