"""Many attempts at once: a bound on how many are in flight, retries of void ones, results as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace

from patchwright.rollout.rollout import Attempts, Job
from patchwright.types import Outcome, Sampling, Task, Trajectory


async def run_jobs(
    line: Attempts, jobs: Iterable[Job], *, concurrency: int = 64, retries: int = 2
) -> AsyncIterator[Trajectory]:
    """Attempt every job and yield trajectories in the order they finish.

    A void attempt is made again up to `retries` times; the last one is yielded whatever it is.
    Closing the iterator (or Ctrl-C) cancels what is in flight; boxes close with their attempts.
    """
    waiting = iter(jobs)
    running: set[asyncio.Task[Trajectory]] = set()
    try:
        while True:
            while len(running) < concurrency and (job := next(waiting, None)) is not None:
                running.add(asyncio.create_task(insist(line, job, retries)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def insist(line: Attempts, job: Job, retries: int) -> Trajectory:
    """Make an attempt, and again while it is void, up to `retries` times."""
    for pause in range(retries):
        result = await line.attempt(job)
        if result.outcome is not Outcome.VOID:
            return result
        await asyncio.sleep(0.2 * 2**pause)
    return await line.attempt(job)


def group_jobs(
    tasks: Sequence[Task], *, name: str, samples: int, sampling: Sampling, seed: int = 0
) -> list[Job]:
    """`samples` attempts at each task, each with its own sampling seed derived from `seed`.

    Example: `group_jobs(tasks, name="rl-3", samples=8, sampling=Sampling())` names its jobs
    `rl-3-TASK-0` ... `rl-3-TASK-7`, all in group `rl-3-TASK`.
    """
    jobs = []
    for index, task in enumerate(tasks):
        group = f"{name}-{task.id}"
        for k in range(samples):
            own = replace(sampling, seed=hash((seed, index, k)) % 2**31)
            jobs.append(Job(id=f"{group}-{k}", task=task, group=group, sampling=own))
    return jobs


async def collect(
    line: Attempts,
    jobs: Iterable[Job],
    *,
    concurrency: int = 64,
    retries: int = 2,
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """`run_jobs` gathered into a list; `on_done` sees each trajectory first (store it there)."""
    results = []
    async for trajectory in run_jobs(line, jobs, concurrency=concurrency, retries=retries):
        on_done(trajectory)
        results.append(trajectory)
    return results
