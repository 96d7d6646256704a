"""`show` and `doctor`: look at a run, look at the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.options import execute, output

__all__ = ["doctor", "show"]


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
