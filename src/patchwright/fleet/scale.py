"""How a fleet behaves when it is large: agents, drivers, a pool and nodes as queues, and time that jumps.

    agent thinks -> driver (gateway and client) -> pool, unless direct -> a core of its node -> again
    after the last turn: two leases (its own box, the grader's) at the pool, and the tests on a core

Every place serves first come, first served. What work costs is measured (`docs/scale.md` says where); how
long models think and tests run is the user's to say. For `patchwright bench scale`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from math import ceil

from pydantic import Field

from patchwright.config import Config

__all__ = ["Costs", "Load", "Place", "Site", "simulate"]


class Costs(Config):
    """Milliseconds of CPU of one thing, as measured; the defaults are those of docs/scale.md."""

    driver: float = Field(default=0.3, ge=0)
    """A command, at the client."""
    turn: float = Field(default=1.35, ge=0)
    """A model call, in the gateway."""
    pool: float = Field(default=0.5, ge=0)
    """A command, in the pool."""
    lease: float = Field(default=3.75, ge=0)
    """A lease's life, in pool and client."""
    node: float = Field(default=0.5, ge=0)
    """A command, at the node's server."""
    box: float = Field(default=1.36, ge=0)
    """A command that does nothing, in its box."""


class Site(Config):
    """A fleet and what it is for."""

    boxes: int = Field(default=10_000, ge=1)
    """Attempts at once."""
    nodes: int = Field(default=625, ge=1)
    """Machines that make boxes."""
    cores: int = Field(default=16, ge=1)
    """Cores of each."""
    drivers: int = Field(default=1, ge=1)
    """Processes that roll out, each with a gateway of its own."""
    direct: bool = True
    """Commands go straight to the nodes."""
    think: float = Field(default=10.0, ge=0)
    """Seconds from a command's result to the next command, on average: the engine."""
    turns: int = Field(default=20, ge=1)
    """Commands of an attempt."""
    work: float = Field(default=0.1, ge=0)
    """CPU seconds of a command besides its costs."""
    tests: float = Field(default=10.0, ge=0)
    """CPU seconds of grading."""


class Load(Config):
    """What became of it, once it ran evenly."""

    commands: float
    """A second."""
    attempts: float
    """Graded, a second."""
    wait_p50: float
    """Milliseconds from a command's start to its result, beyond its own work."""
    wait_p95: float
    driver: float
    """Share of their time that drivers are busy."""
    pool: float
    nodes: float

    @property
    def bottleneck(self) -> str:
        """Who is busiest."""
        shares = {"driver": self.driver, "pool": self.pool, "nodes": self.nodes}
        return max(shares, key=lambda name: shares[name])


class Place:
    """Some servers and one queue. Example: `Place(2).serve(0.0, 1.5) == 1.5`"""

    def __init__(self, servers: int) -> None:
        self._free = [0.0] * servers
        self._servers = servers
        self.busy = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """When work that comes now is done. Whoever comes later must ask later."""
        done = max(now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, done)
        self.busy += seconds
        return done

    def share(self, seconds: float) -> float:
        """Of its servers' time, busy."""
        return min(1.0, self.busy / (self._servers * seconds))


class _Fleet:
    """The state of one simulation."""

    def __init__(self, site: Site, costs: Costs, seed: int) -> None:
        self.site, self.costs = site, costs
        self.random = random.Random(seed)
        self.drivers = [Place(1) for _ in range(site.drivers)]
        self.pool = Place(1)
        self.nodes = [Place(site.cores) for _ in range(site.nodes)]
        self.left = [self.random.randint(1, site.turns) for _ in range(site.boxes)]
        self.began = [0.0] * site.boxes
        self.waits: list[float] = []
        self.attempts = 0

    def thinking(self) -> float:
        """Seconds of one reply."""
        return self.random.expovariate(1 / self.site.think) if self.site.think else 0.0

    def command(self, stage: int, box: int, now: float) -> tuple[float, int]:
        """A stage of a command: when it is over, and which is next."""
        site, costs = self.site, self.costs
        if stage == 0:
            self.began[box] = now
            work = (costs.driver + costs.turn) / 1000
            return self.drivers[box % site.drivers].serve(now, work), 2 if site.direct else 1
        if stage == 1:
            return self.pool.serve(now, costs.pool / 1000), 2
        node, work = self.nodes[box % site.nodes], site.work + (costs.node + costs.box) / 1000
        return node.serve(now, work), 3

    def after(self, stage: int, box: int, now: float, counts: bool) -> tuple[float, int]:
        """What follows a command's result (3), the leases of an attempt that ended (4) and its tests (5)."""
        if stage == 3:
            if counts:
                self.waits.append(now - self.began[box] - self.site.work)
            self.left[box] -= 1
            return (now + self.thinking(), 0) if self.left[box] else (now, 4)
        if stage == 4:
            return self.pool.serve(now, 2 * self.costs.lease / 1000), 5
        self.left[box] = self.site.turns
        self.attempts += counts
        return self.nodes[box % self.site.nodes].serve(now, self.site.tests) + self.thinking(), 0

    def reset(self) -> None:
        """Forget how busy everybody was."""
        for place in (*self.drivers, self.pool, *self.nodes):
            place.busy = 0.0


def simulate(site: Site, costs: Costs | None = None, *, seconds: float = 120.0, seed: int = 0) -> Load:
    """Run a fleet for so many seconds of its own time, after half as many to settle."""
    fleet = _Fleet(site, costs or Costs(), seed)
    settle, end = seconds / 2, 1.5 * seconds
    events = [(fleet.thinking(), box, 0) for box in range(site.boxes)]
    heapq.heapify(events)
    settled = False
    while events[0][0] < end:
        now, box, stage = heapq.heappop(events)
        if now >= settle and not settled:
            settled = True
            fleet.reset()
        step = fleet.command(stage, box, now) if stage < 3 else fleet.after(stage, box, now, settled)
        heapq.heappush(events, (step[0], box, step[1]))
    return _load(fleet, seconds)


def _load(fleet: _Fleet, seconds: float) -> Load:
    return Load(
        commands=len(fleet.waits) / seconds,
        attempts=fleet.attempts / seconds,
        wait_p50=1000 * _rank(fleet.waits, 0.5),
        wait_p95=1000 * _rank(fleet.waits, 0.95),
        driver=_mean([place.share(seconds) for place in fleet.drivers]),
        pool=fleet.pool.share(seconds),
        nodes=_mean([place.share(seconds) for place in fleet.nodes]),
    )


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / len(shares)


def _rank(values: Sequence[float], part: float) -> float:
    """By nearest rank; 0 of nothing."""
    return sorted(values)[ceil(part * len(values)) - 1] if values else 0.0
