"""`patchwright rerank`: score the attempts of a run with a verifier, and see what choosing the best is worth.

Scores are stored in the run, so a second call, or one that was interrupted, scores what is missing only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError
from patchwright.recipes.best_of import BestOf, Scored, best_of
from patchwright.recipes.best_of_plot import svg
from patchwright.recipes.progress import Stage, View
from patchwright.recipes.stages import stages_like
from patchwright.recipes.verifier_model import ScoringConfig, Verifier, open_verifier
from patchwright.store import Entry, Run, files
from patchwright.types import Outcome, Trajectory

__all__ = ["RerankRequest", "run_rerank", "run_trained", "score_run"]

_AT_ONCE = 64
"""Attempts scored and stored together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankRequest:
    """What is to be ranked. Example: `RerankRequest(runs=(Path("runs/a"),), verifier=Path("weights/v1"))`"""

    runs: tuple[Path, ...]
    """Runs with attempts at the same tasks; together they are ranked."""
    verifier: Path
    stage: str = ""
    """Pattern of the stages whose attempts are ranked; may be left out where there is one stage."""
    attempts: int = 0
    """How many attempts each task should have; as many as the task with the most when 0."""
    out: Path | None = None
    """Folder of the report; `rerank/` of the first run when None."""
    allow_overlap: bool = False
    """Rank attempts at tasks the verifier was trained on all the same."""
    scoring: ScoringConfig = field(default_factory=ScoringConfig)

    @property
    def report(self) -> Path:
        """Where the report is written."""
        return self.out or self.runs[0] / "rerank"


async def run_rerank(request: RerankRequest, view: View) -> BestOf:
    """Score what has no score yet, then write `rerank.json`, `rerank.svg` and `best.jsonl`.

    Raises ConfigError when a run has several stages and none was chosen, or when the verifier was trained on
    the tasks; EngineError when its process died.
    """
    chosen = [_chosen(path, request.stage) for path in request.runs]
    tasks = {entry.task_id for entries in chosen for entry in entries}
    async with open_verifier(request.verifier, request.scoring) as verifier:
        _check(verifier, tasks, request)
        for path, entries in zip(request.runs, chosen, strict=True):
            await score_run(path, entries, verifier, view)
    ranked = [
        row
        for path, names in zip(request.runs, chosen, strict=True)
        for row in _ranked(path, names, verifier)
    ]
    scored = [Scored(task_id=t.task_id, score=s, resolved=t.outcome is Outcome.RESOLVED) for t, s in ranked]
    found = best_of(scored, tasks=sorted(tasks), runs=request.attempts)
    _write(request, found, verifier.name, ranked)
    return found


def _chosen(path: Path, pattern: str) -> list[Entry]:
    with Run.open(path) as run:
        entries = run.entries()
    stages = sorted({entry.stage for entry in entries})
    if not pattern and len(stages) > 1:
        raise ConfigError(f"run {path} has the stages {', '.join(stages)}; choose with --stage")
    if not entries:
        raise ConfigError(f"run {path} has no attempts")
    wanted = stages_like(pattern, stages, f"run {path}")
    return [entry for entry in entries if entry.stage in wanted]


def _check(verifier: Verifier, tasks: set[str], request: RerankRequest) -> None:
    if verifier.about.prompt.unit != "attempt":
        raise ConfigError(
            f"{request.verifier} judges turns; rerank needs one trained with `verifier.prompt.unit=attempt`"
        )
    seen = tasks.intersection(verifier.about.tasks)
    if seen and not request.allow_overlap:
        raise ConfigError(
            f"the verifier was trained on {len(seen)} of the {len(tasks)} tasks ({min(seen)}), which would "
            "flatter it; rank attempts at other tasks, or say --allow-overlap"
        )


async def run_trained(folder: Path, scoring: ScoringConfig, run: Path, stage: str, view: View) -> int:
    """`patchwright judge --verifier`: score stored attempts with a verifier of turns (or of whole attempts);
    returns how many there are. Raises ConfigError when it is no verifier."""
    entries = _chosen(run, stage)
    async with open_verifier(folder, scoring) as verifier:
        await score_run(run, entries, verifier, view)
    return len(entries)


async def score_run(path: Path, entries: Sequence[Entry], verifier: Verifier, view: View) -> None:
    """Score the named attempts that have no score of this verifier, and store them again with it."""
    with Run.open(path) as run:
        config = run.config
    with (
        Run.create_or_open(path, config) as run,
        view.stage("score", total=len(entries)) as progress,
    ):
        for (stage, step), group in groupby(entries, key=lambda entry: (entry.stage, entry.step)):
            changed = await _score_step(run, list(group), verifier, progress)
            if changed:
                run.seal(stage, step)


async def _score_step(run: Run, entries: Sequence[Entry], verifier: Verifier, progress: Stage) -> bool:
    versions = {entry.id: entry.version for entry in entries}
    stage, step, changed = entries[0].stage, entries[0].step, False
    for page in _pages(run.trajectories(stage=stage, step=step), versions):
        todo = [trajectory for trajectory in page if not verifier.has(trajectory)]
        for trajectory in await verifier.score(todo):
            run.put(trajectory, stage=stage, step=step, version=versions[trajectory.id])
        changed = changed or bool(todo)
        progress.advance(len(page))
    return changed


def _pages(trajectories: Iterator[Trajectory], wanted: dict[str, int]) -> Iterator[list[Trajectory]]:
    page: list[Trajectory] = []
    for trajectory in trajectories:
        page += [trajectory] if trajectory.id in wanted else []
        if len(page) == _AT_ONCE:
            yield page
            page = []
    if page:
        yield page


def _ranked(path: Path, entries: Sequence[Entry], verifier: Verifier) -> Iterator[tuple[Trajectory, float]]:
    """Every attempt with a verdict, and its score."""
    names = {entry.id for entry in entries}
    steps = sorted({(entry.stage, entry.step) for entry in entries})
    with Run.open(path) as run:
        for stage, step in steps:
            for trajectory in run.trajectories(stage=stage, step=step):
                if trajectory.id in names and trajectory.grade is not None and trajectory.failure is None:
                    yield trajectory, trajectory.grade.scores[verifier.name]


def _write(
    request: RerankRequest, found: BestOf, name: str, ranked: Sequence[tuple[Trajectory, float]]
) -> None:
    best: dict[str, tuple[Trajectory, float]] = {}
    for trajectory, score in ranked:
        if trajectory.task_id not in best or score > best[trajectory.task_id][1]:
            best[trajectory.task_id] = (trajectory, score)
    lines = [json.dumps(_prediction(t, score, name)) for t, score in best.values()]
    about = {"verifier": str(request.verifier), "score": name, "runs": [str(path) for path in request.runs]}
    title = f"{found.tasks} tasks, {found.runs} attempts each: mean over tasks, 95 % bands"
    report = request.report
    with files.attributed("write the report", report):
        report.mkdir(parents=True, exist_ok=True)
        files.write_text(report / "rerank.json", json.dumps(about | found.record(), indent=1) + "\n")
        files.write_text(report / "rerank.svg", svg(found, title))
        files.write_text(report / "best.jsonl", "".join(f"{line}\n" for line in lines))


def _prediction(trajectory: Trajectory, score: float, name: str) -> dict[str, Any]:
    """The official form of a prediction, and where it comes from."""
    official = {
        "instance_id": trajectory.task_id,
        "model_patch": trajectory.patch,
        "model_name_or_path": name,
    }
    return official | {"attempt": trajectory.id, "score": score}
