"""Attempts in other people's files: a seed's `traj.json`, mini-swe-agent's trajectories, OpenHands'
`output.jsonl`, and published sets of conversations. Each file is a book of its attempts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError
from patchwright.recipes.data.conversation import Unfit, text_of
from patchwright.recipes.data.trajectories import conversation, verdict
from patchwright.tasks.sources.read import Source
from patchwright.types import (
    Exec,
    Failure,
    Grade,
    GradeState,
    Step,
    TestStatus,
    Trajectory,
)
from patchwright.view.entries import FileEntry, outcome_of
from patchwright.view.openhands import messages_of, steps_of

__all__ = ["Attempts", "is_foreign", "read_attempt"]

Json = Mapping[str, Any]

_LIST_FILES = ("output.jsonl",)
_PATCHES = ("patch", "model_patch", "git_patch", "submission")


def is_foreign(path: Path) -> bool:
    """Whether a file in a folder is one of attempts, by its name."""
    return path.is_file() and (path.name.endswith(".traj.json") or path.name in _LIST_FILES)


class Attempts:
    """The attempts of one file; rows are found by where they begin, and read when they are looked at."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when the file holds no attempts."""
        self.path = path
        self._places: dict[str, tuple[int, int, int]] = {}
        self._entries: dict[str, FileEntry] = {}
        for number, (start, size, row) in enumerate(_rows(path)):
            self._add(read_attempt(row, f"{path} row {number + 1}", number), start, size, number)
        if not self._entries:
            raise ConfigError(f"{path} holds no attempts")

    def _add(self, trajectory: Trajectory, start: int, size: int, number: int) -> None:
        name = trajectory.id if trajectory.id not in self._entries else f"{trajectory.id}~{number}"
        self._places[name] = (start, size, number)
        self._entries[name] = FileEntry(
            id=name,
            task_id=trajectory.task_id,
            group=trajectory.group,
            outcome=outcome_of(trajectory),
            seconds=trajectory.seconds,
        )

    def page(
        self,
        wanted: Mapping[str, str | int],
        *,
        text: str = "",
        order: str = "stage",
        window: tuple[int, int],
    ) -> tuple[list[FileEntry], int]:
        """As `Run.page`."""
        names = {"grp": "group"}
        found = [
            entry
            for entry in self._entries.values()
            if all(getattr(entry, names.get(key, key)) == value for key, value in wanted.items())
            and (text.lower() in entry.id.lower() or text.lower() in entry.task_id.lower())
        ]
        column = order.removeprefix("-")
        if column not in FileEntry.__slots__:
            raise ValueError(f"no column {column!r} to order by")
        found.sort(key=lambda entry: getattr(entry, column), reverse=order.startswith("-"))
        return found[window[0] : window[0] + window[1]], len(found)

    def tally(self) -> list[tuple[str, int, int, str, str, int]]:
        """As `Run.tally`."""
        return [(e.stage, e.step, e.version, e.task_id, e.outcome, 1) for e in self._entries.values()]

    def entry(self, name: str) -> FileEntry | None:
        """As `Run.entry`."""
        return self._entries.get(name)

    def trajectory(self, name: str) -> Trajectory:
        """As `Run.trajectory`."""
        if name not in self._places:
            raise ConfigError(f"{self.path} has no attempt {name!r}")
        start, size, number = self._places[name]
        with self.path.open("rb") as file:
            file.seek(start)
            row = _parsed(file.read(size), f"{self.path}")
        return read_attempt(row, f"{self.path} row {number + 1}", number)

    def close(self) -> None:
        """There is nothing to close."""


def _rows(path: Path) -> Iterator[tuple[int, int, Json]]:
    """Where each row begins, how long it is, and the row."""
    try:
        with path.open("rb") as file:
            if path.suffix != ".jsonl":
                text = file.read()
                yield 0, len(text), _parsed(text, str(path))
                return
            start = 0
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield start, len(line), _parsed(line, f"{path} row {number}")
                start += len(line)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; check the path") from None


def _parsed(text: bytes, where: str) -> Json:
    try:
        row = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise ConfigError(f"{where} is not JSON; give a run, a traj.json or an output.jsonl") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is no attempt: it is JSON, but no object")
    return row


# --- a row ------------------------------------------------------------------------------------


def read_attempt(row: Json, where: str, number: int) -> Trajectory:
    """The attempt of a row, as far as it tells. Without a verdict it has no grade.

    Raises ConfigError when it holds no conversation, or values that no attempt can have.
    """
    try:
        return _attempt(row, where, number)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{where} is no attempt that can be read: {error}") from None


def _attempt(row: Json, where: str, number: int) -> Trajectory:
    info = row["info"] if isinstance(row.get("info"), Mapping) else {}
    messages, events = _messages(row, where)
    task = _text(row, "instance_id", "task_id") or _text(info, "instance_id") or f"row-{number}"
    error = info.get("error") or row.get("error")
    return Trajectory(
        id=_text(row, "trajectory_id") or f"{task}-{number}",
        task_id=task,
        group=task,
        messages=messages,
        steps=steps_of(events) or _steps(row.get("step_debug")),
        patch=_patch(row, info),
        exit=_text(info, "exit_status") or _text(row, "exit_status"),
        failure=Failure(kind="reported", message=str(error), stage="agent") if error else None,
        grade=_grade(row, info, where),
    )


def _messages(row: Json, where: str) -> tuple[tuple[Json, ...], list[Json]]:
    """The conversation, and the events it was made of where it was written as events."""
    history = row.get("history")
    if isinstance(history, list) and history and not _is_chat(history):
        events = [event for one in history for event in (one if isinstance(one, list) else [one])]
        events = [event for event in events if isinstance(event, dict)]
        return messages_of(events), events
    found = row.get("messages")
    if isinstance(found, list) and (found or "info" in row):  # one that never came to a word is one, too
        return tuple(_said(message) for message in found if isinstance(message, dict)), []
    try:
        return tuple(conversation(Source(dict(row), where))), []
    except Unfit as error:
        raise ConfigError(f"{where}: {error}") from None


def _is_chat(history: list[Any]) -> bool:
    return isinstance(history[0], dict) and ("role" in history[0] or "from" in history[0])


def _said(message: Json) -> Json:
    """A message as it is, whatever its role: mini-swe-agent ends with one of role `exit`."""
    kept = {k: message[k] for k in ("tool_calls", "reasoning_content", "name") if message.get(k)}
    return {"role": str(message.get("role", "?")), "content": text_of(message.get("content")), **kept}


def _steps(told: Any) -> tuple[Step, ...]:
    rows = [row for row in told if isinstance(row, dict)] if isinstance(told, list) else []
    return tuple(_step(row) for row in rows)


def _step(row: Json) -> Step:
    head, tail = str(row.get("output_head", "")), str(row.get("output_tail", ""))
    size = _number(row.get("output_len"))
    omitted = max(0, int(size) - len(head) - len(tail))
    output = head if size <= len(head) else f"{head}\n...\n{tail}"
    run = Exec(
        code=int(_number(row.get("returncode"))),
        output=output,
        timed_out=row.get("ok") is False,
        omitted=omitted,
        seconds=_number(row.get("seconds", row.get("elapsed_s"))),
    )
    return Step(command=str(row.get("action", "")), exec=run, turn=None)


def _patch(row: Json, info: Json) -> str:
    inner = row["test_result"] if isinstance(row.get("test_result"), Mapping) else {}
    return next((text for place in (row, inner, info) if (text := _text(place, *_PATCHES))), "")


def _grade(row: Json, info: Json, where: str) -> Grade | None:
    told = info.get("eval_result")
    told = told if isinstance(told, Mapping) else {}
    resolved = told.get("resolved", verdict(Source(dict(row), where)))
    if resolved is None and info.get("reward") is not None:
        resolved = _number(info["reward"]) > 0
    if resolved is None:
        return None
    tests = told["tests"] if isinstance(told.get("tests"), Mapping) else {}
    known = {status.value for status in TestStatus}
    return Grade(
        state=GradeState.RESOLVED if resolved else GradeState.TESTS_FAILED,
        tests={str(k): TestStatus(v) for k, v in tests.items() if v in known},
        reason=str(told.get("reason") or "as the file says"),
        findings=tuple(map(str, told.get("findings") or ())),
    )


def _text(row: Json, *names: str) -> str:
    return next((row[name] for name in names if isinstance(row.get(name), str) and row[name]), "")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
