"""`tasks synth`, `tasks list`, `tasks show`, `tasks validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.options import ConfigFile, Image, Override, SandboxName, execute, output, view

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Make, look at and validate tasks.")
File = Annotated[Path, typer.Argument(metavar="FILE", help="File of tasks, one JSON object a line.")]


@app.command("synth")
def synth(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the task files go.")],
    source: Annotated[
        str, typer.Option("--source", help="`composed`, or `pypi:NAME==VERSION`: a real library.")
    ] = "composed",
    count: Annotated[int, typer.Option("--count", min=1, help="Tasks made from a library.")] = 20,
    sandbox: SandboxName = "namespace",
    image: Image = None,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Make bug-repair tasks: composed functions by the thousand, or bugs in a real library."""
    from patchwright.config import load_config
    from patchwright.recipes.assembly import SandboxConfig
    from patchwright.recipes.taskfiles import from_library, synthesise
    from patchwright.tasks.synthesis import SynthesisConfig

    counts = load_config(SynthesisConfig, config, override or ())
    if source == "composed":
        synthesise(counts, folder, view())
    else:
        boxes = SandboxConfig(use=sandbox, image=image or "")
        execute(from_library(source, count, counts.seed, boxes, folder, view()))


@app.command("list")
def list_(file: File) -> None:
    """List the tasks of a file."""
    from patchwright.recipes.taskfiles import list_tasks

    list_tasks(file, output())


@app.command("show")
def show(file: File, task: Annotated[str, typer.Argument(metavar="ID", help="Id of the task.")]) -> None:
    """Show one task: issue, files, tests, solution."""
    from patchwright.recipes.taskfiles import show_task

    show_task(file, task, output())


@app.command("validate")
def validate(
    file: File,
    first: Annotated[int | None, typer.Option("--first", min=1, help="Only the first so many tasks.")] = None,
    sandbox: SandboxName = "namespace",
    image: Image = None,
) -> None:
    """Check in boxes that tasks fail as they say and that their solutions solve them; exit 1 if not."""
    from patchwright.recipes.assembly import SandboxConfig
    from patchwright.recipes.taskfiles import validate_tasks

    boxes = SandboxConfig(use=sandbox, image=image or "")
    found = execute(validate_tasks(file, boxes, view(), first=first))
    unsound = {name: validation.reason for name, validation in found.items() if not validation.ok}
    console = output()
    for name, reason in unsound.items():
        console.print(f"unsound  {name}: {reason}")
    console.print(f"{len(found) - len(unsound)} of {len(found)} tasks are sound")
    raise typer.Exit(1 if unsound else 0)
