"""One attempt -> slime's samples, and from a sample back to what the attempt's reward depends on.

An attempt is a list of samples, never an empty one: one for each row `patchwright.train.samples` makes of it,
or, step-wise, one for each turn. They share a `rollout_id`, by which slime counts them as one attempt. What
the reward needs of the attempt (its verdict, scores, tokens per turn) travels in `metadata["patchwright"]`,
as plain JSON, so that a debug dump of slime's can be read without Patchwright.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from patchwright.recipes.data.rows import Row, slime_response, slime_status
from patchwright.train.samples import samples
from patchwright.types import Failure, Grade, GradeState, Sample, Trajectory, Turn

__all__ = ["KEY", "SlimeSample", "aborted", "attempt_of", "fill", "is_void", "rows", "turn_of"]

KEY = "patchwright"
"""Of a sample's metadata."""

Decode = Callable[[Sequence[int]], str]


class SlimeSample(Protocol):
    """The fields of slime's `Sample` (`slime/utils/types.py`) that are read or written here."""

    group_index: int | None
    index: int | None
    rollout_id: int | None
    tokens: list[int]
    response: str
    response_length: int
    label: str | None
    reward: float | dict[str, Any] | None
    loss_mask: list[int] | None
    weight_versions: list[str]
    rollout_log_probs: list[float] | None
    remove_sample: bool
    status: Any
    metadata: dict[str, Any]
    custom_rm_path: str | None
    session_id: str | None
    non_generation_time: float
    prefix_cache_info: Any
    Status: Any


# --- forth ------------------------------------------------------------------------------------

_NOTHING: Row = {
    "tokens": [0, 0],
    "response_length": 1,
    "loss_mask": [0],
    "rollout_log_probs": [0.0],
}
"""Of an attempt that trains nothing: slime takes the last `response_length` tokens of a sample, and the last
none are all of them, so there is one, masked."""


def rows(trajectory: Trajectory, *, step_wise: bool) -> list[tuple[int | None, Row]]:
    """The token fields of an attempt's samples, at least one, each with its turn where it is of one only."""
    parts = _by_turn(trajectory) if step_wise else [(None, row) for row in samples(trajectory)]
    return [(turn, slime_response(row)) for turn, row in parts] or [(None, dict(_NOTHING))]


def _by_turn(trajectory: Trajectory) -> list[tuple[int | None, Sample]]:
    """For each turn that trains, what it was told and what it said. slime has one advantage for a sample, and
    here every turn has its own; the price is that a context is trained once for each turn that saw it."""
    found: list[tuple[int | None, Sample]] = []
    for turn in trajectory.turns:
        if turn.train and turn.completion_ids:
            until = trajectory.turns[: turn.id + 1]
            alone = tuple(replace(other, train=other.id == turn.id) for other in until)
            found += [(turn.id, row) for row in samples(replace(trajectory, turns=alone))]
    return found


def fill(
    base: SlimeSample, trajectory: Trajectory, decode: Decode, *, step_wise: bool, one: bool = False
) -> list[SlimeSample]:
    """The samples of a graded attempt: `base` itself and copies of it. `one` gives the last of them alone,
    for evaluations, which count samples."""
    parts = rows(trajectory, step_wise=step_wise)
    parts = parts[-1:] if one else parts
    told = _digest(trajectory)
    status = base.Status(slime_status(trajectory))
    idle = max(0.0, trajectory.seconds - sum(turn.seconds for turn in trajectory.turns))
    made = []
    for part, (turn, fields) in enumerate(parts):
        sample = base if part == 0 else copy.deepcopy(base)
        _set(sample, fields, decode)
        sample.status = status
        sample.remove_sample = not any(fields["loss_mask"])
        sample.weight_versions = _versions(trajectory, turn)
        sample.non_generation_time = idle
        sample.metadata = {**(sample.metadata or {}), KEY: {**told, "part": part, "turn": turn}}
        made.append(sample)
    return made


def aborted(base: SlimeSample, reason: str) -> list[SlimeSample]:
    """A void attempt: one sample that trains nothing, says why, and is in no statistics of its group."""
    _set(base, _NOTHING, lambda _: "")
    base.status = base.Status.ABORTED
    base.remove_sample = True
    base.weight_versions = []
    base.metadata = {**(base.metadata or {}), KEY: {"task_id": base.label, "void": reason}}
    return [base]


def _set(sample: SlimeSample, fields: Row, decode: Decode) -> None:
    sample.rollout_id = sample.index if sample.rollout_id is None else sample.rollout_id
    sample.tokens = list(fields["tokens"])
    sample.response_length = fields["response_length"]
    sample.loss_mask = list(fields["loss_mask"])
    sample.rollout_log_probs = list(fields["rollout_log_probs"])
    sample.response = decode(sample.tokens[-sample.response_length :]) if any(sample.loss_mask) else ""
    sample.reward = None


def _versions(trajectory: Trajectory, turn: int | None) -> list[str]:
    """Of the weights that sampled, call by call, as slime appends them."""
    called = trajectory.turns if turn is None else trajectory.turns[turn : turn + 1]
    return [str(one.version) for one in called if one.completion_ids]


def _digest(trajectory: Trajectory) -> dict[str, Any]:
    grade = trajectory.grade or Grade(state=GradeState.ENV_BROKEN)
    return {
        "task_id": trajectory.task_id,
        "attempt": trajectory.id,
        "state": grade.state.value,
        "reason": grade.reason,
        "exit": trajectory.exit,
        "findings": list(grade.findings),
        "scores": dict(grade.scores),
        "turn_scores": list(grade.turn_scores),
        "sampled": [len(turn.completion_ids) if turn.train else 0 for turn in trajectory.turns],
    }


# --- back -------------------------------------------------------------------------------------


def is_void(sample: SlimeSample) -> bool:
    """Whether the machinery failed the attempt, or slime broke it off."""
    return bool(sample.status == sample.Status.ABORTED)


def attempt_of(sample: SlimeSample) -> Trajectory | None:
    """What the attempt's reward depends on, without text and tokens; None for a sample made by others."""
    told: Mapping[str, Any] = (sample.metadata or {}).get(KEY) or {}
    if "void" in told:
        failure = Failure(kind="InfraError", message=str(told["void"]), stage="agent")
        return Trajectory(id="", task_id=str(told["task_id"]), failure=failure)
    if "state" not in told:
        return None
    grade = Grade(
        state=GradeState(told["state"]),
        scores=told["scores"],
        turn_scores=tuple(told["turn_scores"]),
        findings=tuple(told["findings"]),
    )
    turns = tuple(_turn(at, count) for at, count in enumerate(told["sampled"]))
    return Trajectory(
        id=told["attempt"], task_id=told["task_id"], turns=turns, exit=told["exit"], grade=grade
    )


def _turn(at: int, count: int) -> Turn:
    return Turn(id=at, prompt_ids=(), completion_ids=(0,) * count, logprobs=(0.0,) * count, train=count > 0)


def turn_of(sample: SlimeSample) -> int | None:
    """The turn a sample is of, step-wise."""
    found = (sample.metadata or {}).get(KEY, {}).get("turn")
    return None if found is None else int(found)
