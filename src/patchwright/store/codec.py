"""A trajectory as plain rows and back, without loss: the one form that SQLite and Parquet share.

`to_row` gives JSON values shaped exactly like the Parquet schema in `parts`; `pack` compresses them for a
blob in `run.db`. `messages` is JSON text, because its shape is the agent's own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from patchwright.types import (
    Exec,
    Failure,
    Finish,
    Grade,
    GradeState,
    Step,
    TestStatus,
    Trajectory,
    Turn,
    Usage,
)

__all__ = ["from_row", "pack", "to_row", "unpack"]

Row = dict[str, Any]


def pack(trajectory: Trajectory) -> bytes:
    """The trajectory as compressed JSON (ASCII, so that even lone surrogates survive)."""
    return zlib.compress(json.dumps(to_row(trajectory), separators=(",", ":")).encode("ascii"), 1)


def unpack(blob: bytes) -> Trajectory:
    """The trajectory `pack` was given."""
    return from_row(json.loads(zlib.decompress(blob)))


def to_row(trajectory: Trajectory) -> Row:
    """Plain JSON values in the shape of the Parquet schema."""
    return {
        "id": trajectory.id,
        "task_id": trajectory.task_id,
        "group": trajectory.group,
        "exit": trajectory.exit,
        "seconds": trajectory.seconds,
        "patch": trajectory.patch,
        "failure": _failure_row(trajectory.failure),
        "grade": _grade_row(trajectory.grade),
        "turns": [_turn_row(turn) for turn in trajectory.turns],
        "steps": [_step_row(step) for step in trajectory.steps],
        "messages": json.dumps(trajectory.messages, default=_plain),
    }


def from_row(row: Mapping[str, Any]) -> Trajectory:
    """The trajectory a row was made from; columns it does not know are left alone."""
    return Trajectory(
        id=row["id"],
        task_id=row["task_id"],
        group=row["group"],
        exit=row["exit"],
        seconds=row["seconds"],
        patch=row["patch"],
        failure=Failure(**row["failure"]) if row["failure"] else None,
        grade=_grade(row["grade"]) if row["grade"] else None,
        turns=tuple(_turn(turn) for turn in row["turns"]),
        steps=tuple(_step(step) for step in row["steps"]),
        messages=tuple(json.loads(row["messages"])),
    )


def _plain(value: object) -> object:
    """Messages may hold read-only mappings."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a message holds {type(value).__name__}, which is not a JSON value")


def _turn_row(turn: Turn) -> Row:
    return {
        "id": turn.id,
        "parent": turn.parent,
        "prompt_ids": turn.prompt_ids,
        "completion_ids": turn.completion_ids,
        "logprobs": turn.logprobs,
        "version": turn.version,
        "versions": turn.versions,
        "finish": turn.finish.value,
        "text": turn.text,
        "train": turn.train,
        "drift": turn.drift,
        "usage": asdict(turn.usage) if turn.usage else None,
        "started": turn.started,
        "seconds": turn.seconds,
    }


def _turn(row: Row) -> Turn:
    lists = {name: tuple(row[name]) for name in ("prompt_ids", "completion_ids", "logprobs", "versions")}
    # Rows written before drift was named, or an API's tokens counted, have neither.
    drift, usage = tuple(row.get("drift") or ()), row.get("usage")
    more = {"drift": drift, "usage": Usage(**usage) if usage else None, "finish": Finish(row["finish"])}
    return Turn(**(row | lists | more))


def _step_row(step: Step) -> Row:
    run = step.exec
    return {
        "command": step.command,
        "turn": step.turn,
        "code": run.code,
        "output": run.output,
        "timed_out": run.timed_out,
        "omitted": run.omitted,
        "seconds": run.seconds,
    }


def _step(row: Row) -> Step:
    run = {name: value for name, value in row.items() if name not in ("command", "turn")}
    return Step(command=row["command"], turn=row["turn"], exec=Exec(**run))


def _failure_row(failure: Failure | None) -> Row | None:
    if failure is None:
        return None
    return {"kind": failure.kind, "message": failure.message, "stage": failure.stage}


def _grade_row(grade: Grade | None) -> Row | None:
    if grade is None:
        return None
    return {
        "resolved": grade.resolved,
        "state": grade.state.value,
        "reason": grade.reason,
        "tests": [{"test": name, "status": status.value} for name, status in grade.tests.items()],
        "scores": [{"name": name, "score": score} for name, score in grade.scores.items()],
        "turn_scores": grade.turn_scores,
        "findings": grade.findings,
        "seconds": grade.seconds,
    }


def _grade(row: Row) -> Grade:
    return Grade(
        state=_state(row),
        reason=row["reason"],
        tests={item["test"]: TestStatus(item["status"]) for item in row["tests"]},
        scores={item["name"]: item["score"] for item in row["scores"]},
        turn_scores=tuple(row["turn_scores"]),
        findings=tuple(row["findings"]),
        seconds=row["seconds"],
    )


def _state(row: Row) -> GradeState:
    """Rows written before grades had a state say only whether they are resolved."""
    if row.get("state"):
        return GradeState(row["state"])
    return GradeState.RESOLVED if row["resolved"] else GradeState.TESTS_FAILED
