"""`Renderer`: messages to prompt ids, completion ids to a reply, and the bridge between turns.

The bridge (`extend`) appends what follows a sampled completion instead of rendering the history anew, so
the ids a model sampled stay in its context exactly as sampled, and a turn costs its new tokens only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchwright.errors import AgentError
from patchwright.render.family import Family, find_family
from patchwright.render.formats import Format, find_format
from patchwright.render.template import ChatTokenizer, read_json

__all__ = ["Message", "Parsed", "Renderer", "ToolCall"]

Message = Mapping[str, Any]
"""An OpenAI chat message whose content is text."""

_MARK = "\u2402reply\u2402"
_TAIL = 256
"""Last ids of a prompt that a family gets to see for a bridge. It looks for the generation prompt alone, a
dozen ids, but walks all that it is given, at every turn."""
_QUESTION = {"role": "user", "content": "x"}
_ANSWER = {"role": "assistant", "content": _MARK}


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A tool call a model made. Example: `ToolCall(name="bash", arguments='{"command": "ls"}')`"""

    name: str
    arguments: str
    """A JSON object, as text."""
    id: str = ""
    """As the model wrote it (Kimi-K2: `functions.bash:0`), empty in formats without ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """A completion taken apart. Example: `Parsed(content="Done.", reasoning="It is simple.")`"""

    content: str
    """What is neither thinking nor a well-formed tool call."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Renderer:
    """Speaks one model's chat format.

    Model families the `renderers` library knows are spoken by it; every other template by generic rules:
    `<think>` and `<tool_call>` are parsed where the template mentions them, and the bridge is derived from
    the template itself, or declined.

    Example::

        renderer = Renderer.load("models/policy")
        prompt = renderer.render([{"role": "user", "content": "Fix mod.py"}])
    """

    def __init__(self, tokenizer: ChatTokenizer, extra_stop_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._family: Family | None = find_family(tokenizer)
        self._header = self._find_header()
        self.stop_ids = self._find_stop_ids(extra_stop_ids)
        """Ids that end a turn; the one the chat template writes comes first."""
        self._closers = {*self.stop_ids, *self._find_closer()}
        self._format: Format | None = self._family or find_format(tokenizer, self.stop_ids)

    @classmethod
    def load(cls, path: str) -> Renderer:
        """The renderer of a Hugging Face folder.

        Raises ConfigError when the folder, its tokenizer.json or its chat template is missing or broken.
        """
        ends = read_json(Path(path) / "generation_config.json").get("eos_token_id")
        extra = ends if isinstance(ends, list) else [] if ends is None else [ends]
        return cls(ChatTokenizer.load(path), extra)

    @property
    def vocab_size(self) -> int:
        """Number of token ids the tokenizer knows (a model's embedding may be larger)."""
        return self._tokenizer.vocab_size

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; no special tokens are added."""
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids without special tokens; invalid UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> list[int]:
        """Prompt ids of a conversation, generation prompt included.

        Raises AgentError when the chat template refuses the conversation.
        """
        return self._render(messages, tools, add_generation_prompt=True)

    def reply(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> tuple[list[int], list[int]] | None:
        """Prompt ids of all messages but the last, and the ids a model samples to say the last, an
        assistant's, up to the id that ends its turn.

        None when the template writes the last message otherwise than after that prompt, or ends no turn.
        Raises AgentError when the chat template refuses the conversation.
        """
        prompt = self.render(messages[:-1], tools)
        whole = self._render(messages, tools, add_generation_prompt=False)
        said = whole[len(prompt) :]
        if whole[: len(prompt)] != prompt:  # the first letters may have merged with the prompt's last
            before, after = (self._tokenizer.decode(ids) for ids in (prompt, whole))
            said = self.encode(after.removeprefix(before)) if after.startswith(before) else []
        end = next((at for at, token in enumerate(said, 1) if token in self.stop_ids), None)
        return None if end is None else (prompt, said[:end])

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Message] | None, *, add_generation_prompt: bool
    ) -> list[int]:
        safe = self._safe(messages)
        if self._family is None:
            return self.encode(self._tokenizer.apply(safe, tools, add_generation_prompt))
        try:
            ids = self._family.render_ids(
                safe, tools=_list(tools), add_generation_prompt=add_generation_prompt
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise AgentError(f"the chat template refuses this conversation: {error}") from None
        return list(ids)

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
    ) -> list[int] | None:
        """Ids to append after a prompt and its completion so that `new_messages` and a reply can follow.

        They begin with the end-of-turn token when the completion was cut before it. None when the format
        cannot be bridged: then the caller renders the whole conversation anew.
        """
        if not new_messages or any(message.get("role") == "assistant" for message in new_messages):
            return None
        safe = self._safe(new_messages)
        if self._family is None:
            return self._extend_by_template(completion_ids, safe, tools)
        prompt = list(prompt_ids[-_TAIL:])
        before = [*prompt, *completion_ids]
        try:
            bridged = self._family.bridge_to_next_turn(
                prompt,
                list(completion_ids),
                safe,
                tools=_list(tools),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        return list(bridged.token_ids[len(before) :])

    def parse(self, completion_ids: Sequence[int], tools: Sequence[Message] | None = None) -> Parsed:
        """A completion's text, thinking and tool calls. Malformed tool calls stay in the text."""
        if self._format is None:
            return self._parse_text(completion_ids, tools)
        found = self._format.parse_response(
            list(completion_ids),
            tools=_list(tools),
            prompt_ids=self._header,
        )
        calls = [call for call in found.tool_calls if _usable(call)]
        broken = [call.raw for call in found.tool_calls if not _usable(call)]
        return Parsed(
            content="\n".join(part for part in (found.content, *broken) if part),
            reasoning=found.reasoning_content or "",
            tool_calls=tuple(
                ToolCall(name=call.name or "", arguments=_json(call.arguments), id=call.id or "")
                for call in calls
            ),
        )

    # --- generic rules ------------------------------------------------------------------------

    def _extend_by_template(
        self, completion_ids: Sequence[int], messages: list[dict[str, Any]], tools: Sequence[Message] | None
    ) -> list[int] | None:
        suffix = self._suffix(messages, tools, add_generation_prompt=True)
        ids = [] if suffix is None else self.encode(suffix)
        close = next((i for i, token in enumerate(ids) if token in self._closers), None)
        if close is None or self.decode(ids[:close]).strip():
            return None  # the template does not close the turn before it goes on
        closed = bool(completion_ids) and completion_ids[-1] in self._closers
        return ids[close + 1 :] if closed else ids[close:]

    def _suffix(
        self, messages: list[dict[str, Any]], tools: Sequence[Message] | None, *, add_generation_prompt: bool
    ) -> str | None:
        """What the template writes after an assistant's reply, or None when it rewrites what came before."""
        try:
            before = self._tokenizer.apply([_QUESTION, _ANSWER], tools, False)
            after = self._tokenizer.apply([_QUESTION, _ANSWER, *messages], tools, add_generation_prompt)
        except AgentError:
            return None
        cut = before.find(_MARK) + len(_MARK)
        if cut < len(_MARK) or before[:cut] != after[:cut]:
            return None
        return after[cut:]

    def _parse_text(self, ids: Sequence[int], tools: Sequence[Message] | None) -> Parsed:
        text, template = self.decode(ids), self._tokenizer.template
        parsed = Parsed(content=text)
        if "</think>" in template:
            prefilled = self._tokenizer.decode(self._header).rstrip().endswith("<think>")
            parsed = _split_thinking(text, prefilled)
        if tools and "<tool_call>" in template:
            parsed = _split_calls(parsed)
        return parsed

    # --- what the template says of itself -----------------------------------------------------

    def _find_header(self) -> list[int]:
        """Ids of the generation prompt alone."""
        try:
            bare = self._tokenizer.apply([_QUESTION], None, False)
            whole = self._tokenizer.apply([_QUESTION], None, True)
        except AgentError:
            return []
        return self.encode(whole[len(bare) :]) if whole.startswith(bare) else []

    def _find_stop_ids(self, extra: Sequence[int]) -> tuple[int, ...]:
        suffix = self._suffix([], None, add_generation_prompt=False)
        closing = self.encode(suffix)[:1] if suffix else []
        if closing and self.decode(closing):  # plain text after the reply does not end a turn
            closing = []
        family = self._family.get_stop_token_ids() if self._family else []
        end = self._tokenizer.eos_token_id
        return tuple(dict.fromkeys([*closing, *family, *([] if end is None else [end]), *extra]))

    def _find_closer(self) -> list[int]:
        """The token the template writes after a reply, whoever speaks next (in harmony none that ends it)."""
        nexts = [self._suffix(messages, None, add_generation_prompt=True) for messages in ([], [_QUESTION])]
        first, second = (self.encode(text)[:1] if text else [] for text in nexts)
        return first if first == second and not self.decode(first) else []

    def _safe(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages as templates want them: text content, arguments as objects, special tokens defused."""
        return [_for_template(message, self._tokenizer.defuse) for message in messages]


def _usable(call: Any) -> bool:
    """Well formed; a value that is not of the type the tool declares is for the tool to refuse."""
    typed = call.status == "invalid_json" and isinstance(call.arguments, dict)
    return bool(call.name) and (call.status == "ok" or typed)


def _list(tools: Sequence[Message] | None) -> list[Any] | None:
    return list(tools) if tools else None


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _for_template(message: Message, defuse: Any) -> dict[str, Any]:
    safe = {**message, "content": defuse(message.get("content") or "")}
    calls = message.get("tool_calls")
    if calls:
        safe["tool_calls"] = [{**call, "function": _with_object(call["function"])} for call in calls]
    else:
        safe.pop("tool_calls", None)
    return safe


def _with_object(function: Message) -> dict[str, Any]:
    try:
        return {**function, "arguments": json.loads(function["arguments"])}
    except (KeyError, TypeError, ValueError, RecursionError):
        return dict(function)


def _split_thinking(text: str, prefilled: bool) -> Parsed:
    """`<think>a</think>b` -> thinking a, text b. Unclosed thinking is all thinking."""
    opened = text.lstrip().startswith("<think>")
    if not opened and not prefilled:
        return Parsed(content=text)
    thinking, _, content = text.partition("</think>")
    return Parsed(content=content.lstrip("\n"), reasoning=thinking.replace("<think>", "", 1).strip("\n"))


def _split_calls(parsed: Parsed) -> Parsed:
    """Take `<tool_call>{...}</tool_call>` out of the text, in one pass; what is no call stays."""
    *closed, rest = parsed.content.split("</tool_call>")
    texts, calls = [], []
    for part in closed:
        before, _, body = part.partition("<tool_call>")
        call = _tool_call(body)
        texts.append(part + "</tool_call>" if call is None else before.rstrip("\n"))
        calls += [] if call is None else [call]
    content = "".join([*texts, rest])
    return replace(parsed, content=content.rstrip("\n") if calls else content, tool_calls=tuple(calls))


def _tool_call(body: str) -> ToolCall | None:
    try:
        call = json.loads(body)
        name, arguments = call["name"], call.get("arguments")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return ToolCall(name=name, arguments=_json(arguments)) if isinstance(name, str) else None
