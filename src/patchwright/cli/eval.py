"""`patchwright eval`: any agent with any model on any tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchwright.cli.exits import Exit
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchwright.recipes.evaluation import EvalRequest
    from patchwright.recipes.figures import Figures, Row

__all__ = ["evaluate"]

_SHOWN = 3


def evaluate(
    tasks: TasksFile,
    model: Model,
    base_url: BaseUrl = None,
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    agent: AgentName = None,
    preset: Preset = "",
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Attempts per task.")] = 4,
    slice_: Annotated[str, typer.Option("--slice", help="Tasks of the file, as in Python: `0:5`.")] = "",
    concurrency: Annotated[int | None, typer.Option("--concurrency", min=1, help="Attempts at once.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, help="0 is greedy.")] = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", help="TOML file with prices of models; see docs/evaluation.md.")
    ] = None,
    run: RunFolder = Path("runs/eval"),
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Attempt tasks several times each and report the rate that is resolved, with its interval.

    The same command again goes on where it was stopped. Exit code 0: every attempt has a verdict. 1: at
    least one is void, which the same command tries again. 2: a mistake in what was given. 130: interrupted.
    """
    from patchwright.metrics import publish
    from patchwright.recipes.evaluation import EvalRequest, run_evaluation
    from patchwright.recipes.presets import load_settings

    chosen = [*_overrides(agent, concurrency, temperature), *(override or ())]
    settings = load_settings(preset, config, chosen)
    request = EvalRequest(
        tasks=tasks,
        model=policy(model, base_url, api_key_env),
        run=run,
        samples=samples,
        slice=slice_,
        prices=prices,
        preset=preset,
    )
    with observed(settings.metrics, run) as shown:
        found, rows = execute(run_evaluation(request, settings.line, shown))
        publish("eval", 0, found.record())
    if as_json:
        print_json(found.record())
    else:
        _report(found, rows, request)
    raise typer.Exit(Exit.FAILED if found.void else Exit.DONE)


def _overrides(agent: str | None, concurrency: int | None, temperature: float | None) -> list[str]:
    """The options that stand for settings, where they are given."""
    flags = {
        "line.agent.use": agent,
        "line.concurrency": concurrency,
        "line.sampling.temperature": temperature,
        "line.agent.temperature": temperature,
    }
    return [f"{key}={value}" for key, value in flags.items() if value is not None]


def _report(found: Figures, rows: Sequence[Row], request: EvalRequest) -> None:
    from patchwright.recipes.evaluation import price_of
    from patchwright.recipes.figures import table
    from patchwright.recipes.legible import cut, legible

    console = output()
    console.print(table(rows, price_of(request)))
    for k, value in found.pass_at.items():
        console.print(f"pass@{k}  {value:.1%}")
    console.print("exits  " + ", ".join(f"{legible(name)} {count}" for name, count in found.exits.items()))
    reasons = dict.fromkeys(row.error for row in rows if row.error)
    for reason in list(reasons)[:_SHOWN]:
        console.print(f"void  {cut(legible(reason), 300)}", soft_wrap=True)
    console.print(f"files  {request.run}/results.jsonl, predictions-*.jsonl, summary.json", soft_wrap=True)
    console.print(f"look  patchwright show {request.run}", soft_wrap=True)
