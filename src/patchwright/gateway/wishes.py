"""What a request asks of its reply besides how it is sampled: which tool, what form, how much thinking.

Each wire format writes it in its own way; here it is as chat completions write it, which APIs are told. An
engine that is recorded by token samples freely, so that it can keep some of it only (`refused`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchwright.gateway.bad_request import BadRequest

__all__ = ["Wishes"]

Json = dict[str, Any]
_CHOICES = ("auto", "none", "required")
_KINDS = {"auto": "auto", "any": "required", "none": "none"}
"""Anthropic's words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """Example: `Wishes(tool_choice="required", reasoning_effort="low")`. None: not asked for."""

    tool_choice: str | Json | None = None
    """`auto`, `none`, `required` or `{"type": "function", "function": {"name": ...}}`."""
    parallel_tool_calls: bool | None = None
    response_format: Json | None = None
    reasoning_effort: str | None = None

    @classmethod
    def of_chat(cls, data: Json) -> Wishes:
        """Of a chat completions request. Raises BadRequest."""
        return cls(
            tool_choice=_choice(data.get("tool_choice")),
            parallel_tool_calls=_flag(data.get("parallel_tool_calls")),
            response_format=_format(data.get("response_format"), "response_format"),
            reasoning_effort=_effort(data.get("reasoning_effort"), "reasoning_effort"),
        )

    @classmethod
    def of_responses(cls, data: Json) -> Wishes:
        """Of a Responses request. Raises BadRequest."""
        form = _format(_part(data, "text").get("format"), "text.format")
        if form is not None and form["type"] == "json_schema":
            form = {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}
        return cls(
            tool_choice=_choice(data.get("tool_choice")),
            parallel_tool_calls=_flag(data.get("parallel_tool_calls")),
            response_format=form,
            reasoning_effort=_effort(_part(data, "reasoning").get("effort"), "reasoning.effort"),
        )

    @classmethod
    def of_messages(cls, data: Json) -> Wishes:
        """Of a Messages request. Its `thinking` is a budget, which chat completions cannot say. Raises
        BadRequest."""
        choice, config = _part(data, "tool_choice"), _part(data, "output_config")
        kind = str(choice.get("type", "auto"))
        named = {"type": "function", "name": choice.get("name")} if kind == "tool" else _KINDS.get(kind, kind)
        single = choice.get("disable_parallel_tool_use") is True
        form = _format(config.get("format"), "output_config.format")
        if form is not None:
            form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema")}}
        return cls(
            tool_choice=_choice(named) if choice else None,
            parallel_tool_calls=False if single else None,
            response_format=form,
            reasoning_effort=_effort(config.get("effort"), "output_config.effort"),
        )

    def chat(self, *, tools: bool) -> Json:
        """What an API is told; what it does anyway is left out, for not all know the words. Without `tools`
        there is nothing to choose."""
        about_tools: Json = {
            "tool_choice": None if self.tool_choice == "auto" else self.tool_choice,
            "parallel_tool_calls": False if self.parallel_tool_calls is False else None,
        }
        wishes = {"response_format": self.response_format, "reasoning_effort": self.reasoning_effort}
        given = (about_tools if tools else {}) | wishes
        return {key: value for key, value in given.items() if value is not None}

    def refused(self, *, pinned: bool) -> str:
        """Why an engine that samples freely cannot answer this, in one sentence, or nothing.

        How much a model thinks is, like its temperature, its session's affair where it is `pinned`.
        """
        if self.tool_choice not in (None, "auto", "none"):
            return (
                "`tool_choice` can be auto or none here: what this model samples is recorded as it is, and "
                "no call is forced on it"
            )
        if self.response_format is not None:
            return (
                f"`response_format` {self.response_format['type']} is not kept here: what this model samples "
                "is recorded as it is; ask for the form in a message"
            )
        if self.reasoning_effort is not None and not pinned:
            return "`reasoning_effort` cannot be chosen here: the model's chat template has no word for it"
        return ""


def _part(data: Json, key: str) -> Mapping[str, Any]:
    """An object of the request, empty when it is absent."""
    value = data.get(key)
    if value is not None and not isinstance(value, dict):
        raise BadRequest(f"`{key}` must be an object")
    return value or {}


def _choice(value: Any) -> str | Json | None:
    """A choice as chat completions nest it; Responses have its name beside its type."""
    if value is None or value in _CHOICES:
        return value  # type: ignore[no-any-return]
    if isinstance(value, dict):
        kind = value.get("type")
        inner = value.get(kind) if isinstance(kind, str) else None
        name = (inner if isinstance(inner, dict) else value).get("name")
        if kind in ("function", "custom") and isinstance(name, str) and name:
            return {"type": "function", "function": {"name": name}}
    raise BadRequest("`tool_choice` must be auto, none, required or the name of one function tool")


def _flag(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise BadRequest("`parallel_tool_calls` must be true or false")
    return value


def _format(value: Any, where: str) -> Json | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise BadRequest(f"`{where}` must be an object with a type")
    return None if value["type"] == "text" else value


def _effort(value: Any, where: str) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise BadRequest(f"`{where}` must be a word such as low or high")
    return value
