"""Kinds of rows: how each is recognised, and what makes a task of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from patchwright.config import nearest
from patchwright.errors import ConfigError
from patchwright.tasks.files import located, task_from
from patchwright.tasks.sources.bench import bench_task, raw_task
from patchwright.tasks.sources.folders import harbor_task
from patchwright.tasks.sources.r2e import r2e_task
from patchwright.tasks.sources.read import Source, read
from patchwright.tasks.sources.rows import Row
from patchwright.tasks.sources.seed import from_seed, is_seed
from patchwright.tasks.sources.smith import smith_task
from patchwright.tasks.specs.table import swegym
from patchwright.types import Task

__all__ = ["KINDS", "Imported", "build", "import_tasks", "kind_of"]

_BUILD: Mapping[str, Callable[[Row], Task]] = {
    **{
        kind: partial(bench_task, kind=kind)
        for kind in ("swe-bench", "swe-gym", "swe-rebench", "swe-rebench-v2")
    },
    "swe-smith": smith_task,
    "r2e": r2e_task,
    "raw": raw_task,
    "harbor": harbor_task,
    "terminal-bench": harbor_task,
}
KINDS = tuple(_BUILD)
"""What `--kind` takes. Lines of the seeds' form and of our own are known without."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What a source held."""

    tasks: list[Task]
    left_out: list[str]
    """A sentence for each row that could not become a task."""


def import_tasks(source: str, *, kind: str = "", split: str = "", skip: bool = False) -> Imported:
    """Every task of a source; see `read` for what a source is.

    Raises ConfigError for the first row that cannot become a task, unless such rows are to be left out
    (`skip`), and for a source without rows.
    """
    _check(kind)
    found = Imported([], [])
    for item in read(source, split):
        try:
            found.tasks.append(_task(item, _label(source), kind, split))
        except ConfigError as error:
            if not skip:
                raise
            found.left_out.append(str(error))
    if not found.tasks and not found.left_out:
        raise ConfigError(f"{source} holds no rows")
    return found


def kind_of(row: Mapping[str, Any], source: str, where: str) -> str:
    """The kind of a row, by its columns; SWE-Gym's are SWE-bench's, so there the source's name and the
    repository decide. Raises ConfigError when no kind has such columns."""
    for kind, fits in _SIGNS:
        if fits(row):
            return kind
    if not {"instance_id", "repo", "problem_statement"} <= row.keys():
        columns = ", ".join(sorted(map(str, row))[:12])
        raise ConfigError(f"{where}: no known kind of row has the columns {columns}; {_choose()}")
    if "FAIL_TO_PASS" not in row:
        return "raw"
    name = source.lower().replace("_", "-")
    told = [kind for kind in ("swe-gym", "swe-rebench", "swe-bench") if kind in name]
    if told:
        return told[0]
    return "swe-gym" if str(row["repo"]).lower() in swegym() else "swe-bench"


def _smith(row: Mapping[str, Any]) -> bool:
    return str(row.get("repo", "")).startswith("swesmith/") or "swesmith" in str(row.get("image_name", ""))


_SIGNS: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("r2e", lambda row: "parsed_commit_content" in row),
    ("swe-smith", _smith),
    ("harbor", lambda row: "runner" in row and "config" in row),
    ("swe-rebench-v2", lambda row: bool(row.get("install_config")) and "language" in row),
    ("swe-rebench", lambda row: bool(row.get("install_config"))),
)


def build(row: Mapping[str, Any], source: str, where: str, kind: str = "") -> Task:
    """The task of one row, with where it is from and the row itself in `meta`.

    Raises ConfigError, with row and id, when the row cannot become a task.
    """
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: a row is a JSON object, this is {type(row).__name__}")
    kind = kind or kind_of(row, source, where)
    task = _BUILD[kind](Row(row, where))
    return dataclasses.replace(task, meta={"source": source, "kind": kind, "row": dict(row)})


def _task(item: Source, source: str, kind: str, split: str) -> Task:
    if is_seed(item.row):
        return from_seed(item.row, item.where, lambda row, name, where: build(row, name, where, kind))
    if {"id", "prompt", "tests"} <= item.row.keys():
        folder = Path(item.where.rpartition(" row ")[0]).parent
        return located(task_from(json.dumps(item.row), item.where), folder)
    task = build(item.row, source, item.where, kind or item.kind)
    return dataclasses.replace(task, meta={**task.meta, "split": split}) if split else task


def _label(source: str) -> str:
    path = Path(source).expanduser()
    return path.stem if path.is_file() else path.resolve().name if path.is_dir() else source


def _check(kind: str) -> None:
    if kind and kind not in _BUILD:
        close = nearest(kind, KINDS)
        raise ConfigError(
            f"no kind {kind!r} of rows; " + (f"did you mean {close!r}?" if close else _choose())
        )


def _choose() -> str:
    return f"give --kind, one of {', '.join(KINDS)}"
