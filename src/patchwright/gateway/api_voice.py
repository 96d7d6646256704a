"""Somebody else's API as the voice of a session: by text, with no tokens, so that nothing of it trains."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patchwright.engine.openai import ApiModel, PromptTooLong
from patchwright.gateway.book import Book, CallIds
from patchwright.gateway.call import Call, ContextFull
from patchwright.gateway.history import History, Match
from patchwright.gateway.wire import BadRequest, ChatRequest, Json, Reply, message_json
from patchwright.render import ToolCall
from patchwright.types import Finish, Sampling, Turn, Usage

__all__ = ["UNBOUNDED", "ApiVoice"]

UNBOUNDED = 2**31
"""`max_tokens` of a session that leaves the length of replies to the API."""
_LETTERS_A_TOKEN = 4
_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")
"""What APIs are sent of a message: some refuse a request for any other key."""


class ApiVoice:
    """What an API says in one session. The model sees what the agent sent: a reply that came back in another
    form is named in `Turn.drift`, and never put right. See `Voice`.
    """

    tries = 1  # the API was tried again long enough

    def __init__(
        self, api: ApiModel, *, pinned: bool = True, on_turn: Callable[[Turn], None] | None = None
    ) -> None:
        """Where it is not `pinned`, the request decides how it is sampled."""
        self._api = api
        self._given = api.given if pinned else frozenset[str]()
        self._history = History("fork")
        self._book = Book(on_turn)
        self._ids = CallIds()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """See `Book.turns`. They have no ids, but what the API counted."""
        return self._book.turns

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """See `Book.messages`."""
        return self._book.messages

    def count(self, request: ChatRequest) -> int:
        """A guess by the length of the text: only the API knows its tokens."""
        return (_letters(request.messages) + len(json.dumps(request.tools or []))) // _LETTERS_A_TOKEN

    async def answer(self, call: Call, sampling: Sampling) -> tuple[Reply, ...]:
        """See `Voice.answer`."""
        request = call.request
        if request.prompt is not None:
            raise BadRequest("the model is an API, which takes conversations only: use /v1/chat/completions")
        match = self._history.match(request.messages, request.tools)
        try:
            answer = await self._api.chat(self._body(call, sampling))
        except PromptTooLong as error:
            raise ContextFull(str(error)) from None
        counts = [_usage(answer.get("usage"))] + [Usage()] * (len(answer["choices"]) - 1)
        pairs = enumerate(zip(answer["choices"], counts, strict=True))
        return tuple(self._said(call, match, index, *said) for index, said in pairs)

    def _body(self, call: Call, sampling: Sampling) -> Json:
        request, given = call.request, self._given
        options = {
            "tools": request.tools,
            "n": request.n if request.n > 1 else None,
            "stop": list(call.stop) or None,
            "max_tokens": sampling.max_tokens if sampling.max_tokens < UNBOUNDED else None,
            "temperature": sampling.temperature if "temperature" in given else request.temperature,
            "top_p": sampling.top_p if "top_p" in given else request.top_p,
        }
        if request.logprobs:
            options["logprobs"] = True
        options |= request.wishes.chat(tools=bool(request.tools))
        messages = [_plain(self._ids.native(message)) for message in request.messages]
        return {"messages": messages} | {key: value for key, value in options.items() if value is not None}

    def _said(self, call: Call, match: Match, index: int, choice: Json, usage: Usage) -> Reply:
        """A choice as the agent gets it, recorded."""
        message = choice["message"]
        reply = Reply(
            id=call.id,
            created=int(call.started),
            model=self._api.name,
            index=index,
            content=_text(message.get("content")),
            reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
            tool_calls=tuple(_calls(message.get("tool_calls"))),
            logprobs=_logprobs(choice.get("logprobs")) if call.request.logprobs else (),
            finish=Finish.LENGTH if choice.get("finish_reason") == "length" else Finish.STOP,
            prompt_tokens=usage.prompt,
            completion_tokens=usage.completion,
            cached_tokens=usage.cached,
        )
        said = message_json(reply)
        turn = Turn(
            id=len(self._book),
            parent=match.turn,
            prompt_ids=(),
            completion_ids=(),
            logprobs=(),
            finish=reply.finish,
            text="\n".join(
                [reply.content, *(f"{one.name}({one.arguments})" for one in reply.tool_calls)]
            ).lstrip("\n"),
            train=False,
            drift=match.drift,
            usage=usage,
            started=call.started,
            seconds=time.time() - call.started,
        )
        self._ids.learn(said, reply.tool_calls)
        self._history.record(match, said, turn.id)
        messages = [*call.request.messages, said]
        self._book.add(turn, kind=match.kind, size=_letters(messages), messages=messages)
        return reply


def _letters(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(message["content"] or "") for message in messages)


def _plain(message: Mapping[str, Any]) -> Json:
    """A message with the keys that every API knows."""
    plain = {key: message[key] for key in _KEYS if message.get(key) is not None}
    if plain.get("tool_calls"):
        plain["tool_calls"] = [
            {"id": call.get("id"), "type": "function", "function": _function(call["function"])}
            for call in plain["tool_calls"]
        ]
        plain["content"] = plain["content"] or None  # some refuse an empty text
    return plain


def _function(function: Mapping[str, Any]) -> Json:
    return {"name": function["name"], "arguments": function.get("arguments") or "{}"}


# --- what an API sends is somebody else's JSON --------------------------------------------------


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _calls(calls: Any) -> list[ToolCall]:
    found = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments") or "{}"
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            found.append(ToolCall(name=function["name"], arguments=text, id=str(call.get("id") or "")))
    return found


def _logprobs(logprobs: Any) -> tuple[tuple[str, float], ...]:
    """Of what was said, as far as it is told: none where one is missing."""
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    try:
        return tuple((str(token["token"]), float(token["logprob"])) for token in tokens or ())
    except (LookupError, TypeError, ValueError):
        return ()


def _usage(usage: Any) -> Usage:
    said = usage if isinstance(usage, dict) else {}
    details = said.get("prompt_tokens_details")
    prompt = _count(said.get("prompt_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return Usage(prompt=prompt, cached=min(cached, prompt), completion=_count(said.get("completion_tokens")))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
