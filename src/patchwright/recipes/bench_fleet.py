"""`patchwright bench fleet`: a pool and nodes of its own beside other servers, and a pool of many nodes."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Group
from rich.table import Table

from patchwright.config import Config
from patchwright.errors import ConfigError, SandboxError
from patchwright.fleet.bench import FleetFigures, PoolFigures, Spread, bench_leases, bench_pool
from patchwright.fleet.bench_clients import OwnLeasing, SeedLeasing

__all__ = ["FleetBench", "bench_fleet"]

_KINDS = {
    "allocate": "allocate",
    "exec_pool": "exec through the pool",
    "exec_direct": "exec at the node",
    "fork": "fork",
    "close": "close",
}
_GOODBYE = 20.0
"""Seconds our servers have to stop."""


class FleetBench(Config):
    """What is measured."""

    nodes: int = 2
    """Nodes of our own fleet."""
    leases: int = 15
    """Episodes at once."""
    commands: int = 20
    """Commands of each."""
    rounds: int = 30
    """Rounds of every request, one after the other."""
    sandbox: str = "namespace"
    """Boxes of our own nodes: `namespace`, `docker` or `process`."""
    image: str = "host"
    """What the boxes are made from, ours and others'."""
    urls: tuple[str, ...] = ()
    """Other pools to measure, by swe-rl's protocol."""
    seed_protocol: bool = False
    """Measure our own fleet by swe-rl's protocol too."""
    simulated_nodes: int = 64
    """Nodes of the pool that holds many leases; 0 leaves that part out."""
    simulated_leases: int = 1000
    """Leases it holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Servers:
    """A pool of our own and its tokens."""

    url: str
    token: str
    node_token: str


async def bench_fleet(config: FleetBench, file: Path | None = None) -> Group:
    """The figures as tables; also as JSON in `file`, which is stdout where it is `-`.

    Raises ConfigError when `file` cannot be written, InfraError when a fleet cannot run a command.
    """
    if file is not None:
        _write(file, "")  # what cannot be written is better known before the work than after
    fleets = [await _own(config)]
    for url in config.urls:
        async with SeedLeasing(url, config.image) as fleet:
            fleets.append(await _measure(url, fleet, config))
    pool = None
    if config.simulated_nodes:
        pool = await bench_pool(nodes=config.simulated_nodes, leases=config.simulated_leases)
    if file is not None:
        _write(file, _report(config, fleets, pool))
    tables = [_fleet_table(fleets, config), *([] if pool is None else [_pool_table(pool)])]
    return Group(*(part for table in tables for part in (table, "")), _machine_line())


async def _own(config: FleetBench) -> FleetFigures:
    async with _servers(config) as own:
        leasing = SeedLeasing if config.seed_protocol else OwnLeasing
        async with leasing(own.url, config.image, own.token, own.node_token) as fleet:
            return await _measure("patchwright", fleet, config)


async def _measure(name: str, fleet: OwnLeasing | SeedLeasing, config: FleetBench) -> FleetFigures:
    return await bench_leases(
        name, fleet, rounds=config.rounds, episodes=config.leases, commands=config.commands
    )


# --- our servers ------------------------------------------------------------------------------


@asynccontextmanager
async def _servers(config: FleetBench) -> AsyncIterator[_Servers]:
    """Nodes and a pool as `node serve` and `pool serve` start them, gone at the end with their files."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        node_token = folder / "node.token"
        # While it is full, a fork of each box must find room too.
        room = 2 * config.leases
        node = ("node", "serve", "--port=0", f"--sandbox={config.sandbox}", f"--max-boxes={room}")
        files = (f"--token-file={node_token}", f"--audit={folder / 'audit.jsonl'}")
        urls = [await stack.enter_async_context(_server(*node, *files)) for _ in range(config.nodes)]
        pool_token = folder / "pool.token"
        pool = ("pool", "serve", "--port=0", f"--max-per-node={room}", *(f"--node={url}" for url in urls))
        files = (f"--token-file={pool_token}", f"--node-token-file={node_token}")
        url = await stack.enter_async_context(_server(*pool, *files, f"--journal={folder / 'pool.db'}"))
        yield _Servers(
            url=url, token=pool_token.read_text().strip(), node_token=node_token.read_text().strip()
        )


@asynccontextmanager
async def _server(*arguments: str) -> AsyncIterator[str]:
    """One of our servers in a process of its own: its address. Raises SandboxError with its own words."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "patchwright.cli", *arguments, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        yield await _address(process.stderr, arguments)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.communicate(), _GOODBYE)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _address(output: asyncio.StreamReader, arguments: Sequence[str]) -> str:
    said = []
    async for line in output:
        said.append(line.decode("utf-8", "replace").strip())
        words = said[-1].split()
        if len(words) == 2 and words[0] == arguments[0]:
            return words[1]
    raise SandboxError(f"`patchwright {' '.join(arguments[:2])}` did not start: {' '.join(said[-3:])}")


# --- what is shown ----------------------------------------------------------------------------


def _machine() -> dict[str, str | int]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _machine_line() -> str:
    machine = _machine()
    return (
        f"on {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"Linux {machine['kernel']}, Python {machine['python']}"
    )


def _report(config: FleetBench, fleets: Sequence[FleetFigures], pool: PoolFigures | None) -> str:
    content = {
        "machine": _machine(),
        "asked": config.model_dump(mode="json"),
        "fleets": [asdict(fleet) for fleet in fleets],
        "pool": None if pool is None else asdict(pool),
    }
    return json.dumps(content, indent=2) + "\n"


def _write(file: Path, text: str) -> None:
    if file == Path("-"):
        sys.stdout.write(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {file} cannot be written: {error.strerror}; name another file") from None


def _fleet_table(fleets: Sequence[FleetFigures], config: FleetBench) -> Table:
    title = f"{config.sandbox} boxes of {config.image!r}: wall ms, p50 p95 p99"
    table = _table(title, *(fleet.name for fleet in fleets))
    for kind, words in _KINDS.items():
        table.add_row(words, *(_spread(getattr(fleet, kind)) for fleet in fleets))
    crowd = f"commands/s, {config.leases} x {config.commands}"
    table.add_row(f"{crowd}, through the pool", *(_number(fleet.pool_per_second) for fleet in fleets))
    table.add_row(f"{crowd}, at the nodes", *(_number(fleet.direct_per_second) for fleet in fleets))
    table.add_row("boxes left", *(_number(fleet.boxes_left) for fleet in fleets))
    table.add_row("leases left", *(_number(fleet.leases_left) for fleet in fleets))
    return table


def _pool_table(pool: PoolFigures) -> Table:
    table = _table(f"{pool.leases} leases on {pool.nodes} simulated nodes, {pool.agents} clients", "")
    table.add_row("allocate, wall ms", _spread(pool.allocate))
    table.add_row("CPU of a lease, pool and client, ms", f"{pool.cpu_ms:.1f}")
    table.add_row("leases lost", str(pool.lost))
    table.add_row("boxes left", str(pool.boxes_left))
    table.add_row("leases left", str(pool.leases_left))
    return table


def _spread(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.p50:.1f} {spread.p95:.1f} {spread.p99:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, min_width=len(title))
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table
