"""`patchwright bench`: what the parts cost on this machine, as tables."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.table import Table

from patchwright.render import CHATML, Renderer
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.sandbox.select import open_backend
from patchwright.train.config import ModelConfig
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.train.worker import create_model

if TYPE_CHECKING:
    from patchwright.gateway.bench import GatewayCost

__all__ = [
    "engine_speeds",
    "engine_table",
    "gateway_cost",
    "gateway_table",
    "idle_megabytes",
    "sandbox_table",
    "sandbox_times",
    "train_figures",
    "train_tables",
]

T = TypeVar("T")
_PERCENTILES = ("p50", "p95", "p99")
_PAUSE = 1.0
_IDLE = 10
_FORKS, _CROWDS = 100, 3
"""Forks of one box that are made at once, and how often."""
_TEST = b"def test_a():\n    assert 1 + 1 == 2\n"


async def engine_speeds(model: Path | None) -> list[dict[str, float]]:
    """Sampled tokens per CPU-second at several concurrencies, beside transformers' `generate`."""
    from patchwright.engine.bench import bench_engine  # imports torch

    async with _model_or_scratch(model) as folder:
        return [asdict(speed) for speed in await asyncio.to_thread(bench_engine, folder)]


def engine_table(speeds: list[dict[str, float]]) -> Table:
    """The same to look at."""
    table = _table("engine: tokens per CPU-second", "concurrency", "engine", "generate", "ratio")
    for speed in speeds:
        engine, generate = speed["engine"], speed["generate"]
        ratio = f"{engine / generate:.1f}x"
        table.add_row(str(speed["concurrency"]), f"{engine:,.0f}", f"{generate:,.0f}", ratio)
    return table


async def gateway_cost(model: Path | None, *, history_tokens: int, sessions: int) -> GatewayCost:
    """What the gateway costs with a model folder's chat format, or the quickstart's. See `bench_gateway`."""
    from patchwright.gateway.bench import bench_gateway

    with tempfile.TemporaryDirectory() as scratch:
        if model is None:
            save_tokenizer(train_tokenizer([]), Path(scratch), chat_template=CHATML)
        renderer = Renderer.load(str(model or scratch))
    return await bench_gateway(renderer, history_tokens=history_tokens, sessions=sessions)


def gateway_table(cost: GatewayCost) -> Table:
    """CPU time of a turn with and without HTTP, and what many sessions at once cost."""
    title = f"gateway: {cost.history_tokens:,} tokens of history, then {cost.sessions:,} sessions at once"
    table = _table(title, "CPU ms of a turn", "p50", "p99")
    table.add_row("recording", f"{cost.record_p50_ms:.2f}", f"{cost.record_p99_ms:.2f}")
    table.add_row("over HTTP, client included", f"{cost.http_p50_ms:.2f}", f"{cost.http_p99_ms:.2f}")
    table.add_row("turns per CPU-second, clients included", f"{cost.turns_per_second:,.0f}", "")
    table.add_row("kB held by a session", f"{cost.session_kb:.0f}", "")
    return table


async def train_figures(
    shape: str | None, *, length: int, attempts: int, rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """`speed` and `sharing` of the quickstart's model; `shapes` instead when one is named."""
    from patchwright.train.bench import bench_train  # imports torch
    from patchwright.train.bench_shape import bench_shape
    from patchwright.train.bench_share import bench_sharing

    if shape:
        measured = await asyncio.to_thread(
            bench_shape, shape, length=length, attempts=attempts, rounds=rounds
        )
        return {"shapes": [asdict(one) for one in measured]}
    speed = await asyncio.to_thread(bench_train, rounds=rounds)
    sharing = await asyncio.to_thread(bench_sharing, rounds=rounds)
    return {"speed": [asdict(speed)], "sharing": [asdict(one) | {"speedup": one.speedup} for one in sharing]}


def train_tables(figures: dict[str, list[dict[str, Any]]]) -> list[Table]:
    """The same to look at."""
    tables = {"speed": _speed_table, "sharing": _sharing_table, "shapes": _shapes_table}
    return [tables[name](rows) for name, rows in figures.items()]


def _speed_table(rows: list[dict[str, Any]]) -> Table:
    table = _table(
        "trainer: tokens per CPU-second, one thread", "SFT", "policy loss", "plain transformers loop"
    )
    for row in rows:
        table.add_row(*(f"{row[key]:,.0f}" for key in ("sft", "policy", "plain")))
    return table


def _sharing_table(rows: list[dict[str, Any]]) -> Table:
    columns = ("", "row per turn", "merged rows", "shared prefixes", "speed-up", "over merged rows")
    table = _table("tokens computed / tokens trained, and CPU time against one row per turn", *columns)
    for row in rows:
        times = (f"{row['speedup']:.1f}x", f"{row['rows_seconds'] / row['shared_seconds']:.2f}x")
        table.add_row(row["kind"], *(f"{row[key]:.1f}" for key in ("turns", "rows", "shared")), *times)
    return table


def _shapes_table(rows: list[dict[str, Any]]) -> Table:
    first = rows[0]
    clock = "CPU-second" if first["device"] == "cpu" else "second"
    title = f"{first['shape']} at {first['length']:,} tokens, {first['dtype']} on {first['device']}"
    table = _table(
        title, "", f"tokens per {clock}", "effective", "MFU", f"peak TFLOP/s, {first['peak_source']}", "GB"
    )
    for row in rows:
        speeds = (f"{row['tokens_per_second']:,.0f}", f"{row['effective_tokens_per_second']:,.0f}")
        share = f"{100 * row['mfu']:.1f} %"
        table.add_row(row["kind"], *speeds, share, f"{row['peak'] / 1e12:,.2f}", f"{row['memory_gb']:.1f}")
    return table


async def sandbox_times(
    name: str, *, rounds: int = 30, image: str | None = None, warm: int = 0
) -> dict[str, dict[str, float]]:
    """What every attempt does in a box -> p50, p95 and p99 of it in wall milliseconds, one box at a time. Of
    namespace boxes also what a hundred forks take that are made at once."""
    backend = open_backend(name, image=image, warm=warm)
    try:
        await _round(backend)  # starts helpers, fills caches
        times = []
        for _ in range(rounds):
            if warm:
                await asyncio.sleep(_PAUSE)  # as an attempt would take, in which the next box is made ready
            times.append(await _round(backend))
        seconds = {what: [row[what] for row in times] for what in times[0]}
        if name == "namespace":
            seconds[f"{_FORKS} forks"] = await _crowds(backend)
    finally:
        await backend.close()
    return {what: _percentiles([1000 * one for one in values]) for what, values in seconds.items()}


async def idle_megabytes(name: str) -> dict[str, float]:
    """Memory of ours in a box that has run a command and waits for the next, in MB (10^6 bytes): p50, p95 and
    p99 of several boxes. Empty but for namespace boxes, where they are all forks of one program.
    """
    if name != "namespace":
        return {}
    backend = NamespaceBackend()
    try:
        for _ in range(_IDLE):
            await (await backend.open(BoxSpec())).exec("true")
        sizes = [size / 1e6 for size in backend.own_memory()]
    finally:
        await backend.close()
    return _percentiles(sizes) if sizes else {}


def sandbox_table(
    name: str, rounds: int, times: dict[str, dict[str, float]], idle: dict[str, float]
) -> Table:
    """The same to look at."""
    table = _table(f"{name} boxes: {rounds} rounds, wall ms", "", *_PERCENTILES)
    for what, values in times.items():
        table.add_row(what, *(f"{value:.1f}" for value in values.values()))
    if idle:
        table.add_row("idle, MB of ours", *(f"{value:.2f}" for value in idle.values()))
    return table


def _percentiles(values: list[float]) -> dict[str, float]:
    """The smallest values that so many of a hundred do not exceed."""
    ranked = sorted(values)
    return {f"p{n}": ranked[math.ceil(n / 100 * len(ranked)) - 1] for n in (50, 95, 99)}


async def _round(backend: SandboxBackend) -> dict[str, float]:
    seconds: dict[str, float] = {}

    async def timed(what: str, work: Callable[[], Awaitable[T]]) -> T:
        started = time.perf_counter()
        result = await work()
        seconds[what] = time.perf_counter() - started
        return result

    box: Sandbox = await timed("create", lambda: backend.open(BoxSpec()))
    await timed("write", lambda: box.write("test_a.py", _TEST))
    await timed("exec", lambda: box.exec("true"))
    await timed("pytest", lambda: box.exec("pytest -q test_a.py"))
    fork = await timed("fork", box.fork)
    await timed("close", box.close)
    await fork.close()
    return seconds


async def _crowds(backend: SandboxBackend) -> list[float]:
    """Seconds until all forks of a crowd are there."""
    box, seconds = await backend.open(BoxSpec()), []
    await box.write("test_a.py", _TEST)
    await (await box.fork()).close()  # what the first one costs, others do not
    for _ in range(_CROWDS):
        started = time.perf_counter()
        forks = await asyncio.gather(*(box.fork() for _ in range(_FORKS)))
        seconds.append(time.perf_counter() - started)
        await asyncio.gather(*(fork.close() for fork in forks))
    return seconds


@asynccontextmanager
async def _model_or_scratch(model: Path | None) -> AsyncIterator[Path]:
    """The model folder given, or an untrained model of the quickstart's shape."""
    if model:
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(train_tokenizer([]), Path(folder) / "tokenizer", chat_template=CHATML)
        await create_model(Path(folder) / "model", ModelConfig(), Path(folder) / "tokenizer")
        yield Path(folder) / "model"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, min_width=len(title))
    for column in columns:
        table.add_column(column, justify="right")
    return table
