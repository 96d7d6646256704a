"""Somebody's predictions, in the formats there are: one (instance id, patch) pair each.

- SWE-bench: JSON lines, a JSON list, or a JSON map by id, of `{"instance_id", "model_patch"}`;
- mini-swe-agent's `preds.json` is such a map;
- OpenHands' `output.jsonl` has the patch in `test_result.git_patch`;
- the words `gold` (the tasks' own solutions) and `empty`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwright.config import nearest
from patchwright.errors import ConfigError
from patchwright.types import Task

__all__ = ["Prediction", "matched", "read_predictions"]

_SHAPE = '{"instance_id": "...", "model_patch": "..."}'


@dataclass(frozen=True, slots=True)
class Prediction:
    """One patch for one instance. Example: `Prediction("toy-1", "diff --git ...", "preds.jsonl line 1")`"""

    instance_id: str
    patch: str | None
    """None when the agent gave none."""
    where: str
    model: str = ""


def read_predictions(source: str, tasks: Sequence[Task]) -> list[Prediction]:
    """The predictions of a file, or the `gold` and `empty` ones of all tasks.

    Raises ConfigError that names the line or entry and what is expected there.
    """
    file = Path(source)
    if source in ("gold", "empty") and not file.exists():
        return [Prediction(task.id, task.solution if source == "gold" else "", source) for task in tasks]
    rows = list(_rows(file))
    if not rows:
        raise ConfigError(f"{file} holds no predictions; write {_SHAPE}, one a line")
    return [_prediction(where, name, row) for where, name, row in rows]


def matched(predictions: Sequence[Prediction], tasks: Mapping[str, Task], *, skip: bool) -> list[Prediction]:
    """The predictions there are tasks for. Raises ConfigError for the first other one unless `skip`."""
    found = []
    for prediction in predictions:
        if prediction.instance_id in tasks:
            found.append(prediction)
        elif not skip:
            close = nearest(prediction.instance_id, list(tasks))
            hint = f"did you mean {close!r}?" if close else "pass --skip-unknown to leave such ones out"
            raise ConfigError(
                f"{prediction.where}: the tasks file has no task {prediction.instance_id!r}; {hint}"
            )
    return found


def _rows(file: Path) -> Iterator[tuple[str, str, Any]]:
    """Where a row stands, the id its place gives it ("" when none), the row."""
    text = _text(file)
    whole = _whole(text)
    if isinstance(whole, list):
        yield from ((f"{file} entry {number}", "", row) for number, row in enumerate(whole, 1))
    elif isinstance(whole, dict) and "instance_id" in whole:
        yield f"{file} line 1", "", whole
    elif isinstance(whole, dict):
        yield from ((f"{file} entry {name!r}", name, row) for name, row in whole.items())
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield f"{file} line {number}", "", _json(line, f"{file} line {number}")


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except FileNotFoundError:
        raise ConfigError(f"there is no predictions file {file}; give a file, `gold` or `empty`") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}; give a predictions file") from None


def _whole(text: str) -> Any:
    """The text as one JSON value; None when it is lines."""
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error}); expected {_SHAPE}") from None


def _prediction(where: str, name: str, row: Any) -> Prediction:
    if isinstance(row, str) and name:
        return Prediction(name, row, where)
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: expected {_SHAPE}, this is {type(row).__name__}")
    identity = row.get("instance_id", name)
    if not isinstance(identity, str) or not identity:
        raise ConfigError(f"{where}: `instance_id` is missing; expected {_SHAPE}")
    model = row.get("model_name_or_path")
    return Prediction(identity, _patch(where, row), where, model if isinstance(model, str) else "")


def _patch(where: str, row: Mapping[str, Any]) -> str | None:
    result = row.get("test_result")
    held: Mapping[str, Any] = result if isinstance(result, dict) else row
    for field in ("model_patch", "git_patch"):
        if field in held:
            patch = held[field]
            if patch is not None and not isinstance(patch, str):
                raise ConfigError(
                    f"{where}: `{field}` is {type(patch).__name__}; it should be a diff or null"
                )
            return patch
    raise ConfigError(f"{where}: `model_patch` is missing; expected {_SHAPE}")
