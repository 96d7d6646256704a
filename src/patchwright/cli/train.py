"""`train new`, `train import`, `train sft`, `train rl`: from trajectories, or tasks, to weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchwright.cli.options import (
    AsJson,
    ConfigFile,
    Override,
    RunFolder,
    TasksFile,
    answer,
    execute,
    observed,
    output,
    print_json,
    view,
)
from patchwright.errors import ConfigError

if TYPE_CHECKING:
    from patchwright.recipes.presets import Training
    from patchwright.recipes.settings import Settings
    from patchwright.recipes.site import OpenSite
    from patchwright.types import Weights

__all__ = ["DryRun", "Start", "alone", "app", "dry_run", "preset_option", "told", "weights_record"]

app = typer.Typer(no_args_is_help=True, help="Train a model: from scratch, on trajectories, or by trying.")
Start = Annotated[
    Path | None, typer.Option("--model", help="Model folder to start from; it is not changed. Required.")
]
_RL = ("qwen3-coder-30b-qwen-code", "swe-rl-32b-4n", "swe-rl-32b-8n", "swe-rl-8b-2n", "swe-rl-8b-prm-5n")
"""The published runs of `train rl`."""
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Start nothing: print placement, memory, tokens, and what is missing."),
]


def preset_option(*names: str) -> Any:
    """`--preset` of a training that has published runs of these names."""
    *first, last = (f"`{name}`" for name in names)
    choice = f"{', '.join(first)} or {last}" if first else last
    return typer.Option("--preset", help=f"Begin with {choice}; your own configuration lies over it.")


def told(value: Path | None, option: str) -> Path:
    """A path that only a dry run can do without. Raises ConfigError."""
    if value is None:
        raise ConfigError(f"{option} is missing; only --dry-run can do without it")
    return value


def alone(kind: Training, settings: Settings) -> Settings:
    """The settings of a training that knows this machine only; says so where they name a cluster."""
    if settings.cluster.use == "ray":
        view().say(f'train {kind} runs on this machine alone; `cluster.use = "ray"` is for `train rl`')
    return settings


def dry_run(
    kind: Training, settings: Settings, model: Path | None, *files: Path | None, as_json: bool
) -> None:
    """Print what a run would take."""
    from patchwright.recipes.plan import make_plan
    from patchwright.recipes.plan_record import plan_record
    from patchwright.recipes.plan_text import plan_text

    plan = make_plan(kind, settings, model, [file for file in files if file is not None])
    if as_json:
        print_json(plan_record(plan))
    else:
        output().print(plan_text(plan), soft_wrap=True)


def weights_record(run: Path, weights: Weights) -> dict[str, object]:
    """What a training gave, as JSON values."""
    return {"run": str(run), "weights": weights.path, "version": weights.version}


@app.command("new")
def new(
    tasks: TasksFile,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Write an untrained model and a tokenizer trained on the tasks' text."""
    from patchwright.config import load_config
    from patchwright.recipes.new_model import run_new_model
    from patchwright.recipes.settings import Settings

    execute(run_new_model(load_config(Settings, config, override or ()).new, tasks, out), "train new")
    answer({"model": str(out)}, f"model  {out}", as_json=as_json)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A model in GGUF, tuned for chat.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    as_json: AsJson = False,
) -> None:
    """Write a pre-trained model as a folder that trains and serves, its weights in float32."""
    from patchwright.recipes.new_model import run_import

    execute(run_import(file, out), "train import")
    answer({"model": str(out)}, f"model  {out}", as_json=as_json)


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
    preset: Annotated[str, preset_option("swe-gym-32b-sft")] = "",
    dry: DryRun = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Fine-tune on the resolved trajectories of a run, or on rows of messages."""
    from patchwright.recipes.presets import load_training
    from patchwright.recipes.sft import run_sft

    settings = alone("sft", load_training("sft", preset, config, override or ()))
    if dry:
        return dry_run("sft", settings, model, data, as_json=as_json)
    start, rows = told(model, "--model"), told(data, "--data")
    with observed(settings.metrics, run) as shown:
        weights = execute(run_sft(settings.sft, settings.line, start, rows, run, shown))
    return answer(weights_record(run, weights), f"weights  {weights.path}", as_json=as_json)


@app.command("rl")
def rl(
    model: Start = None,
    tasks: Annotated[
        Path | None, typer.Option("--tasks", help="File of tasks, one JSON object a line. Required.")
    ] = None,
    run: RunFolder = Path("runs/rl"),
    preset: Annotated[str, preset_option(*_RL)] = "",
    dry: DryRun = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Reinforce what resolves tasks: roll out groups, grade, train, load, again."""
    from patchwright.recipes.presets import load_training
    from patchwright.recipes.rl import run_rl

    settings = load_training("rl", preset, config, override or ())
    if dry:
        return dry_run("rl", settings, model, tasks, as_json=as_json)
    start, file = told(model, "--model"), told(tasks, "--tasks")
    with observed(settings.metrics, run) as shown:
        site = _site(settings, run)
        weights = execute(run_rl(settings.rl, settings.line, file, start, run, shown, site=site))
    return answer(weights_record(run, weights), f"weights  {weights.path}", as_json=as_json)


def _site(settings: Settings, run: Path) -> OpenSite:
    """Where `[cluster]` wants the run's parts. Raises ConfigError when what that takes is not installed."""
    if settings.cluster.use == "ray":
        from patchwright.integrations.ray.site import open_ray
        from patchwright.metrics.sinks import tracer

        return open_ray(settings.cluster, partial(tracer, settings.metrics, run.name))
    from patchwright.recipes.site import open_here

    return open_here
