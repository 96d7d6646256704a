"""Tool-call formats of templates that no family of the `renderers` library renders.

The library's parsers work on token ids, so special tokens that a box or a model merely spelt out in text do
not count. Which format a template speaks is read off the marks it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from patchwright.render.template import ChatTokenizer

__all__ = ["Format", "find_format"]


class Format(Protocol):
    """Takes completions apart; a `Family` is one."""

    def parse_response(
        self, token_ids: list[int], *, tools: list[Any] | None, prompt_ids: list[int] | None
    ) -> Any:
        """Content, reasoning and tool calls of a completion."""
        ...


def find_format(tokenizer: ChatTokenizer, stop_ids: Sequence[int]) -> Format | None:
    """The format whose marks the template writes and the tokenizer has, or None."""
    marks = {mark: _id(tokenizer, mark) for mark in (*_Xml.MARKS, *_Harmony.MARKS)}
    if "<function=" in tokenizer.template and all(marks[mark] >= 0 for mark in _Xml.MARKS):
        return _Xml(tokenizer, marks, set(stop_ids))
    if "<|channel|>" in tokenizer.template and all(marks[mark] >= 0 for mark in _Harmony.MARKS):
        return _Harmony(tokenizer, marks)
    return None


def _id(tokenizer: ChatTokenizer, token: str) -> int:
    """Id of a token, or -1, which occurs in no completion."""
    found = tokenizer.convert_tokens_to_ids(token)
    return -1 if found is None or found == tokenizer.unk_token_id else int(found)


class _Xml:
    """`<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>`: Qwen3-Coder."""

    MARKS = ("<tool_call>", "</tool_call>")

    def __init__(self, tokenizer: ChatTokenizer, marks: dict[str, int], stop_ids: set[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._call, self._call_end = (marks[mark] for mark in self.MARKS)

    def parse_response(
        self, token_ids: list[int], *, tools: list[Any] | None, prompt_ids: list[int] | None
    ) -> Any:
        """See `Format.parse_response`."""
        from renderers.parsing import parse_qwen35  # type: ignore[import-untyped]

        return parse_qwen35(
            self._tokenizer,
            token_ids,
            stop_ids=self._stop_ids,
            think_id=_id(self._tokenizer, "<think>"),
            think_end_id=_id(self._tokenizer, "</think>"),
            tool_call_id=self._call,
            tool_call_end_id=self._call_end,
            tools=tools,
        )


class _Harmony:
    """`<|channel|>analysis<|message|>...<|end|>` and its sisters: gpt-oss."""

    MARKS = ("<|return|>", "<|call|>", "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>")

    def __init__(self, tokenizer: ChatTokenizer, marks: dict[str, int]) -> None:
        self._tokenizer = tokenizer
        self._ids = {f"{mark.strip('<|>')}_id": marks[mark] for mark in self.MARKS}

    def parse_response(
        self, token_ids: list[int], *, tools: list[Any] | None, prompt_ids: list[int] | None
    ) -> Any:
        """See `Format.parse_response`. The generation prompt has opened the first message already."""
        from renderers.parsing import parse_gpt_oss

        return parse_gpt_oss(self._tokenizer, [*(prompt_ids or ()), *token_ids], **self._ids)
