"""Attempts in flight while the trainer works: `schedule.py` on the clock of an event loop.

A free slot is filled the moment an attempt ends, whether anybody waits for a round or not; so attempts go on
through updates of the weights, and of each token it is recorded which weights sampled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from patchwright.errors import InfraError
from patchwright.recipes.schedule import Pace, Schedule
from patchwright.rollout.rollout import Job

__all__ = ["Rounds"]


@dataclass(kw_only=True)
class Rounds:
    """Makes the attempts of a run; closing it cancels what is in flight.

    Example::

        async with Rounds(pace=Pace(steps=20, size=16), jobs=jobs, make=make, concurrency=64) as rounds:
            groups = await rounds.take()
            ...  # train on them, load the weights
            rounds.publish()
    """

    pace: Pace
    jobs: Callable[[int], Sequence[Job]]
    """The attempts of a round, group after group, in the order they start."""
    make: Callable[[Job, int], Coroutine[Any, Any, None]]
    """Make an attempt of a round and store it."""
    have: Callable[[int], Mapping[str, int]] = lambda _: {}
    """See `Schedule.have`."""
    concurrency: int
    """Attempts in flight at most."""
    patience: float = float("inf")
    """Seconds a step that has enough to train on waits for groups that would grow too old."""
    done: int = 0
    """Steps that are finished."""
    taken: Collection[str] = ()
    """Groups they trained on."""
    schedule: Schedule = field(init=False)
    """How far every group has come."""
    _jobs: dict[str, tuple[Job, int]] = field(default_factory=dict)
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _fault: BaseException | None = None

    def __post_init__(self) -> None:
        self.schedule = Schedule(
            pace=self.pace, groups=self._groups, have=self.have, done=self.done, taken=set(self.taken)
        )

    async def __aenter__(self) -> Rounds:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._fault = self._fault or asyncio.CancelledError()  # nothing more is started
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return len(self._running)

    async def take(self, again: Collection[str] | None = None) -> list[str]:
        """Wait for the groups of the next step, and take them.

        `again` are those of a step that had taken its groups when the run was stopped: they are taken as they
        are. Raises what an attempt's machinery raised.
        """
        self._fill()
        found = await self._again(again) if again is not None else await self._next()
        self.schedule.take(found)
        return found

    def publish(self) -> None:
        """The weights of the step are loaded: more groups may start, under them."""
        self.schedule.publish()
        self._fill()

    async def _again(self, names: Collection[str]) -> list[str]:
        while not self.schedule.whole(names):
            await self._hear(None)
        return list(names)

    async def _next(self) -> list[str]:
        clock, since, cut = asyncio.get_running_loop().time, float("inf"), False
        while (found := self.schedule.pick(cut=cut)) is None:
            if self.schedule.held:
                since = min(since, clock())
            left = since + self.patience - clock()
            await self._hear(left if left < float("inf") else None)
            cut = clock() >= since + self.patience
        return found

    async def _hear(self, seconds: float | None) -> None:
        """Wait for an attempt to end, or so long."""
        if self._fault is not None:
            raise self._fault
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
        if self._fault is not None:
            raise self._fault

    def _fill(self) -> None:
        """Start what may start, in its order, in the free slots."""
        for name in self.schedule.startable():
            if self._fault is not None or len(self._running) >= self.concurrency:
                return
            self.schedule.start(name)
            task = asyncio.create_task(self.make(*self._jobs[name]))
            self._running.add(task)
            task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        cut = InfraError(f"attempt {name} was cancelled by others") if task.cancelled() else None
        self._fault = self._fault or cut or task.exception()
        if self._fault is None:
            self.schedule.made(name)
            self._fill()
        self._news.set()

    def _groups(self, step: int) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for job in self.jobs(step):
            groups.setdefault(job.group, []).append(job.id)
            self._jobs[job.id] = (job, step)
        return groups
