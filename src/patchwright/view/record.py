"""An attempt as the pages take it: JSON values, nothing left out, nothing made safe to print.

All of it was written by models and boxes. The pages put it into text nodes and spell control characters out;
here it is only put in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwright.recipes.show import said_by
from patchwright.types import Grade, Step, Trajectory, Turn
from patchwright.view.entries import AnyEntry, listed, outcome_of

__all__ = ["entry_row", "record"]

Json = dict[str, Any]

_LONGEST = 2_000_000
"""Characters of one text that are sent; beyond, head and tail of it."""


def entry_row(entry: AnyEntry) -> Json:
    """A line of a list of attempts."""
    return {
        "id": entry.id,
        "task": entry.task_id,
        "group": entry.group,
        "stage": entry.stage,
        "step": entry.step,
        "version": entry.version,
        "outcome": listed(entry.stage, entry.outcome),
        "seconds": round(entry.seconds, 3),
    }


def record(trajectory: Trajectory, entry: AnyEntry | None) -> Json:
    """All of an attempt but its tokens."""
    said = said_by(trajectory)
    failure = trajectory.failure
    return {
        "id": trajectory.id,
        "task": trajectory.task_id,
        "group": trajectory.group,
        "outcome": outcome_of(trajectory),
        "exit": trajectory.exit,
        "seconds": trajectory.seconds,
        "stage": entry.stage if entry else "",
        "step": entry.step if entry else 0,
        "version": entry.version if entry else 0,
        "failure": {"kind": failure.kind, "stage": failure.stage, "message": failure.message}
        if failure
        else None,
        "grade": _grade(trajectory.grade) if trajectory.grade else None,
        "patch": _kept(trajectory.patch),
        "messages": _messages(trajectory, said),
        "steps": [_step(step) for step in trajectory.steps],
        "turns": [_turn(turn, trajectory.grade) for turn in trajectory.turns],
        "unsaid": _unsaid(trajectory, said),
    }


def _messages(trajectory: Trajectory, said: Mapping[int, Turn]) -> list[Json]:
    steps: dict[int, list[int]] = {}
    for number, step in enumerate(trajectory.steps):
        if step.turn is not None:
            steps.setdefault(step.turn, []).append(number)
    return [_message(message, said.get(index), steps) for index, message in enumerate(trajectory.messages)]


def _message(message: Mapping[str, Any], turn: Turn | None, steps: Mapping[int, list[int]]) -> Json:
    content, thinking = _parts(message.get("content"))
    thinking = _text(message.get("reasoning_content") or message.get("reasoning")) or thinking
    if not thinking and turn is not None and "</think>" not in content:
        thinking, _ = _thought(turn.text)
    elif not thinking and message.get("role") == "assistant":
        thinking, content = _thought(content)
    calls = message.get("tool_calls")
    return {
        "role": str(message.get("role", "?")),
        "name": _text(message.get("name")),
        "content": _kept(content),
        "thinking": _kept(thinking.strip()),
        "calls": [_call(call) for call in calls] if isinstance(calls, list | tuple) else [],
        "turn": turn.id if turn else None,
        "steps": steps.get(turn.id, []) if turn else [],
    }


def _thought(text: str) -> tuple[str, str]:
    """What was thought before something was said, and what was said."""
    before, end, after = text.partition("</think>")
    return (before.lstrip().removeprefix("<think>"), after) if end else ("", text)


def _parts(content: Any) -> tuple[str, str]:
    """What a message says, and what it thinks where that is a part of its content."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return _text(content), ""
    said, thought = [], []
    for part in content:
        part = part if isinstance(part, Mapping) else {"text": part}
        if part.get("thinking") or part.get("type") in ("thinking", "reasoning"):
            thought.append(_text(part.get("thinking") or part.get("text")))
        else:
            said.append(_text(part.get("text") or f"[{part.get('type', 'part')}]"))
    return "\n".join(said), "\n".join(thought)


def _call(call: Any) -> Json:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    function = function if isinstance(function, Mapping) else {"name": function}
    return {
        "name": _text(function.get("name")),
        "arguments": _kept(_text(function.get("arguments") or function.get("input"))),
    }


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _kept(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _step(step: Step) -> Json:
    return {
        "command": _kept(step.command),
        "turn": step.turn,
        "code": step.exec.code,
        "output": _kept(step.exec.output),
        "timed_out": step.exec.timed_out,
        "omitted": step.exec.omitted,
        "seconds": step.exec.seconds,
    }


def _turn(turn: Turn, grade: Grade | None) -> Json:
    scores = grade.turn_scores if grade else ()
    sampled = turn.usage.completion if turn.usage else len(turn.completion_ids)
    return {
        "id": turn.id,
        "parent": turn.parent,
        "versions": sorted(set(turn.versions)) or [turn.version],
        "finish": turn.finish.value,
        "text": _kept(turn.text),
        "train": turn.train,
        "drift": list(turn.drift),
        "started": turn.started,
        "seconds": turn.seconds,
        "prompt": turn.usage.prompt if turn.usage else len(turn.prompt_ids),
        "sampled": sampled,
        "logprob": sum(turn.logprobs) / len(turn.logprobs) if turn.logprobs else None,
        "score": scores[turn.id] if turn.id < len(scores) else None,
    }


def _unsaid(trajectory: Trajectory, said: Mapping[int, Turn]) -> list[int]:
    """Turns that are not in the conversation: side calls, what was dropped or sampled again."""
    shown = {turn.id for turn in said.values()}
    return [turn.id for turn in trajectory.turns if turn.id not in shown] if trajectory.messages else []


def _grade(grade: Grade) -> Json:
    return {
        "resolved": grade.resolved,
        "state": grade.state.value,
        "reason": grade.reason,
        "tests": [[name, status.value] for name, status in grade.tests.items()],
        "scores": dict(grade.scores),
        "findings": list(grade.findings),
        "seconds": grade.seconds,
    }
