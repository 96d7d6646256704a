"""What must not be trained on: a benchmark that the user names, and published test sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.task_import import benchmark_tasks
from patchwright.store import Run
from patchwright.tasks.files import load_tasks
from patchwright.tasks.select import refuse_ids, refuse_overlap, refuse_published
from patchwright.types import Task

__all__ = ["refuse_held_out", "refuse_held_out_ids"]


def refuse_held_out(tasks: Sequence[Task], line: LineConfig, more: Iterable[Task] = ()) -> None:
    """Raises ConfigError for tasks of the benchmark or of `more`, and where neither is named, for those of a
    published test set; unless `line.allow_overlap` is set."""
    kept_out = [*benchmark_tasks(line.benchmark), *more]
    refuse_overlap(tasks, kept_out, allow=line.allow_overlap)
    if not kept_out:
        refuse_published(tasks, allow=line.allow_overlap)


def refuse_held_out_ids(ids: Iterable[str], line: LineConfig, runs: Sequence[Path] = ()) -> None:
    """As `refuse_held_out` for trajectories, which know their tasks' ids; where the tasks were imported from
    is read in the task files of the runs they are of, where those are still there."""
    names = set(ids)
    refuse_ids(names, benchmark_tasks(line.benchmark), allow=line.allow_overlap)
    if not line.benchmark and not line.allow_overlap:
        for run in runs:
            refuse_published(_tasks_of(run, names))


def _tasks_of(path: Path, names: Collection[str]) -> list[Task]:
    with Run.open(path) as run:
        file = Path(str(run.config.get("tasks") or "."))
    return [task for task in load_tasks(file) if task.id in names] if file.is_file() else []
