"""Evaluation: held-out tasks, several attempts each, resolve rate with its interval. Stored attempts are
not made again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from patchwright.metrics import interval, mean_pass_at_k
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.cheats import attempted_cheats
from patchwright.recipes.progress import View
from patchwright.rollout.driver import group_jobs, run_jobs
from patchwright.rollout.events import FILE as EVENTS
from patchwright.rollout.events import Events
from patchwright.rollout.rollout import Line
from patchwright.store import Run
from patchwright.types import Outcome, Task, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a set of attempts came to. Void attempts are counted and left out of every rate."""

    resolved: int
    total: int
    """Attempts with a verdict."""
    void: int
    pass_at_1: float
    low: float
    high: float
    """95 % interval of `pass_at_1`, clustered by task."""
    pass_at_8: float | None
    """None when no task had 8 attempts with a verdict."""
    cheat_rate: float
    """Share of attempts with a verdict that have an integrity finding."""

    def record(self) -> dict[str, Any]:
        """JSON values for `summary.json`."""
        return asdict(self)


def result(trajectories: Iterable[Trajectory]) -> Result:
    """Reduce attempts to rates. Example: 8 attempts at one task, 4 resolved: `pass_at_1 == 0.5`."""
    by_task: dict[str, list[Outcome]] = defaultdict(list)
    attempts = list(trajectories)
    for trajectory in attempts:
        by_task[trajectory.task_id].append(trajectory.outcome)
    count = Counter(outcome for outcomes in by_task.values() for outcome in outcomes)
    mean = interval(by_task)
    return Result(
        resolved=count[Outcome.RESOLVED],
        total=count[Outcome.RESOLVED] + count[Outcome.UNRESOLVED],
        void=count[Outcome.VOID],
        pass_at_1=mean.mean,
        low=mean.low,
        high=mean.high,
        pass_at_8=mean_pass_at_k(by_task, 8),
        cheat_rate=attempted_cheats(attempts),
    )


async def evaluate(
    line: Line,
    run: Run,
    tasks: Sequence[Task],
    config: LineConfig,
    *,
    stage: str,
    samples: int,
    view: View,
    version: int = 0,
) -> Result:
    """Evaluate under the stage's name.

    Attempts the run already holds under `stage` with a verdict are kept: an interrupted evaluation
    goes on where it stopped.
    """
    line, sampling = replace(line, events=Events(run.path / EVENTS)), config.sampling.sampling()
    jobs = group_jobs(tasks, name=stage, samples=samples, sampling=sampling, seed=config.seed)
    known = {entry.id for entry in run.entries(stage=stage) if entry.outcome is not Outcome.VOID}
    resolved = len(run.entries(stage=stage, outcome=Outcome.RESOLVED))
    flagged = sum(_flagged(trajectory) for trajectory in run.trajectories(stage=stage)) if known else 0
    with view.stage(stage, total=len(jobs), done=len(known)) as progress:
        todo = [job for job in jobs if job.id not in known]
        async for trajectory in run_jobs(line, todo, concurrency=config.concurrency, retries=config.retries):
            run.put(trajectory, stage=stage, step=0, version=version)
            resolved += trajectory.outcome is Outcome.RESOLVED
            flagged += _flagged(trajectory)
            progress.advance()
            progress.note(
                f"resolved {resolved}/{progress.done}" + (f", flagged {flagged}" if flagged else "")
            )
    run.seal(stage, 0)
    return result(run.trajectories(stage=stage))


def _flagged(trajectory: Trajectory) -> bool:
    return attempted_cheats([trajectory]) > 0
