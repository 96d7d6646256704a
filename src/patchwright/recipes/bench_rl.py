"""`patchwright bench rl`: what asynchronous training gains over synchronous, simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from patchwright.errors import ConfigError
from patchwright.recipes.rl_simulation import Plant, long_tail, simulate
from patchwright.recipes.schedule import Pace
from patchwright.store import Run

__all__ = ["CUTS", "compare_schedules", "lengths_of", "schedules_table"]

CUTS = (600.0, 60.0)
"""Seconds of patience in the rows with a cut-off, where none are asked for."""
_TRACE = 8192
"""Lengths drawn where none are given."""


def lengths_of(run: Path | None) -> list[float]:
    """How long the attempts of a run took, in the order they are listed; a drawn long tail without a run.

    Raises ConfigError when there is no such run, or nothing in it.
    """
    if run is None:
        return long_tail(_TRACE)
    with Run.open(run) as stored:
        found = [entry.seconds for entry in stored.entries() if entry.seconds > 0]
    if not found:
        raise ConfigError(f"{run} has no attempts whose lengths could be taken; give another --run")
    return found


def compare_schedules(
    lengths: Sequence[float], plant: Plant, cuts: Sequence[float] = CUTS
) -> list[dict[str, Any]]:
    """The same attempts by every schedule: synchronous, of staleness 1 (that always waits, then with each of
    the `cuts`), 2 and 4. A row has its gain over the first in steps an hour and in trained tokens."""
    rows: list[dict[str, Any]] = []
    cut: list[tuple[int, float | None]] = [(1, seconds) for seconds in cuts]
    for staleness, patience in [(0, None), (1, None), *cut, (2, None), (4, None)]:
        pace = Pace(steps=plant.pace.steps, size=plant.pace.size, staleness=staleness)
        patient = math.inf if patience is None else patience
        speed = simulate(lengths, replace(plant, pace=pace, patience=patient))
        gain = speed.steps_per_hour / rows[0]["steps_per_hour"] if rows else 1.0
        gains = {"gain": gain, "token_gain": gain * (1 - speed.too_old)}
        rows.append({"max_staleness": staleness, "straggler_seconds": patience, **asdict(speed), **gains})
    return rows


def schedules_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The same to look at."""
    title = (
        "reinforcement learning, simulated: the same attempts by several schedules (idle: trainer, engine)"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    columns = (
        "max staleness",
        "waits",
        "steps/h",
        "gain",
        "in tokens",
        "stale",
        "too old",
        "trainer",
        "engine",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        patience = row["straggler_seconds"]
        table.add_row(
            str(row["max_staleness"]),
            "always" if patience is None else f"{patience:g} s",
            f"{row['steps_per_hour']:.2f}",
            f"{row['gain']:.2f}x",
            f"{row['token_gain']:.2f}x",
            f"{row['staleness_mean']:.2f}",
            *(f"{100 * row[key]:.0f} %" for key in ("too_old", "trainer_idle", "engine_idle")),
        )
    return table
