"""`patchwright show --json`: a run, or one of its attempts, for machines."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

from patchwright.recipes.compare import evaluations
from patchwright.store import Run

__all__ = ["run_record", "trajectory_record"]


def run_record(run: Run) -> dict[str, Any]:
    """What the run was told, its attempts by stage and outcome, evaluations, finished steps, ids."""
    attempts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for stage, _, outcome, count in run.counts():
        attempts[stage][str(outcome)] += count
    found = [{"stage": stage, "set": name, **figures} for (stage, name), figures in evaluations(run)]
    marks = [{"stage": mark.stage, "step": mark.step, "time": mark.time, **mark.info} for mark in run.marks()]
    return {
        "run": str(run.path),
        "config": run.config,
        "attempts": attempts,
        "evaluations": found,
        "steps": marks,
        "summary": run.summary(),
        "ids": [entry.id for entry in run.entries()],
    }


def trajectory_record(run: Run, name: str) -> dict[str, Any]:
    """All of one attempt. Raises ConfigError when the run has none of that id."""
    trajectory, entry = run.trajectory(name), run.entry(name)
    stored = {"stage": entry.stage, "step": entry.step, "version": entry.version} if entry else {}
    return {**asdict(trajectory), "outcome": str(trajectory.outcome), **stored}
