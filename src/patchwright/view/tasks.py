"""The table of tasks: what each is worth, and how often each version of the weights resolves it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError
from patchwright.store import Run
from patchwright.tasks.files import load_tasks
from patchwright.types import Task
from patchwright.view.entries import OUTCOMES, listed
from patchwright.view.shelf import Book, Tally

__all__ = ["TaskRows", "files_of", "rows_of", "tasks_of"]

Json = dict[str, Any]

_ORDERS = ("id", "trust", "attempts", "rate", "void", "ungraded")
_PROMPT = 300
"""Characters of a task's text in a table."""


def tasks_of(book: Book) -> dict[str, Task]:
    """The tasks of a run by id, as far as their files are still there."""
    found: dict[str, Task] = {}
    for file in files_of(book):
        try:
            found |= {task.id: task for task in load_tasks(file)}
        except ConfigError:  # the attempts are shown all the same
            continue
    return found


def files_of(book: Book) -> list[Path]:
    """The files that hold a run's tasks."""
    if not isinstance(book, Run):
        return []
    named = book.config.get("tasks")
    more = [Path(named)] if isinstance(named, str) and named.endswith(".jsonl") else []
    return sorted((book.path / "tasks").glob("*.jsonl")) + [file for file in more if file.is_file()]


def rows_of(tally: Tally, tasks: dict[str, Task], stage: str) -> list[Json]:
    """A row a task: its trust, its attempts, and by version `[version, resolved, judged, void, ungraded]`."""
    counts: dict[str, dict[int, dict[str, int]]] = defaultdict(
        lambda: defaultdict(lambda: dict.fromkeys(OUTCOMES, 0))
    )
    for in_stage, _, version, task, outcome, many in tally:
        if stage in ("", in_stage):
            counts[task][version][listed(in_stage, outcome)] += many
    cells = {task: {v: _cell(**found) for v, found in row.items()} for task, row in counts.items()}
    return [_row(name, versions, tasks.get(name)) for name, versions in cells.items()]


def _cell(resolved: int, unresolved: int, void: int, ungraded: int) -> list[int]:
    return [resolved, resolved + unresolved, void, ungraded]


def _row(name: str, versions: dict[int, list[int]], task: Task | None) -> Json:
    resolved, judged, void, ungraded = (sum(cell[place] for cell in versions.values()) for place in range(4))
    return {
        "id": name,
        "trust": task.trust if task else "",
        "prompt": task.prompt[:_PROMPT] if task else "",
        "fail_to_pass": len(task.tests.fail_to_pass) if task else None,
        "attempts": judged + void + ungraded,
        "resolved": resolved,
        "void": void,
        "ungraded": ungraded,
        "rate": resolved / judged if judged else None,
        "versions": [[version, *versions[version]] for version in sorted(versions)],
    }


class TaskRows:
    """Rows, searched, ordered and cut into pages."""

    def __init__(self, rows: list[Json]) -> None:
        self._rows = rows

    def page(self, text: str, order: str, window: tuple[int, int]) -> Json:
        """The rows of a window (first, how many). Raises ValueError for an unknown column."""
        column, words = order.removeprefix("-"), text.lower()
        if column not in _ORDERS:
            raise ValueError(f"no column {column!r} to order by")
        found = [row for row in self._rows if words in row["id"].lower() or words in row["prompt"].lower()]
        found.sort(key=lambda row: row["id"])
        lacking = [row for row in found if row[column] is None]
        there = [row for row in found if row[column] is not None]
        there.sort(key=lambda row: row[column], reverse=order.startswith("-"))
        return {"total": len(found), "rows": (there + lacking)[window[0] : window[0] + window[1]]}
