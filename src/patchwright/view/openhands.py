"""OpenHands' events as a conversation: those of `output.jsonl` (an `action` or an `observation` each) and
those of its SDK (a `kind` each)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from patchwright.types import Exec, Step

__all__ = ["messages_of", "steps_of"]

Json = Mapping[str, Any]

_QUIET = ("change_agent_state", "agent_state_changed", "null", "system_prompt")
"""Events in which nobody says anything."""


def messages_of(events: Sequence[Json]) -> tuple[Json, ...]:
    """What was said, called and answered, as chat messages."""
    found = (_message(event) for event in events)
    return tuple(message for message in found if message is not None)


def _message(event: Json) -> Json | None:
    if "kind" in event:
        return _of_sdk(event)
    if "observation" in event:
        return None if event["observation"] in _QUIET else _tool(event["observation"], event.get("content"))
    action = event.get("action")
    if not isinstance(action, str) or action in _QUIET:
        return None
    given = _mapping(event.get("args"))
    text = _text(given.get("content")) or _text(given.get("thought")) or _text(event.get("message"))
    if action in ("message", "system"):
        role = {"user": "user", "agent": "assistant"}.get(str(event.get("source")), "system")
        return {"role": role if action == "message" else "system", "content": text}
    rest = {k: v for k, v in given.items() if k != "thought" and v not in (None, "", [], {}, False)}
    return _said(text, action, rest, "")


def _of_sdk(event: Json) -> Json | None:
    kind = event["kind"]
    if kind == "MessageEvent":
        message = _mapping(event.get("llm_message"))
        return {"role": str(message.get("role", "user")), "content": _text(message.get("content"))}
    if kind == "SystemPromptEvent":
        return {"role": "system", "content": _text(event.get("system_prompt"))}
    if kind == "ActionEvent":
        rest = {k: v for k, v in _mapping(event.get("action")).items() if k != "kind" and v is not None}
        name = str(event.get("tool_name", "tool"))
        return _said(_text(event.get("thought")), name, rest, _text(event.get("reasoning_content")))
    if kind == "ObservationEvent":
        seen = _mapping(event.get("observation"))
        return _tool(event.get("tool_name"), seen.get("content", seen.get("output")))
    return _tool(kind, event.get("error")) if event.get("error") else None


def _said(text: str, name: str, given: Json, thinking: str) -> Json:
    call = {"function": {"name": name, "arguments": json.dumps(given, ensure_ascii=False, default=str)}}
    more = {"reasoning_content": thinking} if thinking else {}
    return {"role": "assistant", "content": text, "tool_calls": [call], **more}


def _tool(name: Any, content: Any) -> Json:
    return {"role": "tool", "name": str(name or ""), "content": _text(content)}


def steps_of(events: Sequence[Json]) -> tuple[Step, ...]:
    """The commands that were run, with what they gave."""
    return tuple(_step(event) for event in events if event.get("observation") == "run")


def _step(event: Json) -> Step:
    extras = _mapping(event.get("extras"))
    code = _mapping(extras.get("metadata")).get("exit_code", extras.get("exit_code"))
    run = Exec(code=code if isinstance(code, int) else 0, output=_text(event.get("content")))
    return Step(command=_text(extras.get("command")), exec=run)


def _mapping(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}


def _text(content: Any) -> str:
    """Text, or the texts of a list of parts."""
    if isinstance(content, list):
        return "\n".join(_text(part) for part in content)
    if isinstance(content, Mapping):
        return str(content.get("text", ""))
    return "" if content is None else str(content)
