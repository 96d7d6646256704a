"""A run of reinforcement learning without a model: how many steps an hour come of attempts of given lengths.

The schedule is the real one (`schedule.py`); engine, trainer and time are simulated, as events on a clock of
their own. An attempt of length L takes L seconds while the engine has room; with more attempts than
`capacity` in flight each goes on slower in proportion (processor sharing). The trainer takes `train_seconds`
a step, the engine `load_seconds` to load what came of it, while attempts go on.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from patchwright.recipes.schedule import Pace, Schedule

__all__ = ["Plant", "Speed", "long_tail", "simulate"]

_HOUR = 3600.0


def long_tail(
    count: int, *, median: float = 240.0, spread: float = 1.0, limit: float = 3600.0, seed: int = 0
) -> list[float]:
    """Lengths of attempts in seconds: log-normal (`spread`: the deviation of the logarithm), cut off at the
    time an attempt may take. At the defaults the mean is 1.6 times the median, and the longest of 128 is as a
    rule ten times it."""
    draw = random.Random(seed)
    return [min(limit, draw.lognormvariate(math.log(median), spread)) for _ in range(count)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plant:
    """What is simulated. Example: `Plant(pace=Pace(steps=40, size=16, staleness=1))`"""

    pace: Pace
    samples: int = 8
    """Attempts of a group."""
    concurrency: int = 256
    """Attempts in flight at most."""
    capacity: float = 128.0
    """Attempts the engine serves at full speed."""
    train_seconds: float = 240.0
    """A step of the trainer, with what it writes."""
    load_seconds: float = 20.0
    """How long the engine takes to load weights."""
    patience: float = math.inf
    """`rl.straggler_seconds`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What came of it."""

    steps_per_hour: float
    staleness_mean: float
    """Versions, over the tokens that train."""
    staleness_max: int
    too_old: float
    """Share of the tokens that are left out of the loss."""
    trainer_idle: float
    engine_idle: float
    """Share of the engine's room that was not used."""
    queue: float
    """Whole groups that waited when a step began, on average."""


def simulate(lengths: Sequence[float], plant: Plant) -> Speed:
    """Play a run whose attempts take `lengths`, over and over, in the order they start."""
    world = _World(lengths, plant)
    for _ in range(plant.pace.steps):
        world.step()
    return world.speed()


@dataclass(slots=True)
class _Sums:
    """Over the steps so far."""

    age: float = 0.0
    trained: float = 0.0
    sampled: float = 0.0
    oldest: int = 0
    waited: float = 0.0
    used: float = 0.0
    queue: int = 0


@dataclass(slots=True)
class _World:
    lengths: Sequence[float]
    plant: Plant
    schedule: Schedule = field(init=False)
    now: float = 0.0
    work: float = 0.0
    """Seconds of its own that an attempt would have had that was in flight from the beginning."""
    published: list[float] = field(default_factory=lambda: [0.0])
    """`work` when each version was loaded."""
    began: dict[str, float] = field(default_factory=dict)
    ends: list[tuple[float, str]] = field(default_factory=list)
    """Attempts in flight by the `work` at which they end."""
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    sums: _Sums = field(default_factory=_Sums)

    def __post_init__(self) -> None:
        self.schedule = Schedule(pace=self.plant.pace, groups=self._groups)

    def _groups(self, step: int) -> dict[str, list[str]]:
        names = [f"{step}-{k}" for k in range(self.plant.pace.size)]
        return {name: [f"{name}-{k}" for k in range(self.plant.samples)] for name in names}

    # --- a step -------------------------------------------------------------------------------

    def step(self) -> None:
        """Wait for a step's groups, train on them, load what came of it."""
        begun = self.now
        taken = self._wait()
        self.sums.waited += self.now - begun
        self.schedule.take(taken)
        self.sums.queue += self.schedule.queue
        for name in taken:
            for attempt in self._groups(self.schedule.home(name))[name]:
                self._count(*self.spans.pop(attempt))
        self._run(self.now + self.plant.train_seconds)
        loading = self.now
        self._run(self.now + self.plant.load_seconds)
        self.sums.waited += self.now - loading
        self.published.append(self.work)
        self.schedule.publish()

    def _wait(self) -> list[str]:
        self._fill()
        held = math.inf
        while (found := self.schedule.pick(cut=self.now >= held + self.plant.patience)) is None:
            held = min(held, self.now) if self.schedule.held else math.inf
            self._run(held + self.plant.patience, one=True)
        return found

    def _count(self, begin: float, end: float) -> None:
        """The tokens of an attempt that is trained, by the version that sampled them."""
        current, allowed = self.schedule.done, self.plant.pace.staleness
        for version, (since, until) in enumerate(pairwise([*self.published, math.inf])):
            share = min(end, until) - max(begin, since)
            if share <= 0:
                continue
            age = current - version
            self.sums.sampled += share
            if age <= allowed:
                self.sums.age += share * age
                self.sums.trained += share
                self.sums.oldest = max(self.sums.oldest, age)

    # --- time ---------------------------------------------------------------------------------

    def _run(self, until: float, *, one: bool = False) -> None:
        """Let attempts go on until a time, or until the next of them ends (`one`)."""
        while self.now < until:
            rate = min(1.0, self.plant.capacity / max(1, len(self.ends)))
            next_end = self.now + (self.ends[0][0] - self.work) / rate if self.ends else math.inf
            moment = min(until, next_end)
            self.sums.used += min(len(self.ends), self.plant.capacity) * (moment - self.now)
            self.work += (moment - self.now) * rate
            self.now = moment
            if next_end <= until:
                self._end()
                if one:
                    return

    def _end(self) -> None:
        self.work, attempt = heapq.heappop(self.ends)
        self.spans[attempt] = (self.began.pop(attempt), self.work)
        self.schedule.made(attempt)
        self._fill()

    def _fill(self) -> None:
        for attempt in self.schedule.startable():
            if len(self.ends) >= self.plant.concurrency:
                return
            self.schedule.start(attempt)
            self.began[attempt] = self.work
            heapq.heappush(self.ends, (self.work + self._length(attempt), attempt))

    def _length(self, attempt: str) -> float:
        """The same for the same attempt, whenever it starts."""
        step, group, sample = map(int, attempt.split("-"))
        place = ((step - 1) * self.plant.pace.size + group) * self.plant.samples + sample
        return self.lengths[place % len(self.lengths)]

    def speed(self) -> Speed:
        """What came of the run so far."""
        sums, steps = self.sums, self.schedule.done
        return Speed(
            steps_per_hour=steps * _HOUR / self.now,
            staleness_mean=sums.age / sums.trained,
            staleness_max=sums.oldest,
            too_old=1 - sums.trained / sums.sampled,
            trainer_idle=sums.waited / self.now,
            engine_idle=1 - sums.used / (self.plant.capacity * self.now),
            queue=sums.queue / steps,
        )
