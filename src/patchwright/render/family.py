"""Which model family of the `renderers` library speaks a folder's chat template, found by probing.

A family is taken only when it renders every probe conversation to the very ids the folder's own template
gives. Names decide nothing: a fine-tune with a changed template falls back to the generic rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from patchwright.errors import AgentError
from patchwright.render.template import ChatTokenizer

__all__ = ["Family", "find_family"]


class Family(Protocol):
    """What is used of a renderer of the `renderers` library."""

    def render_ids(
        self, messages: list[Any], *, tools: list[Any] | None, add_generation_prompt: bool
    ) -> list[int]:
        """Prompt ids of a conversation."""
        ...

    def parse_response(
        self, token_ids: list[int], *, tools: list[Any] | None, prompt_ids: list[int] | None
    ) -> Any:
        """Content, reasoning and tool calls of a completion."""
        ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Any],
        *,
        tools: list[Any] | None,
    ) -> Any | None:
        """All ids of the next prompt, or None."""
        ...

    def get_stop_token_ids(self) -> list[int]:
        """Ids that end a turn."""
        ...


_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
_CALL = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "bash", "arguments": {"command": "ls", "n": 1, "all": True, "deep": {"k": None}}},
}
_SYSTEM = {"role": "system", "content": "Be brief."}
_USER = {"role": "user", "content": "Fix it."}
_PROBES: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    ([_SYSTEM, _USER], None),
    ([_USER, {"role": "assistant", "content": "Done."}, _USER], None),
    (
        [
            _SYSTEM,
            _USER,
            {"role": "assistant", "content": "Look.", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_0", "name": "bash", "content": "mod.py"},
        ],
        [_TOOL],
    ),
)


def find_family(tokenizer: ChatTokenizer) -> Family | None:
    """The family whose rendering equals the template's on every probe, or None.

    A template that knows no tools is left to the generic rules, which do all it needs.
    """
    if "tool" not in tokenizer.template:
        return None
    try:
        wanted = [tokenizer.encode(tokenizer.apply(*probe, add_generation_prompt=True)) for probe in _PROBES]
    except AgentError:
        return None
    return next((family for family in _families(tokenizer) if _renders(family, wanted)), None)


def _families(tokenizer: ChatTokenizer) -> Iterator[Family]:
    """Every family that this tokenizer has the tokens for; `default` is the template itself, left out."""
    # Half a second to import: only where it is used. It ships no type information.
    from renderers import base, config_from_name, create_renderer  # type: ignore[import-untyped]

    base._populate_registry()
    for name in base.RENDERER_REGISTRY:
        if name == "default" or (name == "gpt-oss" and not _speaks_harmony(tokenizer)):
            continue
        with contextlib.suppress(Exception):  # a family says in its own way that this is not its tokenizer
            config = config_from_name(name)
            if config is not None:
                yield create_renderer(tokenizer, _keep_thinking(config))


def _speaks_harmony(tokenizer: ChatTokenizer) -> bool:
    """That family fetches its vocabulary from the network before it looks at the tokenizer."""
    return tokenizer.convert_tokens_to_ids("<|channel|>") not in (None, tokenizer.unk_token_id)


def _keep_thinking(config: Any) -> Any:
    """Bridges keep sampled thinking in the history, where templates drop it: one chain, exact tokens."""
    try:
        return type(config)(thinking_retention="all")
    except ValueError:
        return config


def _renders(family: Family, wanted: list[list[int]]) -> bool:
    try:
        return all(
            family.render_ids(messages, tools=tools, add_generation_prompt=True) == ids
            for (messages, tools), ids in zip(_PROBES, wanted, strict=True)
        )
    except Exception:  # see _families
        return False
