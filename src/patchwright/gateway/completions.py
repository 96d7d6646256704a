"""The OpenAI text completions format: a prompt is completed as it stands, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patchwright.gateway.chat import choices, error_json, usage
from patchwright.gateway.wire import (
    BadRequest,
    ChatRequest,
    Json,
    Recall,
    Reply,
    event,
    number,
    plain_id,
    read_json,
    stop_strings,
)
from patchwright.types import Finish

__all__ = ["CompletionsFormat"]


class CompletionsFormat:
    """`/v1/completions`, with one prompt: text or token ids."""

    def parse(self, body: bytes, recall: Recall) -> ChatRequest:
        """See `Format.parse`."""
        data = read_json(body)
        if data.get("echo"):
            raise BadRequest("`echo` is not supported: the client has the prompt")
        return ChatRequest(
            messages=[],
            prompt=_prompt(data.get("prompt")),
            n=choices(data),
            stream=bool(data.get("stream")),
            max_tokens=number(data, "max_tokens", int, 1),
            temperature=number(data, "temperature", float, 0),
            top_p=number(data, "top_p", float, 0),
            seed=number(data, "seed", int),
            stop=stop_strings(data, "stop"),
            logprobs=data.get("logprobs") is not None,
        )

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Json:
        """The `text_completion` object."""
        return {**_envelope(replies[0]), "choices": [_choice(r) for r in replies], "usage": usage(replies)}

    def writer(self, request: ChatRequest, head: Reply) -> _Writer:
        """`text_completion` objects that each hold a piece of text."""
        return _Writer(head)

    def error(self, message: str, kind: str) -> Json:
        """See `Format.error`."""
        return error_json(message, kind)


class _Writer:
    silence = b": keep-alive\n\n"

    def __init__(self, head: Reply) -> None:
        self._head = head

    def start(self) -> bytes:
        return b""

    def reasoning(self, text: str) -> bytes:
        return b""

    def content(self, text: str) -> bytes:
        choice = {"index": 0, "text": text, "finish_reason": None, "logprobs": None}
        return event({**_envelope(self._head), "choices": [choice]})

    def end(self, replies: Sequence[Reply]) -> bytes:
        last = [_choice(reply) if reply.index else {**_choice(reply), "text": ""} for reply in replies]
        return (
            event({**_envelope(self._head), "choices": last, "usage": usage(replies)}) + b"data: [DONE]\n\n"
        )

    def fail(self, message: str, kind: str) -> bytes:
        return event(error_json(message, kind))


def _prompt(prompt: Any) -> str | list[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        return prompt
    raise BadRequest("`prompt` must be one text or one list of token ids")


def _choice(reply: Reply) -> Json:
    logprobs = None
    if reply.logprobs:
        texts, values = zip(*reply.logprobs, strict=True)
        logprobs = {"tokens": list(texts), "token_logprobs": list(values), "top_logprobs": None}
    finish = "length" if reply.finish is Finish.LENGTH else "stop"
    return {"index": reply.index, "text": reply.content, "finish_reason": finish, "logprobs": logprobs}


def _envelope(reply: Reply) -> Json:
    id = f"cmpl-{plain_id(reply)}"
    return {"id": id, "object": "text_completion", "created": reply.created, "model": reply.model}
