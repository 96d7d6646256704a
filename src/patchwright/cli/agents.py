"""`agents list`, `agents install`, `agents check`."""

from __future__ import annotations

from typing import Annotated

import typer

from patchwright.cli.check import report
from patchwright.cli.options import Image, SandboxName, execute, output

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Coding agents that work on tasks: list, install, check.")


@app.command("list")
def list_() -> None:
    """The agents there are, their versions, and which are installed."""
    from patchwright.recipes.agents import listing

    for agent in listing():
        output().print(f"{agent.name:15} {agent.version:10} {agent.state}", soft_wrap=True)


@app.command("install")
def install(
    name: Annotated[str, typer.Argument(help="A name of `patchwright agents list`.")],
) -> None:
    """Build an agent's kit, once for this machine: boxes see it read-only; nothing is installed in them."""
    from patchwright.agent.harness.names import find_plan
    from patchwright.agent.kit import install

    folder, facts = install(find_plan(name), say=lambda text: typer.echo(text, err=True))
    size = float(str(facts["bytes"])) / 1e6
    output().print(f"{name}: {size:.0f} MB in {facts['seconds']} s, {folder}", soft_wrap=True)


@app.command("check")
def check(
    name: Annotated[str, typer.Argument(help="`bash`, `tools`, a name of `agents list`, or `module:Class`.")],
    sandbox: SandboxName = "namespace",
    image: Image = None,
    outside: Annotated[bool, typer.Option("--outside", help="Run it outside of the box.")] = False,
) -> None:
    """Check an agent in real boxes against a scripted model; exit 1 if it breaks a promise."""
    from patchwright.recipes.check_agent import agent_conformance

    report(execute(agent_conformance(name, sandbox, image=image, outside=outside)))
