"""`train new`, `train import`, `train sft`, `train rl`: from trajectories, or tasks, to weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.options import ConfigFile, Override, RunFolder, TasksFile, execute, output, view

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Train a model: from scratch, on trajectories, or by trying.")
Start = Annotated[Path, typer.Option("--model", help="Model folder to start from; it is not changed.")]


@app.command("new")
def new(
    tasks: TasksFile,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Write an untrained model and a tokenizer trained on the tasks' text."""
    from patchwright.config import load_config
    from patchwright.recipes.new_model import run_new_model
    from patchwright.recipes.settings import Settings

    execute(run_new_model(load_config(Settings, config, override or ()).new, tasks, out))
    output().print(f"model  {out}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A model in GGUF, tuned for chat.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
) -> None:
    """Write a pre-trained model as a folder that trains and serves, its weights in float32."""
    from patchwright.recipes.new_model import run_import

    execute(run_import(file, out))
    output().print(f"model  {out}")


@app.command("sft")
def sft(
    model: Start,
    data: Annotated[
        Path,
        typer.Option("--data", help="Run whose resolved trajectories are trained on, or rows of messages."),
    ],
    run: RunFolder = Path("runs/sft"),
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Fine-tune on the resolved trajectories of a run."""
    from patchwright.config import load_config
    from patchwright.recipes.settings import Settings
    from patchwright.recipes.sft import run_sft

    settings = load_config(Settings, config, override or ())
    weights = execute(run_sft(settings.sft, settings.line, model, data, run, view()))
    output().print(f"weights  {weights.path}")


@app.command("rl")
def rl(
    model: Start,
    tasks: TasksFile,
    run: RunFolder = Path("runs/rl"),
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Reinforce what resolves tasks: roll out groups, grade, train, load, again."""
    from patchwright.config import load_config
    from patchwright.recipes.rl import run_rl
    from patchwright.recipes.settings import Settings

    settings = load_config(Settings, config, override or ())
    weights = execute(run_rl(settings.rl, settings.line, tasks, model, run, view()))
    output().print(f"weights  {weights.path}")
