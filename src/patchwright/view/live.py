"""A run while it runs: `events.jsonl`, read as it grows, as lanes of attempts over time."""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from patchwright.rollout.events import FILE

__all__ = ["Lanes"]

Json = dict[str, Any]

_KEPT = 200
"""Attempts that are over and still shown."""
_FIRST_LOOK = 8 * 2**20
"""Bytes of the file's end that are read at first."""
_LATE = 2.0
"""Times the median of those that are over: past it an attempt is a straggler."""
_FAULTS = 8
"""Faults that are shown, the latest first."""
_SHOWN = 900.0
"""Seconds back that the page looks at most: spans that ended before are not sent."""
_FEW = 5
"""Attempts that must be over before there are stragglers."""


@dataclass(kw_only=True)
class _Lane:
    """One attempt: what it did from when to when."""

    id: str
    task: str = ""
    began: float = 0.0
    ended: float | None = None
    outcome: str = ""
    error: str = ""
    turns: int = 0
    version: int = 0
    tries: int = 1
    spans: list[list[Any]] = field(default_factory=list)
    """[what, from, to]; the last has no end while it lasts."""

    def turn_to(self, what: str, at: float) -> None:
        self.close(at)
        self.spans.append([what, at, None])

    def close(self, at: float) -> None:
        if self.spans and self.spans[-1][2] is None:
            self.spans[-1][2] = at
            if self.spans[-1][2] <= self.spans[-1][1]:
                self.spans.pop()

    def said(self, event: Json) -> None:
        """A model call is over, and the tools go on."""
        self.turn_to("tool", event["t"])
        self.turns += 1
        self.version = int(event.get("version") or 0)


class Lanes:
    """What the attempts of a run are doing. `read` takes in what was written since.

    Example: `lanes = Lanes(Path("runs/demo")); lanes.read(); lanes.record(now=time.time())`
    """

    def __init__(self, run: Path) -> None:
        self._file = run / FILE
        self._place, self._inode, self._rest = 0, -1, b""
        self._flying: dict[str, _Lane] = {}
        self._over: deque[_Lane] = deque(maxlen=_KEPT)
        self._took: deque[float] = deque(maxlen=_KEPT)
        self.count = 0
        """Events taken in: changes when there is something new."""

    def read(self) -> None:
        """Take in what was written since. A file that is not there, or was begun anew, is no fault."""
        try:
            with self._file.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._place:
                    self._place = max(0, found.st_size - _FIRST_LOOK)
                    self._inode, self._rest = found.st_ino, b""
                file.seek(self._place)
                new = file.read()
        except OSError:
            return
        self._place += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            name, what, _ = event["id"], event["what"], float(event["t"])
        except (ValueError, KeyError, TypeError):
            return  # torn: by a crash, or because the first look began in its middle
        self.count += 1
        if what == "begin":
            self._flying.clear()
        elif what == "queue":
            self._begin(name, event)
        elif lane := self._flying.get(name):
            self._go_on(lane, what, event)

    def _begin(self, name: str, event: Json) -> None:
        before = sum(lane.id == name for lane in self._over)
        lane = _Lane(id=name, task=str(event.get("task", "")), began=event["t"], tries=before + 1)
        lane.turn_to("queue", event["t"])
        self._flying[name] = lane

    def _go_on(self, lane: _Lane, what: str, event: Json) -> None:
        if what == "turn":
            lane.said(event)
        elif what == "end":
            lane.close(event["t"])
            lane.ended, lane.outcome = event["t"], str(event.get("outcome", ""))
            lane.error = str(event.get("error", ""))
            self._over.append(self._flying.pop(lane.id))
            self._took.append(event["t"] - lane.began)
        else:
            lane.turn_to("tool" if what == "agent" else str(what), event["t"])

    def record(self, now: float) -> Json:
        """Lanes of what is in flight and of what was over lately, stragglers, and faults; JSON values."""
        usual = median(self._took) if len(self._took) >= _FEW else None
        late = [lane.id for lane in self._flying.values() if usual and now - lane.began > _LATE * usual]
        return {
            "now": now,
            "usual": usual,
            "flying": [_lane(lane, now - _SHOWN) for lane in self._flying.values()],
            "over": [_lane(lane, now - _SHOWN) for lane in self._over],
            "stragglers": late,
            "faults": [
                {"id": lane.id, "at": lane.ended, "error": lane.error}
                for lane in reversed(self._over)
                if lane.error
            ][:_FAULTS],
        }


def _lane(lane: _Lane, since: float) -> Json:
    return {
        "id": lane.id,
        "task": lane.task,
        "began": lane.began,
        "ended": lane.ended,
        "outcome": lane.outcome,
        "turns": lane.turns,
        "version": lane.version,
        "tries": lane.tries,
        "spans": [span for span in lane.spans if span[2] is None or span[2] > since],
    }
