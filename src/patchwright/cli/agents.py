"""`agents list`, `agents install`, `agents check`."""

from __future__ import annotations

from typing import Annotated

import typer

from patchwright.cli.check import report
from patchwright.cli.options import AsJson, Image, SandboxName, answer, execute, output, print_json, view

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Coding agents that work on tasks: list, install, check.")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """The agents there are, their versions, and which are installed."""
    from dataclasses import asdict

    from patchwright.recipes.agents import listing

    if as_json:
        print_json([asdict(agent) for agent in listing()])
        return
    for agent in listing():
        output().print(f"{agent.name:15} {agent.version:10} {agent.state}", soft_wrap=True)


@app.command("install")
def install(
    name: Annotated[str, typer.Argument(help="A name of `patchwright agents list`.")],
    as_json: AsJson = False,
) -> None:
    """Build an agent's kit, once for this machine: boxes see it read-only; nothing is installed in them."""
    from patchwright.agent.harness.names import find_plan
    from patchwright.agent.kit import install

    shown = view()
    with shown.work(f"install {name}"):
        folder, facts = install(find_plan(name), say=shown.say)
    size = float(str(facts["bytes"])) / 1e6
    found = {"agent": name, "folder": str(folder), "bytes": facts["bytes"], "seconds": facts["seconds"]}
    answer(found, f"{name}: {size:.0f} MB in {facts['seconds']} s, {folder}", as_json=as_json)


@app.command("check")
def check(
    name: Annotated[str, typer.Argument(help="`bash`, `tools`, a name of `agents list`, or `module:Class`.")],
    sandbox: SandboxName = "namespace",
    image: Image = None,
    outside: Annotated[bool, typer.Option("--outside", help="Run it outside of the box.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check an agent in real boxes against a scripted model; exit 1 if it breaks a promise."""
    from patchwright.recipes.check_agent import agent_conformance

    work = agent_conformance(name, sandbox, image=image, outside=outside)
    report(execute(work, f"check agent {name}"), as_json=as_json)
