"""The seeds' JSONL, `{"text", "metadata": {"instance", "data_source"}}`, there and back without loss.

A task keeps the row it was made from in `meta["row"]`, and the rest of its line in `meta["line"]` where that
is not what the row says. A task that is not what its row would become travels whole, in
`metadata.patchwright`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from patchwright.errors import ConfigError
from patchwright.tasks.files import task_from, task_text
from patchwright.types import Task

__all__ = ["from_seed", "is_seed", "row_of", "to_seed"]

_OWN = "patchwright"
_COLUMN = "instance"
Build = Callable[[Mapping[str, Any], str, str], Task]
"""(row, its data source, where it is) -> task, its provenance in `meta`."""


def is_seed(line: Mapping[str, Any]) -> bool:
    """Whether a line is in the seeds' form."""
    metadata = line.get("metadata")
    return isinstance(line.get("text"), str) and isinstance(metadata, dict) and _COLUMN in metadata


def from_seed(line: Mapping[str, Any], where: str, build: Build) -> Task:
    """The task of a line. Raises ConfigError when its instance is no known row."""
    metadata = line["metadata"]
    if isinstance(own := metadata.get(_OWN), dict):
        return task_from(json.dumps(own), where)
    row, source = metadata[_COLUMN], metadata.get("data_source")
    task = build(row, source if isinstance(source, str) else "", where)
    rest = {**line, "metadata": {key: value for key, value in metadata.items() if key != _COLUMN}}
    plain = {"text": row.get("problem_statement"), "metadata": {"data_source": task.meta["source"]}}
    return task if rest == plain else dataclasses.replace(task, meta={**task.meta, "line": rest})


def to_seed(task: Task, build: Build) -> dict[str, Any]:
    """The line of a task."""
    row, source = row_of(task), str(task.meta.get("source", _OWN))
    line = task.meta.get("line") or {"text": task.prompt, "metadata": {"data_source": source}}
    made = {**line, "metadata": {_COLUMN: row, **line["metadata"]}}
    if _made_by(made, build) == task:
        return made
    own = json.loads(task_text(task))
    return {"text": task.prompt, "metadata": {_COLUMN: row, "data_source": source, _OWN: own}}


def _made_by(line: Mapping[str, Any], build: Build) -> Task | None:
    try:
        return from_seed(line, "", build)
    except ConfigError:
        return None


def row_of(task: Task) -> dict[str, Any]:
    """The row a task was made from; of a task of our own, one in the manner of SWE-bench."""
    if isinstance(row := task.meta.get("row"), Mapping):
        return dict(row)
    made = {
        "instance_id": task.id,
        "repo": str(task.meta.get("repo", "")),
        "base_commit": task.base_commit,
        "problem_statement": task.prompt,
        "patch": task.solution,
        "test_patch": task.tests.patch,
        "FAIL_TO_PASS": list(task.tests.fail_to_pass),
        "PASS_TO_PASS": list(task.tests.pass_to_pass),
        "eval_script": task.tests.command,
        "log_parser": task.tests.parser,
    }
    return made if task.image == "host" else {**made, "image_name": task.image}
