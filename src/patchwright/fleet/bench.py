"""What leases cost: simulated agents against a pool and its nodes, for `patchwright bench fleet`.

Two parts. `bench_leases` works through any `Leasing`: our own client, or the plain requests that swe-rl's
client sends, so that another server is measured by the same clock. `bench_pool` asks how a pool bears many
leases on many nodes; its nodes are simulated, so that nothing but the pool is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from patchwright.errors import InfraError
from patchwright.fleet.bench_clients import Leasing
from patchwright.fleet.client import PoolClient
from patchwright.fleet.journal import Journal
from patchwright.fleet.pool import Pool, PoolOptions
from patchwright.fleet.pool_server import pool_app
from patchwright.fleet.serving import Address, Serving
from patchwright.fleet.simulated import SimulatedNodes
from patchwright.fleet.tokens import new_token

__all__ = ["FleetFigures", "PoolFigures", "Spread", "bench_leases", "bench_pool"]

T = TypeVar("T")

_COMMAND = "true"
_EXECS = 5
"""Commands through the pool, and as many straight to the node, in one round."""
_CREATE_SECONDS = 0.005
"""How long a simulated node takes to make a box."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Wall milliseconds of one kind of request. Example: `Spread.of([0.002, 0.003])`"""

    count: int
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread | None:
        """The spread of some durations, by nearest rank; None when there are none."""
        ordered = sorted(seconds)
        if not ordered:
            return None
        p50, p95, p99 = (1000 * ordered[ceil(part * len(ordered)) - 1] for part in (0.5, 0.95, 0.99))
        return cls(count=len(ordered), p50=p50, p95=p95, p99=p99)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetFigures:
    """What one fleet's leases cost; None where it cannot do a thing."""

    name: str
    allocate: Spread | None
    exec_pool: Spread | None
    exec_direct: Spread | None
    fork: Spread | None
    close: Spread | None
    pool_per_second: float
    """Commands per second of all episodes together, through the pool."""
    direct_per_second: float | None
    """The same, straight to the nodes."""
    boxes_left: int | None
    """Boxes that are still there after every lease was closed, beyond those from before."""
    leases_left: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolFigures:
    """How a pool bears many leases on simulated nodes."""

    nodes: int
    leases: int
    """Held at once."""
    agents: int
    """Clients at work at once."""
    allocate: Spread | None
    cpu_ms: float
    """CPU milliseconds of one lease's life, of pool and client together (nodes cost next to nothing)."""
    lost: int
    """Leases that did not do their one command, exactly once."""
    boxes_left: int
    leases_left: int


class _Clock:
    """Durations by kind. Example: `lease = await clock.timed("allocate", client.allocate())`"""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    async def timed(self, kind: str, work: Awaitable[T]) -> T:
        """Await `work` and write down how long it took, unless it fails."""
        started = time.perf_counter()
        result = await work
        self._seconds.setdefault(kind, []).append(time.perf_counter() - started)
        return result

    def spread(self, kind: str) -> Spread | None:
        return Spread.of(self._seconds.get(kind, ()))


async def bench_leases(
    name: str, fleet: Leasing, *, rounds: int = 30, episodes: int = 15, commands: int = 20
) -> FleetFigures:
    """Measure one fleet: `rounds` of everything one after the other, then `episodes` at once.

    Raises InfraError when the fleet cannot make a box or run a command in it.
    """
    before = await fleet.boxes(), await fleet.leases()
    direct, forks = await _abilities(fleet)
    clock = _Clock()
    for _ in range(rounds):
        await _round(fleet, clock, direct=direct, forks=forks)
    through_pool = await _rate(fleet, fleet.exec, episodes, commands)
    straight = await _rate(fleet, fleet.exec_direct, episodes, commands) if direct else None
    return FleetFigures(
        name=name,
        **{kind: clock.spread(kind) for kind in ("allocate", "exec_pool", "exec_direct", "fork", "close")},
        pool_per_second=through_pool,
        direct_per_second=straight,
        boxes_left=_more(before[0], await fleet.boxes()),
        leases_left=_more(before[1], await fleet.leases()),
    )


async def _abilities(fleet: Leasing) -> tuple[bool, bool]:
    """Whether commands can go straight to the node, and boxes fork; also fills caches."""
    lease = await fleet.allocate()
    try:
        await fleet.exec(lease, _COMMAND)
        direct = await _works(fleet.exec_direct(lease, _COMMAND))
        forks = await _works(_fork_once(fleet, lease))
    finally:
        await fleet.close(lease)
    return direct, forks


async def _fork_once(fleet: Leasing, lease: Any) -> None:
    await fleet.close(await fleet.fork(lease))


async def _works(work: Awaitable[object]) -> bool:
    try:
        await work
    except InfraError:
        return False
    return True


async def _round(fleet: Leasing, clock: _Clock, *, direct: bool, forks: bool) -> None:
    lease = await clock.timed("allocate", fleet.allocate())
    for _ in range(_EXECS):
        await clock.timed("exec_pool", fleet.exec(lease, _COMMAND))
        if direct:
            await clock.timed("exec_direct", fleet.exec_direct(lease, _COMMAND))
    if forks:
        await fleet.close(await clock.timed("fork", fleet.fork(lease)))
    await clock.timed("close", fleet.close(lease))


async def _rate(
    fleet: Leasing, run: Callable[[Any, str], Awaitable[None]], episodes: int, commands: int
) -> float:
    """Commands per second of `episodes` boxes at once, each running one after the other."""
    leases = await asyncio.gather(*(fleet.allocate() for _ in range(episodes)))

    async def episode(lease: Any) -> None:
        for _ in range(commands):
            await run(lease, _COMMAND)

    started = time.perf_counter()
    try:
        await asyncio.gather(*(episode(lease) for lease in leases))
        return episodes * commands / (time.perf_counter() - started)
    finally:
        await asyncio.gather(*(fleet.close(lease) for lease in leases))


def _more(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


# --- many nodes -------------------------------------------------------------------------------


async def bench_pool(*, nodes: int = 64, leases: int = 1000, agents: int = 15) -> PoolFigures:
    """Fill a pool of simulated nodes with leases, then close and allocate as many again while it is full.

    Pool and clients share this process and speak HTTP; the journal is a file.
    """
    cpu = time.process_time()
    simulated = SimulatedNodes.many(nodes, create_seconds=_CREATE_SECONDS)
    token, clock = new_token(), _Clock()
    with TemporaryDirectory() as folder:
        options = PoolOptions(max_per_node=max(PoolOptions.max_per_node, -(-leases // nodes)))
        pool = Pool(list(simulated), simulated.connect, Journal(Path(folder) / "pool.db"), options)
        await pool.start()
        try:
            async with (
                Serving(pool_app(pool, token), Address()) as serving,
                PoolClient(serving.url, token, direct=False) as client,
            ):
                held = await _crowd(clock, client, [None] * leases, agents)
                held = await _crowd(clock, client, held, agents)
                lost = await _lost(client, simulated, held, agents)
                await _each(agents, held, client.close)
                left = sum(len(node.boxes) for node in simulated.values()), len(pool.book)
        finally:
            await pool.close()
    return PoolFigures(
        nodes=nodes,
        leases=leases,
        agents=agents,
        allocate=clock.spread("allocate"),
        cpu_ms=1000 * (time.process_time() - cpu) / (2 * leases),
        lost=lost,
        boxes_left=left[0],
        leases_left=left[1],
    )


async def _crowd(clock: _Clock, client: PoolClient, old: Sequence[Any], agents: int) -> list[Any]:
    """A new lease for each old one, which is closed first; None stands for none."""
    new: list[Any] = []

    async def exchange(lease: Any) -> None:
        if lease is not None:
            await client.close(lease)
        new.append(await clock.timed("allocate", client.allocate("host")))

    await _each(agents, old, exchange)
    return new


async def _lost(client: PoolClient, nodes: SimulatedNodes, leases: Sequence[Any], agents: int) -> int:
    """Have every lease run a command of its own, and count at the nodes what did not run exactly once."""
    numbers = itertools.count()

    async def run(lease: Any) -> None:
        await _works(client.exec(lease, f"command {next(numbers)}"))

    await _each(agents, leases, run)
    ran: Counter[str] = Counter()
    for node in nodes.values():
        ran += node.ran
    return sum(ran[f"command {number}"] != 1 for number in range(len(leases)))


async def _each(agents: int, items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> None:
    """`work` on every item, by so many workers at once."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(agents):
            group.create_task(worker())
