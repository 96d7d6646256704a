"""Options that several commands share, and how a command runs its recipe."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from patchwright.cli.exits import Exit
from patchwright.types import Endpoint

if TYPE_CHECKING:
    from rich.console import Console

    from patchwright.metrics.config import MetricsConfig
    from patchwright.recipes.progress import View

__all__ = [
    "AgentName",
    "AsJson",
    "BaseUrl",
    "ConfigFile",
    "Image",
    "KeyVariable",
    "Model",
    "Override",
    "Preset",
    "RunFolder",
    "SandboxName",
    "TasksFile",
    "answer",
    "execute",
    "observed",
    "output",
    "policy",
    "print_json",
    "view",
]

T = TypeVar("T")

ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file with the configuration.")]
Override = Annotated[
    list[str] | None,
    typer.Option(
        "-s", "--set", metavar="KEY=VALUE", help="Override one key of the configuration; repeatable."
    ),
]
RunFolder = Annotated[Path, typer.Option("--run", help="Folder of the run; the same folder resumes it.")]
TasksFile = Annotated[Path, typer.Option("--tasks", help="File of tasks, one JSON object a line.")]
Model = Annotated[
    str, typer.Option("--model", help="Model folder (Hugging Face format); with --base-url, a model's name.")
]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="OpenAI-compatible endpoint to use instead.")
]
KeyVariable = Annotated[
    str, typer.Option("--api-key-env", help="Environment variable that holds the endpoint's key.")
]
AgentName = Annotated[
    str | None,
    typer.Option("--agent", help="`bash`, `tools`, the name of a harness, or `module:Class`."),
]
Preset = Annotated[
    str,
    typer.Option(
        "--preset", help="Begin with `swe-rl`, `mini-swe-agent`, `swe-gym-openhands` or `qwen-code`."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SandboxName = Annotated[str, typer.Option("--sandbox", help="`namespace`, `docker` or `process`.")]
Image = Annotated[str | None, typer.Option("--image", help="Docker only: image of boxes that name none.")]


def execute(work: Coroutine[Any, Any, T], doing: str = "") -> T:
    """Run a recipe. Ctrl-C closes what it opened, and the command exits with 130. One that shows nothing
    itself says what it is `doing`."""
    try:
        with view().work(doing) if doing else nullcontext():
            return asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo("interrupted; resume with the same command", err=True)
        raise typer.Exit(Exit.INTERRUPTED) from None


def policy(model: str, base_url: str | None, key_variable: str) -> Path | Endpoint:
    """The policy the user named: a folder, or a model behind an endpoint."""
    if base_url is None:
        return Path(model)
    key = os.environ.get(key_variable, "").strip()  # a newline at its end would be no header
    return Endpoint(base_url=base_url.rstrip("/"), api_key=key, model=model)


def view() -> View:
    """Progress, on stderr."""
    from patchwright.recipes.progress import View

    return View()


@contextmanager
def observed(config: MetricsConfig, run: Path) -> Iterator[View]:
    """Progress, while figures and spans go to the sinks of `config` too."""
    from patchwright.metrics.sinks import observing

    shown = view()
    with observing(config, run, shown.say):
        yield shown


def answer(value: object, text: str, *, as_json: bool) -> None:
    """A short result, on stdout: for machines as JSON, else as text."""
    if as_json:
        print_json(value)
    else:
        output().print(text, soft_wrap=True)


def print_json(value: object) -> None:
    """A result for machines, on stdout."""
    typer.echo(json.dumps(value, indent=2))


def output() -> Console:
    """Results, on stdout. Nothing in them is markup: much of it was written by models."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)
