"""`patchwright tasks`: make, look at and validate files of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from patchwright.config import nearest
from patchwright.errors import ConfigError, InfraError
from patchwright.grade.tests import Grader
from patchwright.recipes.assembly import SandboxConfig, open_boxes
from patchwright.recipes.legible import diff, legible
from patchwright.recipes.library import library_tasks
from patchwright.recipes.progress import View
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.synthesis import SynthesisConfig, synthesize
from patchwright.tasks.validate import Validation, validate
from patchwright.types import Task

__all__ = ["from_library", "list_tasks", "show_task", "synthesise", "validate_tasks"]

_AT_ONCE = 8
"""Tasks validated at once: two cores are full with a few boxes."""


def synthesise(config: SynthesisConfig, folder: Path, view: View) -> None:
    """Write the synthetic sets, one file each, to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tasks in synthesize(config).items():
        dump_tasks(folder / f"{name}.jsonl", tasks)
        view.say(f"{folder / name}.jsonl: {len(tasks)} tasks")


async def from_library(
    source: str, count: int, seed: int, sandbox: SandboxConfig, folder: Path, view: View
) -> None:
    """Write `library.jsonl` to `folder`: bugs injected into a real library, graded by its own tests."""
    folder.mkdir(parents=True, exist_ok=True)
    async with open_boxes(sandbox) as backend:
        tasks = await library_tasks(source, count, backend, folder, view, seed=seed)
    dump_tasks(folder / "library.jsonl", tasks)
    view.say(f"{folder / 'library.jsonl'}: {len(tasks)} tasks")


def list_tasks(file: Path, console: Console) -> None:
    """One line per task."""
    table = Table(box=None, pad_edge=False)
    for column in ("id", "to mend", "to keep", "issue"):
        table.add_column(column, overflow="ellipsis", no_wrap=True)
    for task in load_tasks(file):
        issue = legible(task.prompt.strip().partition("\n")[0])
        counts = (str(len(task.tests.fail_to_pass)), str(len(task.tests.pass_to_pass)))
        table.add_row(legible(task.id), *counts, issue)
    console.print(table)


def show_task(file: Path, name: str, console: Console) -> None:
    """All of one task, its solution too. Raises ConfigError when the file has none of that id."""
    task = _find(load_tasks(file), name, file)
    console.print(Text(legible(task.id), "bold"))
    _section(console, "issue", legible(task.prompt))
    for path, content in {**task.files, **task.tests.files}.items():
        _section(console, legible(path), legible(content))
    tests = [f"must pass after: {name}" for name in task.tests.fail_to_pass]
    tests += [f"must still pass: {name}" for name in task.tests.pass_to_pass]
    _section(console, f"tests: {legible(task.tests.command)}", legible("\n".join(tests)))
    if task.solution:
        _section(console, "solution", diff(task.solution))


def _find(tasks: Sequence[Task], name: str, file: Path) -> Task:
    for task in tasks:
        if task.id == name:
            return task
    close = nearest(name, [task.id for task in tasks])
    raise ConfigError(f"{file} has no task {name!r}" + (f"; did you mean {close!r}?" if close else ""))


def _section(console: Console, title: str, body: str | Text) -> None:
    console.print(Rule(title, align="left", style="dim"))
    console.print(body)


async def validate_tasks(
    file: Path, sandbox: SandboxConfig, view: View, *, first: int | None = None
) -> dict[str, Validation]:
    """Validate a file's tasks (the `first` so many) in real boxes; a task without a verdict is unsound."""
    tasks = load_tasks(file)[:first]
    slots = asyncio.Semaphore(_AT_ONCE)
    async with open_boxes(sandbox) as backend:
        grader = Grader(backend)
        with view.stage("validate", total=len(tasks)) as progress:

            async def one(task: Task) -> Validation:
                async with slots:
                    found = await _validate(task, grader)
                progress.advance()
                return found

            found = await asyncio.gather(*map(one, tasks))
    return {task.id: validation for task, validation in zip(tasks, found, strict=True)}


async def _validate(task: Task, grader: Grader) -> Validation:
    try:
        return await validate(task, grader)
    except InfraError as error:
        return Validation(False, f"no verdict: {error}")
