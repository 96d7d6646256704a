"""`bench engine`, `bench gateway`, `bench sandbox`, `bench train`: what the parts cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.options import Image, execute, output

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Measure the parts on this machine.")
Model = Annotated[
    Path | None, typer.Option("--model", help="Model folder; an untrained small model when not given.")
]


@app.command("engine")
def engine(model: Model = None) -> None:
    """Sampled tokens per CPU-second, beside transformers' generate."""
    from patchwright.recipes.bench import engine_table

    output().print(execute(engine_table(model)))


@app.command("gateway")
def gateway(model: Model = None) -> None:
    """CPU milliseconds per recorded turn."""
    from patchwright.recipes.bench import gateway_table

    output().print(execute(gateway_table(model)))


@app.command("sandbox")
def sandbox(
    name: Annotated[str, typer.Argument(help="`namespace`, `docker` or `process`.")] = "namespace",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Boxes opened, one after the other.")] = 30,
    image: Image = None,
) -> None:
    """Milliseconds to open a box, run a command, run pytest, close it."""
    from patchwright.recipes.bench import sandbox_table

    output().print(execute(sandbox_table(name, rounds=rounds, image=image)))


@app.command("train")
def train() -> None:
    """Trained tokens per CPU-second, beside a plain transformers loop."""
    from patchwright.recipes.bench import train_table

    output().print(execute(train_table()))
