"""What every wire format shares: the request and the reply in between, and the pieces they are made of.

    chat.py, completions.py, responses.py, messages.py --ChatRequest--> session.py --Reply--> back again

Pure functions. What a client sends is untrusted; whatever cannot be served raises BadRequest with one
sentence that the client gets to see.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from patchwright.gateway.bad_request import BadRequest
from patchwright.gateway.wishes import Wishes
from patchwright.render import ToolCall
from patchwright.types import Finish, Sampling

__all__ = [
    "BadRequest",
    "ChatRequest",
    "Format",
    "Reply",
    "Writer",
    "calls_json",
    "check_message",
    "cut",
    "dumps",
    "event",
    "joined_text",
    "message_json",
    "moved",
    "number",
    "plain_id",
    "read_json",
    "request_sampling",
    "stop_strings",
]

Json = dict[str, Any]
Recall = Callable[[str], "list[Json] | None"]
"""The conversation up to and including an answer, by the answer's `Reply.id`."""
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """A request, checked, as OpenAI chat messages.

    Example: `ChatRequest(messages=[{"role": "user", "content": "hi"}], stop=("END",))`
    """

    messages: list[Json]
    """Content is text (parts joined), never absent. Empty when there is a `prompt`."""
    prompt: str | list[int] | None = None
    """Text or ids that are completed as they stand, without a chat template."""
    n: int = 1
    """Replies to sample, each from the same prompt."""
    tools: list[Json] | None = None
    stream: bool = False
    include_usage: bool = False
    """Chat streams only: end with a chunk that carries the usage."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    """The answer is to have the log-probs of its tokens."""
    wishes: Wishes = field(default_factory=Wishes)
    thread: list[Json] | None = None
    """Responses only: what a later request may continue by this answer's id; None: not to be remembered."""
    sealed: bool = False
    """Responses only: thinking is to be handed out in a form that the client sends back."""
    custom: frozenset[str] = frozenset()
    """Responses only: names of the tools that take plain text."""


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
    stopped_by: str = ""
    """The stop string that ended it."""
    logprobs: tuple[tuple[str, float], ...] = ()
    """Text and log-prob of every token, if they were asked for."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Writer(Protocol):
    """Writes one answer as server-sent events. Thinking comes before text."""

    @property
    def silence(self) -> bytes:
        """Sent while nothing is to be said, so that nobody hangs up."""
        ...

    def start(self) -> bytes:
        """Before everything."""
        ...

    def reasoning(self, text: str) -> bytes:
        """More of the thinking."""
        ...

    def content(self, text: str) -> bytes:
        """More of the text."""
        ...

    def end(self, replies: Sequence[Reply]) -> bytes:
        """What the answer has besides text and thinking (of the first reply), and how it ended."""
        ...

    def fail(self, message: str, kind: str) -> bytes:
        """The end of an answer that does not come."""
        ...


class Format(Protocol):
    """One wire format: requests in, answers out. It keeps nothing."""

    def parse(self, body: bytes, recall: Recall) -> ChatRequest:
        """Check a request body. Unknown fields are ignored. Raises BadRequest."""
        ...

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Json:
        """The answer that is not streamed."""
        ...

    def writer(self, request: ChatRequest, head: Reply) -> Writer:
        """The answer that is; `head` is the reply as far as it is known before sampling."""
        ...

    def error(self, message: str, kind: str) -> Json:
        """The body of a refusal."""
        ...


# --- reading ------------------------------------------------------------------------------------

_INTEGERS = 2**63 - 1
"""What engines can count to; seeds beyond it they refuse."""
_MOST: dict[str, float] = {"top_p": 1, "temperature": 100}
_MOST_STOPS = 16


def read_json(body: bytes) -> Json:
    """The object that a body is. Raises BadRequest."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    return data


def number(data: Json, key: str, kind: type[Any], least: float | None = None) -> Any:
    """A number of the request, or None where there is none. Raises BadRequest."""
    value, most = data.get(key), _MOST.get(key, _INTEGERS)
    if value is None:
        return None
    right = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if right and -_INTEGERS <= value <= most and (least is None or value >= least):  # NaN is not
        return value
    bounds = [] if least is None else [f"at least {least}"]
    bounds += [f"at most {most}"] if most < _INTEGERS or (right and value > most) else []
    of = f" of {' and '.join(bounds)}" if bounds else ""
    raise BadRequest(f"`{key}` must be {'a number' if kind is float else 'an integer'}{of}")


def stop_strings(data: Json, key: str) -> tuple[str, ...]:
    """The strings that end a reply. Raises BadRequest."""
    stop = data.get(key)
    stops = [stop] if isinstance(stop, str) and stop else stop or []
    if not isinstance(stops, list) or not all(isinstance(item, str) and item for item in stops):
        raise BadRequest(f"`{key}` must be a string or a list of strings")
    if len(stops) > _MOST_STOPS:
        raise BadRequest(f"`{key}` must have at most {_MOST_STOPS} strings")
    return tuple(stops)


def joined_text(content: Any, where: str) -> str:
    """Content as one text: parts are joined, absent content is empty. Raises BadRequest."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text") for part in content]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise BadRequest(f"`{where}` must be text or a list of text parts; other parts are not supported")


def check_message(message: Any, where: str) -> Json:
    """A chat message with its content as text. Raises BadRequest."""
    if not isinstance(message, dict):
        raise BadRequest(f"`{where}` must be an object")
    role = message.get("role")
    if role not in ROLES:
        raise BadRequest(f"`{where}.role` must be one of {', '.join(ROLES)}")
    calls = message.get("tool_calls")
    if calls is not None:
        _check_calls(calls, f"{where}.tool_calls")
    if role != "developer" and isinstance(message.get("content"), str):
        return message  # a long history is made of these
    content = joined_text(message.get("content"), f"{where}.content")
    return {**message, "role": "system" if role == "developer" else role, "content": content}


def _check_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list):
        raise BadRequest(f"`{where}` must be a list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"`{where}` must hold function calls with a name")
        if not isinstance(function.get("arguments", ""), str):
            raise BadRequest(f"`{where}` must hold arguments as JSON text")


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


def moved(sampling: Sampling, by: int) -> Sampling:
    """The same with its seed, if it has one, moved on."""
    return replace(sampling, seed=None if sampling.seed is None else sampling.seed + by)


# --- writing ------------------------------------------------------------------------------------


def message_json(reply: Reply) -> Json:
    """The assistant's chat message of a choice."""
    message: Json = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = calls_json(reply)
    return message


def cut(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first stop string."""
    found = [place for place in map(text.find, stops) if place >= 0]
    return text[: min(found)] if found else text


def calls_json(reply: Reply) -> list[Json]:
    """The tool calls of a choice, under ids that no other call of the session has."""
    answer = plain_id(reply) + (f"_{reply.index}" if reply.index else "")
    return [
        {
            "id": f"call_{answer}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(reply.tool_calls)
    ]


def plain_id(reply: Reply) -> str:
    """An answer's id without the prefix of a format."""
    return reply.id.removeprefix("chatcmpl-")


def dumps(data: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Compact UTF-8 JSON; lone surrogates become `?`."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dumps(data) + b"\n\n"
