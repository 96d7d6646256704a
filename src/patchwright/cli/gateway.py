"""`serve` and `gateway serve`: a policy behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchwright.cli.options import ConfigFile, Override, RunFolder, execute, view

if TYPE_CHECKING:
    from patchwright.recipes.serve import Address

__all__ = ["app", "serve"]

KEY = "PATCHWRIGHT_API_KEY"

app = typer.Typer(no_args_is_help=True, help="The recording endpoint, for agents started by hand.")
Folder = Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder (Hugging Face format).")]
Host = Annotated[str, typer.Option("--host", help="Address to listen on; loopback unless told otherwise.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")]


def serve(
    model: Folder,
    engine: Annotated[
        str | None, typer.Option("--engine", help="`local` (default), or `vllm` or `sglang`, started here.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Engines that are started and used as one.")
    ] = None,
    engine_python: Annotated[
        str | None, typer.Option("--engine-python", metavar="PATH", help="Python that has vLLM or SGLang.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Serve a model to OpenAI clients; the key is $PATCHWRIGHT_API_KEY, or a random one that is printed."""
    from patchwright.config import load_config
    from patchwright.recipes.serve import serve as recipe
    from patchwright.recipes.settings import Settings

    flags = {"use": engine, "replicas": replicas, "python": engine_python}
    chosen = [f"line.engine.{key}={value}" for key, value in flags.items() if value is not None]
    line = load_config(Settings, config, [*chosen, *(override or ())]).line
    execute(recipe(line, model, _address(host, port), view()))


@app.command("serve")
def record(
    model: Folder,
    session: Annotated[str, typer.Option("--session", help="Name of the recorded trajectory.")] = "session",
    run: RunFolder = Path("runs/recorded"),
    host: Host = "127.0.0.1",
    port: Port = 8000,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Serve one recording session: what an agent started by hand says is kept, token by token."""
    from patchwright.config import load_config
    from patchwright.recipes.serve import record as recipe
    from patchwright.recipes.settings import Settings

    line = load_config(Settings, config, override or ()).line
    execute(recipe(line, model, _address(host, port), run, session, view()))


@app.callback()
def _group() -> None:
    """Keeps `serve` a command of its own name."""


def _address(host: str, port: int) -> Address:
    from patchwright.recipes.serve import Address

    return Address(host=host, port=port, api_key=os.environ.get(KEY, ""))
