"""`quickstart`, `rollout`: the line from the start, and up to the grade."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchwright.cli.options import (
    AgentName,
    AsJson,
    BaseUrl,
    ConfigFile,
    KeyVariable,
    Model,
    Override,
    Preset,
    RunFolder,
    TasksFile,
    execute,
    observed,
    output,
    policy,
    print_json,
)
from patchwright.errors import ConfigError

if TYPE_CHECKING:
    from patchwright.recipes.evaluate import Result

__all__ = ["quickstart", "rollout"]

Samples = Annotated[int, typer.Option("--samples", "-n", min=1, help="Attempts per task.")]


def quickstart(
    source: Annotated[
        str | None,
        typer.Option("--source", help="Evaluate on a real library's tasks too: pypi:NAME==VERSION."),
    ] = None,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", help="`namespace` (default), `docker` or `process`.")
    ] = None,
    run: RunFolder = Path("runs/quickstart"),
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Learn to fix bugs from nothing, on this machine: tasks, SFT, RL, evaluation."""
    from patchwright.config import load_config
    from patchwright.recipes.quickstart.config import QuickstartConfig
    from patchwright.recipes.quickstart.run import quickstart as recipe

    flags = {"source": source, "line.sandbox.use": sandbox}
    chosen = [f"{key}={value}" for key, value in flags.items() if value is not None]
    settings = load_config(QuickstartConfig, config, [*chosen, *(override or ())])
    with observed(settings.metrics, run) as shown:
        summary = execute(recipe(settings, run, shown))
    if as_json:
        print_json(summary)


def rollout(
    tasks: TasksFile,
    model: Model,
    base_url: BaseUrl = None,
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    agent: AgentName = None,
    preset: Preset = "",
    expert: Annotated[
        bool, typer.Option("--expert", help="Let the scripted expert work; --model lends its tokenizer.")
    ] = False,
    samples: Samples = 1,
    run: RunFolder = Path("runs/rollout"),
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Attempt tasks and store the graded trajectories."""
    from patchwright.recipes.presets import load_settings
    from patchwright.recipes.rollout import run_expert, run_rollout

    if expert and (base_url or samples != 1):
        raise ConfigError("--expert makes one attempt per task, with the tokenizer of the folder --model")
    chosen_agent = [] if agent is None else [f"line.agent.use={agent}"]
    settings = load_settings(preset, config, [*chosen_agent, *(override or ())])
    with observed(settings.metrics, run) as shown:
        if expert:
            work = run_expert(settings.line, tasks, Path(model), run, shown)
        else:
            chosen = policy(model, base_url, api_key_env)
            work = run_rollout(settings.line, tasks, chosen, run, shown, samples=samples)
        found = execute(work)
    if as_json:
        print_json(found.record())
    else:
        _report(found, run)


def _report(found: Result, run: Path) -> None:
    console = output()
    rate = f"{found.pass_at_1:.1%}, 95 % interval [{found.low:.1%}, {found.high:.1%}]"
    console.print(f"pass@1  {rate}")
    if found.pass_at_8 is not None:
        console.print(f"pass@8  {found.pass_at_8:.1%}")
    flagged = f", {found.cheat_rate:.1%} flagged" if found.cheat_rate else ""
    console.print(f"attempts  {found.resolved} resolved of {found.total}, {found.void} void{flagged}")
    console.print(f"look  patchwright show {run}")
