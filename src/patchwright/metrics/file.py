"""`metrics.jsonl`: figures over time, and who else is told of them while they are written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwright.errors import StoreError

__all__ = ["LISTENERS", "Figures", "Metrics", "publish"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One line of figures. Example: `Figures(stage="rl", step=3, time=1.7e9, values={"loss": 0.2})`"""

    stage: str
    step: int
    time: float
    """Seconds since 1970."""
    values: Mapping[str, float | int | str | None]


LISTENERS: ContextVar[tuple[Callable[[Figures], None], ...]] = ContextVar("listeners", default=())
"""Who is told of every line besides the file; `sinks.observing` sets them. They neither block nor raise."""


def publish(stage: str, step: int, values: Mapping[str, float | int | str | None]) -> Figures:
    """Tell whoever listens; nothing is written here."""
    line = Figures(stage=stage, step=step, time=time.time(), values=values)
    for listener in LISTENERS.get():
        listener(line)
    return line


class Metrics:
    """An append-only file of JSON objects, one a line, each with `stage`, `step` and `time`.

    Example::

        metrics = Metrics(run.path / "metrics.jsonl")
        metrics.write("rl", 3, loss=0.2, tokens=4096)
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, stage: str, step: int, **values: float | int | str | None) -> None:
        """Append one line. Raises StoreError when it cannot be written (disk full)."""
        told = publish(stage, step, values)
        line = json.dumps({"stage": stage, "step": step, "time": told.time, **values})
        try:
            with self.path.open("ab+") as file:
                start = b"" if _ends_clean(file) else b"\n"
                file.write(start + line.encode() + b"\n")
        except OSError as error:
            raise StoreError(f"could not write {self.path}: {error.strerror}; free some space") from error

    def read(self, stage: str | None = None) -> Iterator[dict[str, Any]]:
        """The lines written, of one stage or of all; a line torn by a crash is left out."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                row = _parse(line)
                if row is not None and stage in (None, row.get("stage")):
                    yield row


def _ends_clean(file: Any) -> bool:
    """Whether the last line was written whole, so that a torn one does not spoil the next."""
    if file.seek(0, 2) == 0:
        return True
    file.seek(-1, 2)
    return bool(file.read(1) == b"\n")


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
