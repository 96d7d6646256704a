"""`train verifier`, `rerank`, `judge`: models that judge what a policy did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchwright.cli.options import (
    AsJson,
    ConfigFile,
    Override,
    RunFolder,
    execute,
    observed,
    output,
    print_json,
    view,
)
from patchwright.cli.train import DryRun, Start, alone, dry_run, preset_option, told, weights_record

if TYPE_CHECKING:
    from patchwright.types import Weights

__all__ = ["judge", "rerank", "train_verifier"]

Runs = Annotated[list[Path], typer.Argument(help="Run folder; several with attempts at the same tasks.")]


def train_verifier(
    model: Start = None,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="Run whose graded attempts are learned from; repeatable. Required."),
    ] = None,
    stage: Annotated[str, typer.Option("--stage", help="Pattern of the stages to learn from: `rl*`.")] = "*",
    run: RunFolder = Path("runs/verifier"),
    preset: Annotated[str, preset_option("swe-gym-32b-verifier")] = "",
    dry: DryRun = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Train a model to say whether an attempt is resolved, or whether a step was progress."""
    from patchwright.recipes.presets import load_training
    from patchwright.recipes.verifier import run_verifier

    settings = alone("verifier", load_training("verifier", preset, config, override or ()))
    if dry:
        return dry_run("verifier", settings, model, *(data or ()), as_json=as_json)
    start, runs = told(model, "--model"), data or [told(None, "--data")]
    with observed(settings.metrics, run) as shown:
        work = run_verifier(settings.verifier, settings.line, start, runs, stage, run, shown)
        weights, summary = execute(work)
    if as_json:
        return print_json(weights_record(run, weights) | summary)
    return _say(weights, summary)


def _say(weights: Weights, summary: dict[str, Any]) -> None:
    held = summary["held_out"]
    output().print(f"rows  {summary['rows']} of {summary['tasks']} tasks, {held['rows']} held out")
    if held["auc"] is not None:
        figures = f"AUC {held['auc']:.3f}, calibration error {held['calibration_error']:.3f}"
        output().print(f"held-out tasks  {figures}")
    output().print(f"verifier  {weights.path}")


def rerank(
    runs: Runs,
    verifier: Annotated[Path, typer.Option("--verifier", help="Weights of `train verifier`.")],
    stage: Annotated[
        str, typer.Option("--stage", help="Pattern of the stages to rank, where there are several.")
    ] = "",
    attempts: Annotated[
        int, typer.Option("--attempts", min=0, help="Attempts each task should have; fewer are failures.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the report; RUN/rerank when not given.")
    ] = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Rank tasks the verifier was trained on too.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Choose the best of several attempts with a verifier: Best@k beside Pass@k, with 95 % bands."""
    from patchwright.config import load_config
    from patchwright.recipes.best_of_plot import table
    from patchwright.recipes.rerank import RerankRequest, run_rerank
    from patchwright.recipes.settings import Settings

    request = RerankRequest(
        runs=tuple(runs),
        verifier=verifier,
        stage=stage,
        attempts=attempts,
        out=out,
        allow_overlap=allow_overlap,
        scoring=load_config(Settings, config, override or ()).scoring,
    )
    found = execute(run_rerank(request, view()))
    if as_json:
        print_json(found.record())
        return
    console = output()
    console.print(table(found))
    console.print(f"tasks {found.tasks}, attempts {found.runs} each, missing {found.missing}")
    shown = "-" if found.auc is None else f"{found.auc:.3f}"
    console.print(f"AUC {shown}, calibration error {found.calibration_error:.3f}")
    console.print(f"files  {request.report}/rerank.json, rerank.svg, best.jsonl", soft_wrap=True)


def judge(
    run: Annotated[Path, typer.Argument(help="Run whose attempts are judged.")],
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="The judge's OpenAI-compatible endpoint.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The judge's name there.")] = None,
    verifier: Annotated[
        Path | None,
        typer.Option("--verifier", help="Weights of `train verifier` for turns, to judge instead."),
    ] = None,
    stage: Annotated[str, typer.Option("--stage", help="Pattern of the stages to judge.")] = "*",
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Let a model vote on every step of stored attempts; the scores are stored with them, by turn."""
    from patchwright.config import load_config
    from patchwright.recipes.judge_run import run_judge
    from patchwright.recipes.rerank import run_trained
    from patchwright.recipes.settings import Settings

    flags = {"judge.base_url": base_url, "judge.model": model}
    chosen = [f"{key}={json.dumps(value)}" for key, value in flags.items() if value is not None]
    settings = load_config(Settings, config, [*chosen, *(override or ())])
    if verifier is not None:
        count = execute(run_trained(verifier, settings.scoring, run, stage, view()))
        if as_json:
            print_json({"attempts": count})
        else:
            output().print(f"judged  {count} attempts by {verifier}")
        return
    found = execute(run_judge(settings.judge, run, stage, view()))
    if as_json:
        counts = {"attempts": found.attempts, "steps": found.steps, "unscored": found.unscored}
        print_json({**counts, "votes": dict(found.votes)})
        return
    votes = ", ".join(f"{count} {name}" for name, count in sorted(found.votes.items()))
    output().print(
        f"judged  {found.steps} steps of {found.attempts} attempts, {found.unscored} without a score"
    )
    output().print(f"votes  {votes or 'none'}")
