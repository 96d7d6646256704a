"""What a quickstart came to: the summary, the table, and where things are."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from patchwright.recipes.progress import View
from patchwright.recipes.quickstart.config import QuickstartConfig
from patchwright.store import Run
from patchwright.types import Outcome

STAGES = ("init", "sft", "rl")


def summarise(run: Run, config: QuickstartConfig) -> dict[str, Any]:
    """JSON values: a stage each for the untrained model, after SFT and after RL."""
    stages = []
    for name in STAGES:
        mark = run.marks(f"eval-{name}")[0].info
        work = run.marks(f"{'initialise' if name == 'init' else name}-done")[0].info["seconds"]
        sets = mark["sets"]
        stages.append({"name": name, **sets, "seconds": work, "evaluation_seconds": mark["seconds"]})
    return {"stages": stages, "seed": config.line.seed, "failures": failures(run)}


def failures(run: Run) -> dict[str, int]:
    """How the last policy's unresolved held-out attempts ended: the next things to beat."""
    ends: Counter[str] = Counter()
    for trajectory in run.trajectories(stage="eval-rl-held_out", outcome=Outcome.UNRESOLVED):
        ends[trajectory.exit] += 1
    return dict(ends.most_common())


def show_results(view: View, run: Run, summary: dict[str, Any]) -> None:
    """The table of the end, and the next commands."""
    table = Table(title="resolved, held-out tasks (pass@1 with 95 % interval, clustered by task)")
    sets = [key for key, value in summary["stages"][0].items() if isinstance(value, dict)]
    table.add_column("policy")
    for name in sets:
        table.add_column(name.replace("_", "-"))
        table.add_column("pass@8")
    table.add_column("void", justify="right")
    table.add_column("seconds", justify="right")
    for stage in summary["stages"]:
        cells = [cell for name in sets for cell in _cells(stage[name])]
        void = sum(stage[name]["void"] for name in sets)
        table.add_row(
            stage["name"], *cells, str(void), f"{stage['seconds'] + stage['evaluation_seconds']:.0f}"
        )
    view.table(table)
    ends = ", ".join(f"{count} {end}" for end, count in summary["failures"].items())
    view.say(f"unresolved after RL ended by: {ends or 'none'}")
    last = run.latest("weights")
    view.say(f"run: {run.path}   look: patchwright show {run.path}   policy: {last[1] if last else '-'}")


def _cells(result: dict[str, Any]) -> tuple[str, str]:
    rate = f"{result['pass_at_1']:.1%} [{result['low']:.1%}, {result['high']:.1%}] of {result['total']}"
    eight = result["pass_at_8"]
    return rate, "-" if eight is None else f"{eight:.1%}"
