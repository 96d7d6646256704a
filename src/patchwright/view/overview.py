"""What a run came to, in figures for charts: read from the index, the journal and `metrics.jsonl` alone."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from patchwright.metrics import Metrics, interval
from patchwright.recipes.compare import evaluations
from patchwright.store import Run
from patchwright.types import Outcome
from patchwright.view.entries import OUTCOMES, UNGRADED, listed
from patchwright.view.shelf import Book, Tally, plain_config

__all__ = ["is_writing", "overview", "stamp", "stamp_of"]

Json = dict[str, Any]
Points = list[list[float]]

_MOST_POINTS = 400
"""Of one curve; more than a chart has pixels."""


def stamp(book: Book) -> tuple[float, ...]:
    """Changes when anything that `overview` reads does."""
    if not isinstance(book, Run):
        return _stat(book.path)
    return stamp_of(book.path / name for name in ("metrics.jsonl", "run.db", "run.db-wal", "summary.json"))


def stamp_of(files: Iterable[Path]) -> tuple[float, ...]:
    """Changes when one of the files does."""
    return tuple(value for file in files for value in _stat(file))


def _stat(file: Path) -> tuple[float, float]:
    try:
        found = file.stat()
    except OSError:
        return (0.0, 0.0)
    return (found.st_mtime, float(found.st_size))


def overview(name: str, book: Book) -> Json:
    """One run, or one file, for the page of runs."""
    tally = book.tally()
    return {
        "name": name,
        "path": str(book.path),
        "kind": "run" if isinstance(book, Run) else "file",
        "config": {k: v for k, v in plain_config(book).items() if isinstance(v, str | int | float)},
        "stages": _stages(tally),
        "evaluations": _evaluations(book),
        "series": _series(book, tally),
        "updated": max(stamp(book)[::2]),
    }


def _stages(tally: Tally) -> list[Json]:
    grouped: dict[str, list[Any]] = defaultdict(list)
    for row in tally:
        grouped[row[0]].append(row)
    return [{"name": stage, **_sums(rows), "versions": _versions(rows)} for stage, rows in grouped.items()]


def _versions(rows: Tally) -> list[int]:
    return sorted({version for _, _, version, *_ in rows})


def _sums(rows: Tally) -> Json:
    counts = dict.fromkeys(OUTCOMES, 0)
    tasks: dict[str, list[Outcome]] = defaultdict(list)
    for stage, _, _, task, outcome, many in rows:
        word = listed(stage, outcome)
        counts[word] += many
        tasks[task] += [] if word == UNGRADED else [Outcome(word)] * many
    found: Json = {"attempts": sum(counts.values()), "tasks": len(tasks), "steps": len({r[1] for r in rows})}
    return counts | found | _rate(tasks)


def _rate(tasks: Mapping[str, Sequence[Outcome]]) -> Json:
    try:
        rate = interval(tasks)
    except ValueError:  # none has a verdict
        return {"rate": None, "low": None, "high": None}
    return {"rate": rate.mean, "low": rate.low, "high": rate.high}


def _evaluations(book: Book) -> list[Json]:
    if not isinstance(book, Run):
        return []
    return [
        {
            "policy": stage.removeprefix("eval-"),
            "set": name or "tasks",
            "rate": found["pass_at_1"],
            "low": found["low"],
            "high": found["high"],
            "pass_at_8": found.get("pass_at_8"),
            "attempts": found["total"],
            "void": found.get("void", 0),
            "cheat_rate": found.get("cheat_rate"),
        }
        for (stage, name), found in evaluations(book)
    ]


# --- curves -----------------------------------------------------------------------------------


def _series(book: Book, tally: Tally) -> Json:
    """Stage -> figure -> points: step, value, and where there is an interval its ends."""
    if not isinstance(book, Run):
        return {}
    found: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(list))
    for row in Metrics(book.path / "metrics.jsonl").read():
        stage, step = str(row.get("stage", "")), row.get("step")
        if isinstance(step, int):
            for key, value in _figures(row).items():
                found[stage][key].append([step, value])
    for stage, curve in _resolved(tally).items():
        if stage in found:
            found[stage]["resolve_rate"] = curve
    return {
        stage: {key: thinned(points) for key, points in curves.items()} for stage, curves in found.items()
    }


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of `metrics.jsonl`, and those that follow from them."""
    skipped = ("stage", "step", "time")
    found = {
        key: float(value)
        for key, value in row.items()
        if key not in skipped and isinstance(value, int | float) and math.isfinite(value)
    }
    if found.get("attempts"):
        found["void_rate"] = found.get("void", 0.0) / found["attempts"]
    if found.get("seconds") and "tokens" in found:
        found["throughput"] = found["tokens"] / found["seconds"]
    return found


def _resolved(tally: Tally) -> dict[str, Points]:
    """By stage, the resolve rate of each of its steps with its interval."""
    grouped: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for row in tally:
        grouped[row[0], row[1]].append(row)
    curves: dict[str, Points] = defaultdict(list)
    for (stage, step), rows in sorted(grouped.items()):
        found = _sums(rows)
        if found["rate"] is not None:
            curves[stage].append([step, found["rate"], found["low"], found["high"]])
    return curves


def thinned(points: Points) -> Points:
    """So many of the points as can be seen, the last among them.

    Example: `len(thinned([[i, 0.0] for i in range(1000)])) <= 401`
    """
    every = math.ceil(len(points) / _MOST_POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]


def is_writing(book: Book) -> bool:
    """Whether the process that has the run's lock is alive."""
    file = book.path / "lock"
    try:
        owner = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False
    return _is_alive(owner) and _locks(file, owner)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:  # somebody else's
        return True
    except (OSError, OverflowError):
        return False
    return process > 0  # others are groups of processes


def _locks(file: Path, owner: int) -> bool:
    """Whether the process still has the file open: numbers of processes are given again."""
    try:
        held: Iterable[Path] = list(Path(f"/proc/{owner}/fd").iterdir())
    except OSError:
        return True  # somebody else's process: believe the number
    return any(_is_same(one, file) for one in held)


def _is_same(one: Path, file: Path) -> bool:
    try:
        return one.samefile(file)
    except OSError:  # closed meanwhile, or no file at all
        return False
