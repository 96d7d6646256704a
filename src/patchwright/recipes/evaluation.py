"""`patchwright eval`: an agent and a model on tasks, several attempts each, in a run's folder that a later
call goes on with, and in the files of `seed_files`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError
from patchwright.recipes.artefacts import keep_files
from patchwright.recipes.assembly import LineConfig, assemble
from patchwright.recipes.engines import PLACES
from patchwright.recipes.figures import Figures, Row, figures, table
from patchwright.recipes.images import refuse_missing
from patchwright.recipes.prices import Price, load_price
from patchwright.recipes.progress import Stage, View
from patchwright.recipes.seed_files import attempt_folder, seed_summary, write_attempt, write_lists
from patchwright.rollout.driver import group_jobs, run_jobs
from patchwright.rollout.events import FILE as EVENTS
from patchwright.rollout.events import Events
from patchwright.rollout.rollout import Job
from patchwright.store import Run
from patchwright.tasks.files import load_tasks
from patchwright.tasks.trust import doubt, trust_counts
from patchwright.types import Endpoint, Outcome, Task, Trajectory

__all__ = ["EvalRequest", "price_of", "run_evaluation", "sliced"]

STAGE = "eval"
_SHOW_EVERY = 0.5
"""Seconds between two looks at the figures: adding them up costs more the more there are."""
_SLICE = re.compile(r"(-?\d*):(-?\d*)")
_MAY_CHANGE = ("line.concurrency", "line.retries", *PLACES, "slice", "samples")
"""A second call may be quicker, or ask for more; what is there already counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRequest:
    """What is to be evaluated, and where it is written.

    Example: `EvalRequest(tasks=Path("tasks.jsonl"), model=Path("models/a"), run=Path("runs/a"), slice="0:5")`
    """

    tasks: Path
    model: Path | Endpoint
    run: Path
    samples: int = 1
    """Attempts at each task; the k-th of all tasks together are run k."""
    slice: str = ""
    """`0:5`, as in Python: which tasks of the file, all when empty."""
    prices: Path | None = None
    """A price table (`prices.py`)."""
    preset: str = ""
    """Where the configuration began, for the record."""

    @property
    def name(self) -> str:
        """The model's name in predictions and in the price table."""
        return self.model.model if isinstance(self.model, Endpoint) else str(self.model)


def sliced(tasks: Sequence[Task], text: str) -> list[Task]:
    """The tasks a slice names. Raises ConfigError when it is none, or leaves nothing."""
    found = _SLICE.fullmatch(text.strip()) if text else None
    if text and (found is None or "-" in found.groups()):
        raise ConfigError(f"`--slice {text}` is no slice; write for example `0:5`, `5:` or `-3:`")
    start, end = (int(part) if part else None for part in found.groups()) if found else (None, None)
    chosen = list(tasks[start:end])
    if not chosen:
        raise ConfigError(f"`--slice {text}` leaves none of the {len(tasks)} tasks; they are numbered from 0")
    return chosen


def price_of(request: EvalRequest) -> Price | None:
    """The model's price, where a table was given. Raises ConfigError when it is not in there."""
    return load_price(request.prices, request.name) if request.prices else None


async def run_evaluation(request: EvalRequest, config: LineConfig, view: View) -> tuple[Figures, list[Row]]:
    """Make the attempts that the run does not hold yet, write its files, and return what all came to.

    Attempts with a verdict are never made again; void ones are, once per call and as often as
    `line.retries` says. Stopped at any moment, the same call goes on. Raises ConfigError for what the user
    gave, StoreError when the disk refuses.
    """
    price = price_of(request)
    tasks = load_tasks(request.tasks)
    chosen = {task.id for task in sliced(tasks, request.slice)}
    stored = _stored(request, config)
    sampling = config.sampling.sampling()
    # Seeds come from a task's place in the whole file: slices of it add up to the same evaluation.
    if doubtful := doubt([task for task in tasks if task.id in chosen]):
        view.say(doubtful)
    jobs = group_jobs(tasks, name=STAGE, samples=request.samples, sampling=sampling, seed=config.seed)
    with Run.create_or_open(request.run, stored, may_change=_MAY_CHANGE) as run:
        evaluation = _Evaluation(run, [job for job in jobs if job.task.id in chosen], stored, price)
        with view.stage(STAGE, total=len(evaluation.runs), done=len(evaluation.rows)) as stage:
            try:
                await evaluation.go(request.model, config, stage, view.say)
            finally:
                found = evaluation.finish(request.name)
    return found, list(evaluation.rows.values())


def _stored(request: EvalRequest, config: LineConfig) -> dict[str, Any]:
    return {
        "line": config.model_dump(mode="json"),
        "tasks": str(request.tasks),
        "model": request.name,
        "endpoint": request.model.base_url if isinstance(request.model, Endpoint) else "",
        "preset": request.preset,
        "samples": request.samples,
        "slice": request.slice,
    }


class _Evaluation:
    """The attempts of one evaluation: those there are, and those still to be made."""

    def __init__(self, run: Run, jobs: Sequence[Job], stored: dict[str, Any], price: Price | None) -> None:
        self.runs = {job.id: int(job.id.removeprefix(f"{job.group}-")) for job in jobs}
        self._tasks = {job.id: job.task.id for job in jobs}
        self._trust = trust_counts({job.task.id: job.task for job in jobs}.values())
        self._run, self._jobs, self._stored, self._price = run, jobs, stored, price
        self._shown = 0.0
        self.rows = {
            trajectory.id: Row.of(trajectory, self.runs[trajectory.id])
            for trajectory in self._kept()
            if trajectory.outcome is not Outcome.VOID
        }

    async def go(
        self, model: Path | Endpoint, config: LineConfig, stage: Stage, say: Callable[[str], None]
    ) -> None:
        """Make what is missing; each attempt is stored and in its files before it counts."""
        todo = [job for job in self._jobs if job.id not in self.rows]
        self._show(stage)
        if not todo:
            return
        refuse_missing((job.task for job in todo), config.sandbox)
        async with assemble(config, model, say) as line:
            keeping = replace(line, keep=self._keep, events=Events(self._run.path / EVENTS))
            done = run_jobs(keeping, todo, concurrency=config.concurrency, retries=config.retries)
            async for trajectory in done:
                self._run.put(trajectory, stage=STAGE, step=0, version=0)
                self._write(trajectory)
                self.rows[trajectory.id] = Row.of(trajectory, self.runs[trajectory.id])
                stage.advance()
                self._show(stage)
        self._shown = 0.0
        self._show(stage)

    def finish(self, model: str) -> Figures:
        """Write what is about all attempts, also when only some were made."""
        found = figures(self.rows.values(), self._price)
        if not self.rows:
            return found
        self._run.seal(STAGE, 0)
        write_lists(self._run.path, self._attempts(), model)
        self._run.write_summary(
            {
                **found.record(),
                **seed_summary(found, self._stored),
                "trust": self._trust,
                "stages": found.stages(STAGE),
            }
        )
        return found

    def _attempts(self) -> Iterator[tuple[Trajectory, Row]]:
        for trajectory in self._kept():
            row = self.rows.get(trajectory.id)
            if row is not None:
                self._ensure(trajectory)
                yield trajectory, row

    def _kept(self) -> Iterator[Trajectory]:
        for trajectory in self._run.trajectories(stage=STAGE):
            if trajectory.id in self.runs:
                yield trajectory

    def _folder(self, name: str) -> Path:
        return attempt_folder(self._run.path, self._tasks[name], self.runs[name])

    def _keep(self, name: str, left: Mapping[str, bytes]) -> None:
        keep_files(self._folder(name) / "artefacts", left)

    def _ensure(self, trajectory: Trajectory) -> None:
        """A process that was killed may have stored an attempt and not written its files."""
        if not (self._folder(trajectory.id) / "meta.json").exists():
            self._write(trajectory)

    def _write(self, trajectory: Trajectory) -> None:
        line = self._stored["line"]
        meta = {
            "run": self.runs[trajectory.id],
            "model": self._stored["model"],
            "api_base": self._stored["endpoint"],
            "agent": line["agent"]["use"],
            "step_limit": line["agent"]["max_turns"],
            "max_tokens": line["sampling"]["max_tokens"],
            "temperature": line["sampling"]["temperature"],
        }
        write_attempt(self._folder(trajectory.id), trajectory, meta)

    def _show(self, stage: Stage) -> None:
        if time.monotonic() - self._shown < _SHOW_EVERY:
            return
        self._shown = time.monotonic()
        rows = list(self.rows.values())
        stage.note(figures(rows, self._price).line() if rows else "")
        stage.below(table(rows, self._price) if rows else None)
