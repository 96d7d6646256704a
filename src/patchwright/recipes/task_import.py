"""`patchwright tasks import|export|filter|split|overlap`: tasks in, out, chosen and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from patchwright.errors import ConfigError
from patchwright.recipes.legible import legible
from patchwright.recipes.progress import View
from patchwright.tasks.export import export
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.select import Filter, filter_tasks, overlap, split_tasks
from patchwright.tasks.sources import import_tasks
from patchwright.tasks.sources.folders import is_unbuilt
from patchwright.types import Task

__all__ = [
    "benchmark_tasks",
    "export_file",
    "filter_file",
    "import_file",
    "overlap_files",
    "print_overlap",
    "split_file",
]

_SHOWN = 3


def import_file(source: str, out: Path, kind: str, split: str, skip: bool, view: View) -> dict[str, Any]:
    """Write the tasks of a source to a task file: its tasks, their kinds, and what is not as one would wish.

    Raises ConfigError naming the row that is wrong.
    """
    found = import_tasks(source, kind=kind, split=split, skip=skip)
    for sentence in found.left_out[:_SHOWN]:
        view.say(f"left out  {legible(sentence)}")
    if len(found.left_out) > _SHOWN:
        view.say(f"left out  {len(found.left_out) - _SHOWN} more")
    if not found.tasks:
        raise ConfigError(f"none of the {len(found.left_out)} rows of {source} can become a task")
    dump_tasks(out, found.tasks)
    kinds = Counter(str(task.meta.get("kind", "patchwright")) for task in found.tasks)
    view.say(f"{out}: {len(found.tasks)} tasks ({', '.join(f'{n} {kind}' for kind, n in kinds.items())})")
    untested = sum(not task.tests.fail_to_pass for task in found.tasks)
    if untested:
        view.say(f"{untested} of them have no tests: they can be rolled out, not graded")
    unbuilt = sum(map(is_unbuilt, found.tasks))
    if unbuilt:
        view.say(
            f"{unbuilt} of them name images that you build from their Dockerfiles: "
            "`docker build -t IMAGE FOLDER/environment`, see docs/tasks.md"
        )
    doubts = {"left_out": len(found.left_out), "untested": untested}
    return {"files": {str(out): len(found.tasks)}, "kinds": dict(kinds), **doubts}


def export_file(file: Path, form: str, out: Path, view: View) -> dict[str, Any]:
    """Write a file's tasks in another program's form: to which file, and how many."""
    tasks = load_tasks(file)
    written = export(tasks, form, out)
    view.say(f"{written}: {len(tasks)} tasks")
    return {"files": {str(written): len(tasks)}}


def filter_file(file: Path, out: Path, wanted: Filter, without: Path | None, view: View) -> dict[str, Any]:
    """Write the tasks that fit, and that no task of `without` is the same as: how many, `of` how many."""
    tasks = load_tasks(file)
    kept = filter_tasks(tasks, wanted)
    if without is not None:
        same = {one.train for one in overlap(kept, benchmark_tasks(str(without)))}
        kept = [task for task in kept if task.id not in same]
    if not kept:
        raise ConfigError(f"none of the {len(tasks)} tasks of {file} fits; ask for less")
    dump_tasks(out, kept)
    view.say(f"{out}: {len(kept)} of {len(tasks)} tasks")
    return {"files": {str(out): len(kept)}, "of": len(tasks)}


def split_file(
    file: Path, outs: tuple[Path, Path], share: float, seed: int, by_repo: bool, view: View
) -> dict[str, Any]:
    """Write a file's tasks to two files, those to train on and those held out: how many each has."""
    sides = split_tasks(load_tasks(file), share, seed=seed, by_repo=by_repo)
    for out, tasks in zip(outs, sides, strict=True):
        dump_tasks(out, tasks)
        view.say(f"{out}: {len(tasks)} tasks")
    return {"files": {str(out): len(tasks) for out, tasks in zip(outs, sides, strict=True)}}


def overlap_files(train: Path, bench: Path) -> dict[str, Any]:
    """How many tasks `train` has, and which are in `bench` too: `train`, `bench` (ids) and `why`."""
    tasks = load_tasks(train)
    found = overlap(tasks, benchmark_tasks(str(bench)))
    return {"tasks": len(tasks), "overlap": [asdict(one) for one in found]}


def print_overlap(found: Mapping[str, Any], console: Console) -> None:
    """What `overlap_files` found, as a table."""
    table = Table(box=None, pad_edge=False)
    for column in ("task", "of the benchmark", "why"):
        table.add_column(column, overflow="fold")
    for one in found["overlap"]:
        table.add_row(legible(one["train"]), legible(one["bench"]), one["why"])
    if found["overlap"]:
        console.print(table)
    console.print(f"{len(found['overlap'])} of {found['tasks']} tasks are in the benchmark")


def benchmark_tasks(source: str) -> Sequence[Task]:
    """The tasks of a benchmark: a task file, or rows as `tasks import` takes them."""
    return import_tasks(source, skip=True).tasks if source else []
