"""`run.db`: the index of trajectories, those not yet sealed, and the journal of finished steps.

SQLite in WAL mode with `synchronous=NORMAL`: a committed row survives the death of the process at once, and
that of the machine after the next checkpoint; a mark is written with `FULL` and survives both.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchwright.errors import StoreError
from patchwright.types import Outcome

__all__ = ["Entry", "Index", "Mark"]

SCHEMA_VERSION = 1

_SCHEMA = """
create table if not exists trajectories (
  id text primary key, task_id text not null, grp text not null, stage text not null, step integer not null,
  version integer not null, outcome text not null, seconds real not null,
  blob blob,  -- codec.pack, until sealed
  part text   -- file name in trajectories/, once sealed
);
create index if not exists by_step on trajectories (stage, step, id);
create table if not exists marks (
  stage text not null, step integer not null, time real not null, info text not null,
  primary key (stage, step)
);
"""
_ORDERS = ("id", "task_id", "group", "stage", "step", "version", "outcome", "seconds")
_COLUMNS = "id, task_id, grp, stage, step, version, outcome, seconds"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What the index knows of a stored trajectory.

    Example: `Entry(id="eval-3-0", task_id="toy-1", group="eval-3", stage="eval", step=3, version=2,
    outcome=Outcome.RESOLVED, seconds=1.5)`
    """

    id: str
    task_id: str
    group: str
    stage: str
    step: int
    version: int
    """Weights version the attempt was started under."""
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A finished step: everything it made is complete.

    Example: `Mark(stage="rl", step=3, time=1735689600.0, info={"loss": 0.2})`
    """

    stage: str
    step: int
    time: float
    """Seconds since the epoch."""
    info: Mapping[str, Any] = field(default_factory=dict)


class Index:
    """The SQLite file. Methods raise sqlite3.Error; `Run` turns that into StoreError and holds the lock."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        mode = "rwc" if writable else "ro"
        uri = f"{path.resolve().as_uri()}?mode={mode}"
        self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        if writable:
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._create()
        self._check(path)

    def _create(self) -> None:
        if self._version() == 0:
            self._db.executescript(f"begin; {_SCHEMA} pragma user_version={SCHEMA_VERSION}; commit;")

    def _check(self, path: Path) -> None:
        if self._version() != SCHEMA_VERSION:
            raise StoreError(
                f"{path} has format {self._version()}, this Patchwright writes {SCHEMA_VERSION}; "
                "open it with the version that made it"
            )

    def _version(self) -> int:
        return int(self._db.execute("pragma user_version").fetchone()[0])

    def close(self) -> None:
        """Close the file; a writer folds the WAL back into it."""
        self._db.close()

    def put(self, rows: Sequence[tuple[Entry, bytes]]) -> None:
        """Insert or replace trajectories in one transaction."""
        sql = f"insert or replace into trajectories ({_COLUMNS}, blob) values (?,?,?,?,?,?,?,?,?)"
        values = [(*_values(entry), blob) for entry, blob in rows]
        with self._transaction():
            self._db.executemany(sql, values)

    def sealed(self, ids: Iterable[str], part: str) -> None:
        """Record that a part holds these trajectories and drop their blobs, in one transaction."""
        with self._transaction():
            sql = "update trajectories set part=?, blob=null where id=?"
            self._db.executemany(sql, [(part, name) for name in ids])

    def _transaction(self) -> sqlite3.Connection:
        self._db.execute("begin immediate")
        return self._db

    def entries(
        self,
        *,
        stage: str | None = None,
        step: int | None = None,
        outcome: Outcome | None = None,
        task: str | None = None,
    ) -> list[Entry]:
        """Entries that match every filter given, by stage, step and id."""
        wanted = {"stage": stage, "step": step, "outcome": outcome, "task_id": task}
        used = {column: value for column, value in wanted.items() if value is not None}
        where = " and ".join(f"{column}=?" for column in used) or "1"
        sql = f"select {_COLUMNS} from trajectories where {where} order by stage, step, id"
        return [_entry(row) for row in self._db.execute(sql, list(used.values()))]

    def page(
        self, wanted: Mapping[str, str | int], text: str, order: str, window: tuple[int, int]
    ) -> list[Entry]:
        """The `window` (first, how many) of entries of which `text` is in the id or the task, ordered by a
        column, descending where `-` stands before it."""
        where, values = _matching(wanted, text)
        column, down = order.removeprefix("-"), order.startswith("-")
        if column not in _ORDERS:
            raise ValueError(f"no column {column!r} to order by")
        by = f"{'grp' if column == 'group' else column} {'desc' if down else 'asc'}, stage, step, id"
        sql = f"select {_COLUMNS} from trajectories where {where} order by {by} limit ? offset ?"
        return [_entry(row) for row in self._db.execute(sql, (*values, window[1], window[0]))]

    def matching(self, wanted: Mapping[str, str | int], text: str) -> int:
        """How many entries there are to make pages of."""
        where, values = _matching(wanted, text)
        return int(self._db.execute(f"select count(*) from trajectories where {where}", values).fetchone()[0])

    def tally(self) -> list[tuple[str, int, int, str, Outcome, int]]:
        """(stage, step, version, task, outcome, how many), in this order."""
        sql = "select stage, step, version, task_id, outcome, count(*) from trajectories group by 1,2,3,4,5"
        return [(s, n, v, t, Outcome(o), many) for s, n, v, t, o, many in self._db.execute(sql)]

    def entry(self, name: str) -> Entry | None:
        """The entry of one trajectory."""
        row = self._db.execute(f"select {_COLUMNS} from trajectories where id=?", (name,)).fetchone()
        return _entry(row) if row else None

    def bodies(self, ids: Sequence[str]) -> dict[str, bytes | str]:
        """Where each trajectory is: its blob, or the name of the part that holds it."""
        holes = ",".join("?" * len(ids))
        sql = f"select id, blob, part from trajectories where id in ({holes})"
        return {name: part if blob is None else blob for name, blob, part in self._db.execute(sql, ids)}

    def unsealed(self, stage: str, step: int) -> int:
        """How many trajectories of the step are still blobs."""
        sql = "select count(*) from trajectories where stage=? and step=? and blob is not null"
        return int(self._db.execute(sql, (stage, step)).fetchone()[0])

    def counts(self) -> list[tuple[str, int, Outcome, int]]:
        """(stage, step, outcome, how many), by stage and step."""
        sql = "select stage, step, outcome, count(*) from trajectories group by 1, 2, 3 order by 1, 2, 3"
        return [(stage, step, Outcome(outcome), n) for stage, step, outcome, n in self._db.execute(sql)]

    def mark(self, mark: Mark) -> None:
        """Insert or replace a mark; durable against power loss."""
        self._db.execute("pragma synchronous=full")
        try:
            row = (mark.stage, mark.step, mark.time, json.dumps(dict(mark.info)))
            self._db.execute("insert or replace into marks values (?,?,?,?)", row)
        finally:
            self._db.execute("pragma synchronous=normal")

    def marks(self, stage: str | None) -> list[Mark]:
        """Marks in the order they were made."""
        sql = "select stage, step, time, info from marks where ? is null or stage=? order by rowid"
        rows = self._db.execute(sql, (stage, stage))
        return [Mark(stage=s, step=n, time=t, info=json.loads(info)) for s, n, t, info in rows]


def _matching(wanted: Mapping[str, str | int], text: str) -> tuple[str, list[str | int]]:
    """The condition and its values; columns are named by who calls, values are anybody's."""
    columns = {"stage", "step", "version", "outcome", "task_id", "grp"} & wanted.keys()
    parts, values = [f"{column}=?" for column in sorted(columns)], [wanted[c] for c in sorted(columns)]
    if text:
        parts.append("(instr(lower(id), ?) or instr(lower(task_id), ?))")
        values += [text.lower()] * 2
    return " and ".join(parts) or "1", values


def _values(entry: Entry) -> tuple[str | int | float, ...]:
    return (
        entry.id,
        entry.task_id,
        entry.group,
        entry.stage,
        entry.step,
        entry.version,
        entry.outcome.value,
        entry.seconds,
    )


def _entry(row: tuple[Any, ...]) -> Entry:
    names = ("id", "task_id", "group", "stage", "step", "version", "outcome", "seconds")
    values = dict(zip(names, row, strict=True))
    return Entry(**(values | {"outcome": Outcome(values["outcome"])}))
