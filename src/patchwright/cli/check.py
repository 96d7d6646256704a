"""`check sandbox`, `check engine`, `check agent`: the conformance suites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from patchwright.cli.options import Image, Override, SandboxName, execute, output
from patchwright.types import CheckResult

__all__ = ["app", "report"]

app = typer.Typer(no_args_is_help=True, help="Check that a part keeps its promises; exit 1 if it does not.")


@app.command("sandbox")
def sandbox(
    name: Annotated[
        str, typer.Argument(help="`namespace`, `docker`, `process`, `remote`, `swerex` or `module:Class`.")
    ],
    image: Image = None,
    override: Override = None,
) -> None:
    """Check a sandbox backend in real boxes; `-s pool=URL -s token_file=FILE` say where `remote` ones are."""
    from patchwright.recipes.check import sandbox_conformance

    report(execute(sandbox_conformance(name, image=image, overrides=override or ())))


@app.command("engine")
def engine(
    name: Annotated[str, typer.Argument(help="A model folder for the local engine, or `module:Class`.")],
    override: Override = None,
) -> None:
    """Check an engine; `-s use=vllm -s url=URL` check a server that has the model of the folder."""
    from patchwright.recipes.check import engine_conformance

    report(execute(engine_conformance(name, overrides=override or ())))


@app.command("agent")
def agent(
    name: Annotated[str, typer.Argument(help="`bash`, `tools`, an installed agent, or `module:Class`.")],
    sandbox: SandboxName = "namespace",
    image: Image = None,
) -> None:
    """Check an agent against a scripted model."""
    from patchwright.recipes.check_agent import agent_conformance

    report(execute(agent_conformance(name, sandbox, image=image)))


def report(results: Sequence[CheckResult]) -> None:
    """Print what was found; exit 1 when a check failed."""
    console = output()
    for result in results:
        word = "skip" if result.skipped else "ok  " if result.ok else "FAIL"
        console.print(f"{word} {result.name}{': ' + result.detail if result.detail else ''}", soft_wrap=True)
    failed = sum(not result.ok and not result.skipped for result in results)
    console.print(f"{len(results)} checks, {failed} failed")
    raise typer.Exit(1 if failed else 0)
