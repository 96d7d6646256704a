"""One attempt -> the rows of a data set. Every form has a fixed set of columns, so that files of different
runs can be read as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchwright.recipes.attempt_text import spans
from patchwright.recipes.data.conversation import Message, Unfit, plain
from patchwright.recipes.data.swegym import as_text, judged, single_calls
from patchwright.train.samples import samples
from patchwright.types import Outcome, Sample, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMS", "Form", "Row", "schema", "slime_response", "slime_status"]

Row = dict[str, Any]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Form:
    """A form of rows: how an attempt becomes some, and the columns by name -> type (see `schema`)."""

    rows: Callable[[Trajectory, str, Tools], Iterable[Row]]
    """Takes the attempt, the name of its run, and the tools it had. Raises Unfit."""
    columns: Mapping[str, str]


# --- sft --------------------------------------------------------------------------------------


def _messages(trajectory: Trajectory, run: str, tools: Tools) -> Iterable[Row]:
    yield {
        "messages": _said(trajectory),
        "tools": json.dumps(list(tools)) if tools else "",  # text, so that all tools share a schema
        **_about(trajectory, run),
    }


def _swegym_sft(trajectory: Trajectory, run: str, tools: Tools) -> Iterable[Row]:
    yield {"messages": as_text(single_calls(_said(trajectory)), tools)}


def _said(trajectory: Trajectory) -> list[Message]:
    messages = plain(trajectory.messages)
    if not any(message["role"] == "assistant" for message in messages):
        raise Unfit("its conversation was not recorded")
    return messages


def _about(trajectory: Trajectory, run: str) -> Row:
    return {
        "task_id": trajectory.task_id,
        "trajectory_id": trajectory.id,
        "run": run,
        "resolved": trajectory.outcome is Outcome.RESOLVED,
        "turns": _turns(trajectory),
        "exit": trajectory.exit,
        "patch": _clean(trajectory.patch),
    }


def _turns(trajectory: Trajectory) -> int:
    recorded = len(trajectory.turns)
    return recorded or sum(message.get("role") == "assistant" for message in trajectory.messages)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


# --- verifier, prm ----------------------------------------------------------------------------


def _verifier(trajectory: Trajectory, run: str, tools: Tools) -> Iterable[Row]:
    good = trajectory.outcome is Outcome.RESOLVED
    yield {
        "messages": judged(_said(trajectory), good),
        "task_id": trajectory.task_id,
        "trajectory_id": trajectory.id,
        "run": run,
        "label": "YES" if good else "NO",
    }


def _prm(trajectory: Trajectory, run: str, tools: Tools) -> Iterable[Row]:
    """A row for each turn that was judged and is in the conversation: what came before it, what it said."""
    scores = trajectory.grade.turn_scores if trajectory.grade else ()
    if not any(score is not None for score in scores):
        raise Unfit("none of its turns was judged")
    messages = _said(trajectory)
    for turn, (start, _) in spans(trajectory.turns, trajectory.messages).items():
        score = scores[turn] if turn < len(scores) else None
        if score is not None:
            yield {
                "messages": messages[:start],
                "step": messages[start],
                "score": float(score),
                "turn": turn,
                "task_id": trajectory.task_id,
                "trajectory_id": trajectory.id,
                "run": run,
                "resolved": trajectory.outcome is Outcome.RESOLVED,
            }


# --- slime ------------------------------------------------------------------------------------


def _slime(trajectory: Trajectory, run: str, tools: Tools) -> Iterable[Row]:
    """The fields of slime's `Sample`: response tokens are those from the first trained one to the end, and
    masks and log-probs are as long as they. Rows of one attempt share a `rollout_id`."""
    found = samples(trajectory)
    if not found:
        raise Unfit("its tokens were not recorded")
    reward = 1.0 if trajectory.outcome is Outcome.RESOLVED else -1.0
    for part, sample in enumerate(found):
        yield {
            "group": trajectory.group or trajectory.task_id,
            "rollout": trajectory.id,
            "prompt": _prompt(trajectory),
            **slime_response(sample),
            "response": _clean("".join(turn.text for turn in trajectory.turns)),
            "reward": reward,
            "status": slime_status(trajectory),
            "metadata": {"task_id": trajectory.task_id, "run": run, "exit": trajectory.exit, "part": part},
        }


_CUT = ("max_turns", "context_full", "budget", "time_limit")
"""Exits of an attempt that had no more room or time."""


def _prompt(trajectory: Trajectory) -> list[Message]:
    messages = plain(trajectory.messages)
    first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    return messages[:first]


def slime_status(trajectory: Trajectory) -> str:
    """`truncated` or `completed`: a value of slime's `Sample.Status`."""
    return "truncated" if trajectory.exit in _CUT else "completed"


def slime_response(sample: Sample) -> Row:
    """The fields of slime's `Sample` that are of tokens; the sample trains at least one."""
    first = next(at for at, weight in enumerate(sample.weights) if weight > 0)
    return {
        "tokens": list(sample.token_ids),
        "response_length": len(sample) - first,
        "loss_mask": [int(weight > 0) for weight in sample.weights[first:]],
        "rollout_log_probs": list(sample.logprobs[first:]),
    }


# --- columns ----------------------------------------------------------------------------------

_ABOUT = {
    "task_id": "text",
    "trajectory_id": "text",
    "run": "text",
    "resolved": "flag",
    "turns": "int",
    "exit": "text",
    "patch": "text",
}
_NAMES = {"task_id": "text", "trajectory_id": "text", "run": "text"}

FORMS: Mapping[str, Mapping[str, Form]] = {
    "sft": {
        "messages": Form(_messages, {"messages": "messages", "tools": "text", **_ABOUT}),
        "swe-gym-openhands": Form(_swegym_sft, {"messages": "texts"}),
    },
    "verifier": {"swe-gym": Form(_verifier, {"messages": "texts", **_NAMES, "label": "text"})},
    "prm": {
        "messages": Form(
            _prm,
            {
                "messages": "messages",
                "step": "message",
                "score": "real",
                "turn": "int",
                **_NAMES,
                "resolved": "flag",
            },
        )
    },
    "slime": {
        "sample": Form(
            _slime,
            {
                "group": "text",
                "rollout": "text",
                "group_index": "int",
                "index": "int",
                "rollout_id": "int",
                "prompt": "messages",
                "tokens": "ids",
                "response": "text",
                "response_length": "int",
                "label": "text",
                "reward": "real",
                "loss_mask": "ids",
                "rollout_log_probs": "reals",
                "status": "text",
                "remove_sample": "flag",
                "metadata": "about",
            },
        )
    },
}
"""What is exported -> its forms by name; the first is the default."""


def schema(columns: Mapping[str, str]) -> pa.Schema:
    """The Parquet schema of a form."""
    import pyarrow as pa

    text = pa.string()
    call = pa.struct(
        {"id": text, "type": text, "function": pa.struct({"name": text, "arguments": text})}.items()
    )
    words = {"role": text, "content": text}
    more = {"name": text, "tool_call_id": text, "reasoning_content": text, "tool_calls": pa.list_(call)}
    message = pa.struct({**words, **more}.items())
    kinds = {
        "text": text,
        "int": pa.int64(),
        "real": pa.float64(),
        "flag": pa.bool_(),
        "ids": pa.list_(pa.int32()),
        "reals": pa.list_(pa.float64()),
        "message": message,
        "messages": pa.list_(message),
        "texts": pa.list_(pa.struct(words.items())),
        "about": pa.struct({"task_id": text, "run": text, "exit": text, "part": pa.int64()}.items()),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
