"""An attempt as text for whoever judges it: which messages belong to which turn, by turn id.

Turns are what was sampled, messages what the agent made of it; a side call has no message, a context policy
drops some, a reply that could not be run has an answer but no command. So nothing here goes by position: a
turn is found by what it said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patchwright.gateway.drift import Drift
from patchwright.types import Trajectory, Turn

__all__ = [
    "Message",
    "StepView",
    "content_of",
    "issue_of",
    "main_turns",
    "shorten",
    "spans",
    "step_views",
    "submit_turn",
]

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepView:
    """One turn of an attempt and what came back.

    Example: `StepView(turn=3, action="THOUGHT: ...", result="<returncode>0</returncode>...")`
    """

    turn: int
    """`Turn.id`."""
    action: str
    result: str | None
    """None when nothing came back: the attempt ended there, or has not got further."""


def content_of(message: Message) -> str:
    """A message's text and tool calls, whatever form the agent gave them."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        parts = [str(part.get("text", part)) if isinstance(part, Mapping) else str(part) for part in content]
    for number, call in enumerate(message.get("tool_calls") or (), start=1):
        function = call.get("function", call) if isinstance(call, Mapping) else call
        parts.append(f"### Tool call {number}\n{json.dumps(function, default=dict, ensure_ascii=False)}")
    return "\n".join(part for part in parts if part)


def shorten(text: str, limit: int) -> str:
    """Head and tail of a long text, about `limit` characters in all; lone surrogates replaced."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def issue_of(messages: Sequence[Message]) -> str:
    """What the attempt was asked: the first message that is neither the system's nor the model's."""
    asked = (m for m in messages if m.get("role") not in ("system", "developer", "assistant"))
    return content_of(next(asked, {}))


def spans(turns: Sequence[Turn], messages: Sequence[Message]) -> dict[int, tuple[int, int]]:
    """Turn id -> (index of its reply among the messages, index after the last answer to it).

    Walks back from the end, where messages and turns agree whatever a context policy has dropped. Side calls
    and turns whose reply is no longer among the messages are left out.
    """
    main = [turn for turn in turns if Drift.SIDE_CALL not in turn.drift]
    found: dict[int, tuple[int, int]] = {}
    end = len(messages)
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") != "assistant":
            continue
        place = next((i for i in range(len(main) - 1, -1, -1) if _said(main[i], messages[index])), None)
        if place is not None:
            found[main[place].id] = (index, end)
            main = main[:place]
        end = index
    return dict(sorted(found.items()))


def _said(turn: Turn, message: Message) -> bool:
    """Whether a message is what the agent got for a turn: stop strings cut it, parsers take calls out."""
    content = message.get("content")
    text = content.strip() if isinstance(content, str) else ""
    if text:
        return text in turn.text
    names = [_name(call) for call in message.get("tool_calls") or ()]
    return all(name in turn.text for name in names)


def _name(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def step_views(turns: Sequence[Turn], messages: Sequence[Message]) -> list[StepView]:
    """The turns that are among the messages, in order; replies that could not be run are steps too."""
    texts = {turn.id: turn.text for turn in turns}
    return [
        StepView(
            turn=turn,
            action=texts[turn],
            result="\n".join(map(content_of, messages[reply + 1 : end])) if end > reply + 1 else None,
        )
        for turn, (reply, end) in spans(turns, messages).items()
    ]


def main_turns(turns: Sequence[Turn]) -> set[int]:
    """Ids of the turns that are no side calls (titles, summaries)."""
    return {turn.id for turn in turns if Drift.SIDE_CALL not in turn.drift}


def submit_turn(trajectory: Trajectory) -> int | None:
    """The turn that submitted, when one did: the last of the main conversation."""
    if trajectory.exit != "submitted":
        return None
    return max(main_turns(trajectory.turns), default=None)
