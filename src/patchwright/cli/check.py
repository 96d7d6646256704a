"""`check sandbox`, `check engine`, `check agent`: the conformance suites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from patchwright.cli.exits import Exit
from patchwright.cli.options import AsJson, Image, Override, SandboxName, execute, output, print_json
from patchwright.types import CheckResult

__all__ = ["app", "report"]

app = typer.Typer(no_args_is_help=True, help="Check that a part keeps its promises; exit 1 if it does not.")


@app.command("sandbox")
def sandbox(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="`namespace`, `docker`, `process`, `remote`, `swerex` or `module:Class`."
        ),
    ],
    image: Image = None,
    as_json: AsJson = False,
    override: Override = None,
) -> None:
    """Check a sandbox backend in real boxes; `-s pool=URL -s token_file=FILE` say where `remote` ones are."""
    from patchwright.recipes.check import sandbox_conformance

    work = sandbox_conformance(name, image=image, overrides=override or ())
    report(execute(work, f"check sandbox {name}"), as_json=as_json)


@app.command("engine")
def engine(
    name: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model folder for the local engine, or `module:Class`.")
    ],
    as_json: AsJson = False,
    override: Override = None,
) -> None:
    """Check an engine; `-s use=vllm -s url=URL` check a server that has the model of the folder."""
    from patchwright.recipes.check import engine_conformance

    work = engine_conformance(name, overrides=override or ())
    report(execute(work, f"check engine {name}"), as_json=as_json)


@app.command("agent")
def agent(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="`bash`, `tools`, an installed agent, or `module:Class`."),
    ],
    sandbox: SandboxName = "namespace",
    image: Image = None,
    as_json: AsJson = False,
) -> None:
    """Check an agent against a scripted model."""
    from patchwright.recipes.check_agent import agent_conformance

    work = agent_conformance(name, sandbox, image=image)
    report(execute(work, f"check agent {name}"), as_json=as_json)


def report(results: Sequence[CheckResult], *, as_json: bool = False) -> None:
    """Print what was found; exit 1 when a check failed."""
    failed = sum(not result.ok and not result.skipped for result in results)
    if as_json:
        print_json({"failed": failed, "checks": [asdict(result) for result in results]})
    else:
        _say(results, failed)
    raise typer.Exit(Exit.FAILED if failed else Exit.DONE)


def _say(results: Sequence[CheckResult], failed: int) -> None:
    console = output()
    for result in results:
        word = "skip" if result.skipped else "ok  " if result.ok else "FAIL"
        console.print(f"{word} {result.name}{': ' + result.detail if result.detail else ''}", soft_wrap=True)
    console.print(f"{len(results)} checks, {failed} failed")
