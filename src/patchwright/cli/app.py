"""The program: its commands, and what becomes of errors. Exit codes are in `exits.py`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from patchwright import __version__
from patchwright.cli import (
    agents,
    bench,
    check,
    eval,
    export,
    gateway,
    grade,
    images,
    look,
    node,
    pool,
    tasks,
    train,
    verify,
    view,
    work,
)
from patchwright.cli.exits import Exit
from patchwright.errors import ConfigError, PatchwrightError

__all__ = ["app", "main"]

app = typer.Typer(
    name="patchwright",
    help="Train models that repair software.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"patchwright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train models that repair software: tasks, sandboxes, agents, grades, training, one line."""


app.command("quickstart")(work.quickstart)
app.add_typer(tasks.app, name="tasks")
app.add_typer(images.app, name="images")
app.command("rollout")(work.rollout)
app.command("grade")(grade.grade)
app.command("eval")(eval.evaluate)
train.app.command("verifier")(verify.train_verifier)
app.add_typer(export.app, name="export")
app.command("import-trajectories")(export.import_trajectories)
app.add_typer(train.app, name="train")
app.command("rerank")(verify.rerank)
app.command("judge")(verify.judge)
app.command("serve")(gateway.serve)
app.add_typer(gateway.app, name="gateway")
app.command("show")(look.show)
app.command("view")(view.view)
app.command("compare")(look.compare)
app.command("doctor")(look.doctor)
app.add_typer(pool.app, name="pool")
app.add_typer(agents.app, name="agents")
app.add_typer(check.app, name="check")
app.add_typer(bench.app, name="bench")
app.add_typer(node.app, name="node")


def main() -> None:
    """Entry point of `patchwright`."""
    try:
        app()
    except ConfigError as error:
        _fail(str(error), Exit.MISTAKE)
    except PatchwrightError as error:
        _fail(str(error), Exit.FAILED)
    except OSError as error:  # a full disk, a folder that cannot be written to
        _fail(f"{error.strerror or error}: {error.filename or 'no file'}", Exit.FAILED)


def _fail(text: str, code: Exit) -> None:
    """One sentence on stderr, no traceback."""
    typer.echo(f"error: {text}", err=True)
    sys.exit(code)
