"""Expert trajectories: a script answers the unmodified bash agent, in the same boxes, through the same
gateway, so that what SFT trains on was run and graded like everything else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from patchwright.agent.expert import Script, expert_script
from patchwright.engine.scripted import ScriptedEngine
from patchwright.recipes.progress import Stage
from patchwright.render import Renderer
from patchwright.rollout.driver import run_jobs
from patchwright.rollout.events import FILE as EVENTS
from patchwright.rollout.events import Events
from patchwright.rollout.rollout import Job, Line
from patchwright.store import Run
from patchwright.types import Outcome, Task, Trajectory

STYLES = ("direct", "careful", "recover")
"""Fix; fix and test; wrong fix, test, right fix."""

IN_FLIGHT = 8
"""Nobody samples: two cores are full with a few boxes."""


class Experts:
    """Rolls the scripted expert on tasks; the renderer gives its words their token ids.

    Example: `await Experts(line, renderer, run).roll(tasks, 0, mix=(1, 0, 0))`
    """

    def __init__(
        self, line: Line, renderer: Renderer, run: Run, *, stage: str = "expert", seed: int = 0
    ) -> None:
        self._line = replace(line, events=Events(run.path / EVENTS))
        self._renderer, self._run = renderer, run
        self.stage, self._seed = stage, seed

    async def roll(
        self, tasks: Sequence[Task], step: int, mix: Sequence[float], progress: Stage | None = None
    ) -> list[Trajectory]:
        """Roll the expert once on each task, skipping what the run holds; returns all attempts."""
        plan = scripts(tasks, mix, self._seed)
        entries = self._run.entries(stage=self.stage, step=step)
        known = {entry.id for entry in entries if entry.outcome is not Outcome.VOID}
        jobs = [self._job(task, plan[task.id]) for task in tasks]
        todo = [job for job in jobs if job.id not in known]
        async for trajectory in run_jobs(self._line, todo, concurrency=IN_FLIGHT, retries=0):
            marked = _marked(trajectory, plan[trajectory.task_id])
            self._run.put(marked, stage=self.stage, step=step, version=0)
            if progress:
                progress.advance()
        self._run.seal(self.stage, step)
        return self._run.get(self.stage, step)

    def _job(self, task: Task, script: Script) -> Job:
        speaker = self._renderer
        engine = ScriptedEngine(script.replies, speaker.encode, speaker.decode, stop_id=speaker.stop_ids[0])
        return Job(id=f"{self.stage}-{task.id}", task=task, engine=engine)


def scripts(tasks: Sequence[Task], mix: Sequence[float], seed: int) -> dict[str, Script]:
    """One script per task id; `mix` weighs the styles. The same seed gives the same scripts."""
    chosen = {}
    for task in tasks:
        rng = random.Random(f"{seed}/{task.id}")
        style = rng.choices(STYLES, mix)[0]
        chosen[task.id] = expert_script(task, style, rng)
    return chosen


def _marked(trajectory: Trajectory, script: Script) -> Trajectory:
    """Deliberate mistakes are recorded, but nobody should learn them."""
    pairs = zip(trajectory.turns, script.train, strict=False)
    return replace(trajectory, turns=tuple(replace(turn, train=train) for turn, train in pairs))
