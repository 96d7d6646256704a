"""The attempts of a run of reinforcement learning, step after step: made, stored, handed to the trainer once.

Which groups a step trains on is journalled before it is trained, so a run that is killed trains the same, and
none of them again.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from patchwright.engine.base import Engine
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.progress import Stage
from patchwright.recipes.rl_config import RlConfig
from patchwright.recipes.rounds import Rounds
from patchwright.recipes.schedule import Pace
from patchwright.recipes.scores import Scores
from patchwright.rollout.driver import group_jobs, insist
from patchwright.rollout.rollout import Attempts, Job
from patchwright.store import Run
from patchwright.types import Outcome, Task, Trajectory

__all__ = ["Rollouts", "choose"]

_BATCH = "rl-batch"
"""Journal: the groups a step trains on. Nothing is written where they are those of its own round."""


def choose(tasks: Sequence[Task], step: int, count: int, seed: int) -> list[Task]:
    """The tasks of a round: passes over all tasks, each pass in its own order. Depends on nothing else, so
    a resumed run goes on with the tasks an unbroken one would have had."""
    count = min(count, len(tasks))
    per_pass = len(tasks) // count
    turn, place = divmod(step - 1, per_pass)
    order = list(range(len(tasks)))
    random.Random(f"{seed}/{turn}").shuffle(order)
    return [tasks[i] for i in order[place * count : (place + 1) * count]]


@dataclass(kw_only=True)
class Rollouts:
    """Makes and stores the attempts of a run. Use `open`.

    Example::

        async with rollouts.open(done=0) as batches:
            rollouts = await batches.take(1)
            ...  # train, load the weights
            batches.loaded()
    """

    line: Attempts
    scores: Scores
    engine: Engine
    """Answers the attempts."""
    run: Run
    tasks: Sequence[Task]
    config: RlConfig
    pace: LineConfig
    first: int
    """Version of the weights the run begins with."""
    progress: Stage

    @asynccontextmanager
    async def open(self, done: int) -> AsyncIterator[Batches]:
        """Begin making attempts, after `done` finished steps."""
        config = self.config
        size = min(config.tasks_per_step, len(self.tasks))
        batches = {mark.step: list(mark.info["groups"]) for mark in self.run.marks(_BATCH)}
        own = (self._names(step) for step in range(1, done + 1) if step not in batches)
        before = (batches[step] for step in range(1, done + 1) if step in batches)
        rounds = Rounds(
            pace=Pace(
                steps=config.steps, size=size, staleness=config.max_staleness, ahead=config.over_sample
            ),
            jobs=self.jobs,
            make=self._make,
            have=self._have,
            concurrency=self.pace.concurrency,
            patience=float("inf") if config.straggler_seconds is None else config.straggler_seconds,
            done=done,
            taken=[name for names in (*own, *before) for name in names],
        )
        async with rounds:
            yield Batches(rounds=rounds, run=self.run, journal=config.max_staleness > 0, known=batches)

    def jobs(self, step: int) -> list[Job]:
        """The attempts of a round."""
        config, pace = self.config, self.pace
        jobs = group_jobs(
            choose(self.tasks, step, config.tasks_per_step, pace.seed),
            name=f"rl-{step}",
            samples=config.samples_per_task,
            sampling=pace.sampling.sampling(),
            seed=hash((pace.seed, step)),
        )
        return [replace(job, engine=self.engine) for job in jobs]

    def _names(self, step: int) -> list[str]:
        return list(dict.fromkeys(job.group for job in self.jobs(step)))

    def _have(self, step: int) -> dict[str, int]:
        begun = {entry.id: entry.version - self.first for entry in self.run.entries(stage="rl", step=step)}
        stored = (t for t in self.run.trajectories(stage="rl", step=step) if t.outcome is not Outcome.VOID)
        return {t.id: begun[t.id] for t in stored if not self.scores.lacking(t)}

    async def _make(self, job: Job, step: int) -> None:
        """Make an attempt, unless it is made and only a score is missing, and store it."""
        run, entry = self.run, self.run.entry(job.id)
        if entry is not None and entry.outcome is not Outcome.VOID:  # stopped before it was scored
            trajectory, version = run.trajectory(job.id), entry.version
        else:
            version = self.engine.version
            trajectory = await insist(self.line, job, self.pace.retries)
            run.put(trajectory, stage="rl", step=step, version=version)
        scored = await self.scores.finish(trajectory, job.task.prompt)
        if scored is not trajectory:  # a score that never came costs no graded attempt
            run.put(scored, stage="rl", step=step, version=version)
        total = min(self.config.tasks_per_step, len(self.tasks)) * self.config.samples_per_task
        self.progress.note(f"round {step}: {len(run.keys('rl', step))}/{total} attempts")


@dataclass(kw_only=True)
class Batches:
    """What each step trains on. Made by `Rollouts.open`."""

    rounds: Rounds
    run: Run
    journal: bool
    """Groups may be trained in another step than their round's."""
    known: dict[int, list[str]]
    """Groups of the steps that were journalled before a run was stopped."""
    _homes: Sequence[int] = ()
    """Rounds the last step took groups of."""

    async def take(self, step: int) -> list[Trajectory]:
        """Wait for the attempts a step trains on: whole groups, in the order of their ids."""
        groups = await self.rounds.take(self.known.get(step))
        if self.journal and step not in self.known:
            self.run.mark(_BATCH, step, groups=groups)
        self._homes = sorted({self.rounds.schedule.home(name) for name in groups})
        wanted = set(groups)
        return [t for home in self._homes for t in self.run.get("rl", home) if t.group in wanted]

    def backlog(self) -> dict[str, float | int | None]:
        """Whole groups that wait for a later step, and attempts under way."""
        return {"queue": self.rounds.schedule.queue, "in_flight": self.rounds.in_flight}

    def loaded(self) -> None:
        """The weights of the step are loaded: attempts go on under them."""
        self.rounds.publish()

    def seal(self) -> None:
        """The step is finished: seal the rounds it was the last to train on."""
        for home in self._homes:
            if self.rounds.schedule.settled(home):
                self.run.seal("rl", home)
