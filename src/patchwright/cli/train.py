"""`train new`, `train import`, `train sft`, `train rl`: from trajectories, or tasks, to weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchwright.cli.options import ConfigFile, Override, RunFolder, TasksFile, execute, observed, output
from patchwright.errors import ConfigError

if TYPE_CHECKING:
    from patchwright.recipes.presets import Training
    from patchwright.recipes.settings import Settings
    from patchwright.recipes.site import OpenSite

__all__ = ["DryRun", "Preset", "Start", "app", "dry_run", "told"]

app = typer.Typer(no_args_is_help=True, help="Train a model: from scratch, on trajectories, or by trying.")
Start = Annotated[
    Path | None, typer.Option("--model", help="Model folder to start from; it is not changed. Required.")
]
Preset = Annotated[
    str, typer.Option("--preset", help="A published run by name; your own configuration lies over it.")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Start nothing: print placement, memory, tokens, and what is missing."),
]


def told(value: Path | None, option: str) -> Path:
    """A path that only a dry run can do without. Raises ConfigError."""
    if value is None:
        raise ConfigError(f"{option} is missing; only --dry-run can do without it")
    return value


def dry_run(kind: Training, settings: Settings, model: Path | None, *files: Path | None) -> None:
    """Print what a run would take."""
    from patchwright.recipes.plan import make_plan
    from patchwright.recipes.plan_text import plan_text

    plan = make_plan(kind, settings, model, [file for file in files if file is not None])
    output().print(plan_text(plan), soft_wrap=True)


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

    execute(run_new_model(load_config(Settings, config, override or ()).new, tasks, out), "train new")
    output().print(f"model  {out}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A model in GGUF, tuned for chat.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
) -> None:
    """Write a pre-trained model as a folder that trains and serves, its weights in float32."""
    from patchwright.recipes.new_model import run_import

    execute(run_import(file, out), "train import")
    output().print(f"model  {out}")


@app.command("sft")
def sft(
    model: Start = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Run whose resolved trajectories are trained on, or rows of messages. Required."
        ),
    ] = None,
    run: RunFolder = Path("runs/sft"),
    preset: Preset = "",
    dry: DryRun = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Fine-tune on the resolved trajectories of a run."""
    from patchwright.recipes.presets import load_training
    from patchwright.recipes.sft import run_sft

    settings = load_training("sft", preset, config, override or ())
    if dry:
        return dry_run("sft", settings, model, data)
    start, rows = told(model, "--model"), told(data, "--data")
    with observed(settings.metrics, run) as shown:
        weights = execute(run_sft(settings.sft, settings.line, start, rows, run, shown))
    return output().print(f"weights  {weights.path}")


@app.command("rl")
def rl(
    model: Start = None,
    tasks: Annotated[
        Path | None, typer.Option("--tasks", help="File of tasks, one JSON object a line. Required.")
    ] = None,
    run: RunFolder = Path("runs/rl"),
    preset: Preset = "",
    dry: DryRun = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Reinforce what resolves tasks: roll out groups, grade, train, load, again."""
    from patchwright.recipes.presets import load_training
    from patchwright.recipes.rl import run_rl

    settings = load_training("rl", preset, config, override or ())
    if dry:
        return dry_run("rl", settings, model, tasks)
    start, file = told(model, "--model"), told(tasks, "--tasks")
    with observed(settings.metrics, run) as shown:
        site = _site(settings)
        weights = execute(run_rl(settings.rl, settings.line, file, start, run, shown, site=site))
    return output().print(f"weights  {weights.path}")


def _site(settings: Settings) -> OpenSite:
    """Where `[cluster]` wants the run's parts. Raises ConfigError when what that takes is not installed."""
    if settings.cluster.use == "ray":
        from patchwright.integrations.ray.site import open_ray

        return open_ray(settings.cluster)
    from patchwright.recipes.site import open_here

    return open_here
