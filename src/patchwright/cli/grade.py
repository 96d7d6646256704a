"""`patchwright grade`: somebody's patches, graded by the tasks' tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchwright.cli.exits import Exit
from patchwright.cli.options import AsJson, ConfigFile, Override, TasksFile, execute, output, print_json, view

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["grade"]


def grade(
    predictions: Annotated[
        str,
        typer.Argument(
            metavar="PREDICTIONS",
            help="SWE-bench's .jsonl or .json, mini-swe-agent's preds.json, OpenHands' output.jsonl, or the "
            "words `gold` (the tasks' solutions) and `empty`.",
        ),
    ],
    tasks: TasksFile,
    run: Annotated[
        Path, typer.Option("--run", help="Folder of the reports; the same folder goes on where it stopped.")
    ] = Path("runs/grade"),
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Boxes at once; as many as processors by default.")
    ] = None,
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="Leave out predictions for tasks the file does not have.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Grade somebody's patches by the tasks' tests.

    Exit code 0: every prediction has a verdict, good or bad. 1: at least one is void, which running the same
    command again tries again. 2: a mistake in what was given. 130: interrupted.
    """
    from patchwright.config import load_config
    from patchwright.recipes.grade import GradeRequest, run_grade
    from patchwright.recipes.settings import Settings

    line = load_config(Settings, config, override or ()).line
    request = GradeRequest(
        tasks=tasks,
        predictions=predictions,
        run=run,
        workers=workers or os.cpu_count() or 1,
        skip_unknown=skip_unknown,
    )
    found = execute(run_grade(request, line.sandbox, view()))
    if as_json:
        print_json(found)
    else:
        _say(output(), found, run)
    if found["void"]:
        raise typer.Exit(Exit.FAILED)


def _say(console: Console, found: dict[str, Any], run: Path) -> None:
    rate = found["resolved_rate"]
    if rate:
        console.print(f"resolved  {rate['mean']:.1%}, 95 % interval [{rate['low']:.1%}, {rate['high']:.1%}]")
    console.print("endings  " + ", ".join(f"{count} {state}" for state, count in found["states"].items()))
    for state, reasons in found["void"].items():
        name, reason = next(iter(reasons.items()))
        console.print(f"void  {len(reasons)} {state}, the first {name}: {reason[:300]}")
    if found["findings"]:
        console.print(f"flagged  {found['cheat_rate']:.1%} of the graded predictions: see summary.json")
    console.print(f"reports  {run}")
