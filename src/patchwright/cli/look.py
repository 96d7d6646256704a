"""`show`, `compare` and `doctor`: look at a run, at several, at the machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchwright.cli.exits import Exit
from patchwright.cli.options import AsJson, ConfigFile, Override, execute, output, print_json, view

if TYPE_CHECKING:
    from patchwright.recipes.doctor import Finding

__all__ = ["compare", "doctor", "show"]


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run, e.g. runs/quickstart.")],
    trajectory: Annotated[
        str | None, typer.Argument(metavar="[TRAJECTORY]", help="Id of one attempt to read.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long messages and outputs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a run, or one of its attempts: conversation, patch, verdict."""
    from patchwright.recipes.show import show_run, show_trajectory
    from patchwright.recipes.show_record import run_record, trajectory_record
    from patchwright.store import Run

    with Run.open(run) as opened:
        if as_json:
            print_json(run_record(opened) if trajectory is None else trajectory_record(opened, trajectory))
        elif trajectory is None:
            show_run(opened, output())
        else:
            show_trajectory(opened, trajectory, output(), full=full)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of the runs.")],
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", metavar="RUN", help="Run of another kind, to say the difference from; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write tables, figures and a picture to.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the evaluations of several runs side by side, and their mean with its interval over the runs."""
    from patchwright.recipes.compare import compare as read
    from patchwright.recipes.compare import report, tables, write_report
    from patchwright.recipes.contrast import contrast, contrast_report, contrast_tables

    if against:
        both = contrast(runs, against)
        record, texts, shown = both.record(), contrast_report(both), contrast_tables(both)
    else:
        found = read(runs)
        record, texts, shown = found.record(), report(found), tables(found)
    written = write_report(texts, out) if out else []
    if as_json:
        print_json(record)
        return
    for table in shown:
        output().print(table)
    for path in written:
        output().print(f"written  {path}", soft_wrap=True)


def doctor(
    folder: Annotated[Path, typer.Option("--run", help="Where runs are to be written.")] = Path("runs"),
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Say what this machine can do and how to mend what it cannot.

    Looked at is what a configuration needs, the quickstart's when none is given; at the end one attempt is
    made, with a script in the model's place, which may take up to a minute. Exit code 0: everything needed is
    there. 1: something is not.
    """
    from patchwright.config import load_config
    from patchwright.recipes.doctor import blocked, diagnose, record
    from patchwright.recipes.settings import Settings

    settings = load_config(Settings, config, override or ())
    findings = execute(diagnose(folder, settings, view()))
    if as_json:
        print_json(record(findings))
    else:
        _say_findings(findings, "this configuration" if config or override else "the quickstart")
    raise typer.Exit(Exit.FAILED if blocked(findings) else Exit.DONE)


def _say_findings(findings: list[Finding], what: str) -> None:
    from patchwright.recipes.doctor import blocked

    console, missing = output(), blocked(findings)
    for finding in findings:
        word = "ok  " if finding.ok else "FAIL" if finding.needed else "-   "
        console.print(f"{word} {finding.name:<13} {finding.detail}", soft_wrap=True)
        if not finding.ok:
            console.print(f"{'':18} mend: {finding.mend}", soft_wrap=True)
    console.print(f"{what} cannot run: {', '.join(missing)}" if missing else f"{what} can run")
