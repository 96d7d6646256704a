"""`show`, `compare` and `doctor`: look at a run, at several, at the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.options import execute, output

__all__ = ["compare", "doctor", "show"]


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run, e.g. runs/quickstart.")],
    trajectory: Annotated[
        str | None, typer.Argument(metavar="[TRAJECTORY]", help="Id of one attempt to read.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long messages and outputs.")] = False,
) -> None:
    """Print a run, or one of its attempts: conversation, patch, verdict."""
    from patchwright.recipes.show import show_run, show_trajectory
    from patchwright.store import Run

    with Run.open(run) as opened:
        if trajectory is None:
            show_run(opened, output())
        else:
            show_trajectory(opened, trajectory, output(), full=full)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of the runs.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write tables, figures and a picture to.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Print the evaluations of several runs side by side, and their mean with its interval over the runs."""
    from patchwright.recipes import compare as recipe

    found = recipe.compare(runs)
    written = recipe.write_report(found, out) if out else []
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
        return
    for table in recipe.tables(found):
        output().print(table)
    for path in written:
        output().print(f"written  {path}", soft_wrap=True)


def doctor(
    folder: Annotated[Path, typer.Option("--run", help="Where runs are to be written.")] = Path("runs"),
) -> None:
    """Say what this machine can do and how to mend what it cannot; exit 1 if the quickstart cannot run."""
    from patchwright.recipes.doctor import diagnose

    findings, console = execute(diagnose(folder)), output()
    for finding in findings:
        word = "ok  " if finding.ok else "FAIL" if finding.needed else "-   "
        console.print(f"{word} {finding.name:<13} {finding.detail}", soft_wrap=True)
        if not finding.ok:
            console.print(f"{'':18} mend: {finding.mend}", soft_wrap=True)
    blocked = [finding.name for finding in findings if finding.needed and not finding.ok]
    console.print(f"the quickstart cannot run: {', '.join(blocked)}" if blocked else "the quickstart can run")
    raise typer.Exit(1 if blocked else 0)
