"""`patchwright tasks list|show`: look at files of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from patchwright.config import nearest
from patchwright.errors import ConfigError
from patchwright.recipes.legible import diff, legible
from patchwright.tasks.files import load_tasks
from patchwright.tasks.select import changed_lines, difficulty_of, repo_of
from patchwright.types import Task

__all__ = ["find_task", "list_tasks", "show_task", "task_rows"]


def list_tasks(file: Path, console: Console) -> None:
    """One line per task."""
    table = Table(box=None, pad_edge=False)
    table.add_column("id", overflow="ellipsis", no_wrap=True, min_width=16)
    for column in ("trust", "to mend", "to keep", "lines", "difficulty"):
        table.add_column(column, overflow="ellipsis", no_wrap=True, min_width=len(column))
    table.add_column("issue", overflow="ellipsis", no_wrap=True)
    for row in task_rows(file):
        cells = row | {"lines": "" if row["lines"] is None else row["lines"]}
        table.add_row(*(legible(str(cell)) for cell in cells.values()))
    console.print(table)


def task_rows(file: Path) -> list[dict[str, Any]]:
    """The same for machines: id, trust, tests to mend and to keep, lines of the fix, difficulty, issue."""
    return [
        {
            "id": task.id,
            "trust": task.trust,
            "to_mend": len(task.tests.fail_to_pass),
            "to_keep": len(task.tests.pass_to_pass),
            "lines": changed_lines(task.solution) if task.solution else None,
            "difficulty": difficulty_of(task),
            "issue": task.prompt.strip().partition("\n")[0],
        }
        for task in load_tasks(file)
    ]


def find_task(file: Path, name: str) -> Task:
    """One task of a file. Raises ConfigError when it has none of that id."""
    tasks = load_tasks(file)
    for task in tasks:
        if task.id == name:
            return task
    close = nearest(name, [task.id for task in tasks])
    raise ConfigError(f"{file} has no task {name!r}" + (f"; did you mean {close!r}?" if close else ""))


def show_task(task: Task, console: Console) -> None:
    """All of one task, its solution too."""
    console.print(Text(legible(task.id), "bold"))
    _section(console, "issue", legible(task.prompt))
    for title, value in _facts(task).items():
        console.print(Text.assemble((f"{title}  ", "dim"), legible(value)))
    for path, content in {**task.files, **task.tests.files}.items():
        _section(console, legible(path), legible(content))
    tests = [f"must pass after: {name}" for name in task.tests.fail_to_pass]
    tests += [f"must still pass: {name}" for name in task.tests.pass_to_pass]
    _section(console, f"tests: {legible(task.tests.command)}", legible("\n".join(tests)))
    if task.solution:
        _section(console, "solution", diff(task.solution))


def _facts(task: Task) -> dict[str, str]:
    """Where it is from and what is known of it; only what there is."""
    facts = {
        "repository": repo_of(task),
        "image": task.image,
        "source": str(task.meta.get("source", "")),
        "difficulty": difficulty_of(task),
        "trust": task.trust,
    }
    return {title: value for title, value in facts.items() if value}


def _section(console: Console, title: str, body: str | Text) -> None:
    console.print(Rule(title, align="left", style="dim"))
    console.print(body)
