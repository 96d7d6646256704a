"""The pool's journal: what it owes its clients and nodes, in SQLite, written before it is promised.

A lease is in it from before its box is asked for until the box is known to be gone. There is no time of day
in it: whoever reads the journal gives the leases still alive a new term.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError, StoreError

__all__ = ["Journal", "LeaseRow", "LeaseState"]

_FENCE_BLOCK = 1000
_FENCE_LEAP = 1_000_000
"""Fences skipped at every start: more than a power failure can make SQLite forget in WAL mode."""


class LeaseState(StrEnum):
    """Where a lease is in its life. A closed lease is no longer in the journal."""

    ALLOCATING = "allocating"
    OPEN = "open"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """One lease. Example: `LeaseRow(lease_id="swe-lease-...", node="http://10.0.0.5:5000", image="host")`"""

    lease_id: str
    state: LeaseState = LeaseState.ALLOCATING
    node: str
    container_id: str = ""
    image: str
    token: str = ""
    """The lease's own token at the node."""
    fence: int = 0
    ttl: float = 0.0
    """Seconds it lives without use."""
    key: str = ""
    """Idempotency key of the request that asked for it."""
    spare: bool = False
    """A warm box that nobody has asked for yet."""


_COLUMNS = ", ".join(field.name for field in fields(LeaseRow))
_MARKS = ", ".join("?" for _ in fields(LeaseRow))
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes (url TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases ({_COLUMNS}, PRIMARY KEY (lease_id)) WITHOUT ROWID;
"""


class Journal:
    """Leases, nodes and the fence counter of one pool. Only one process may have the file open.

    Example: `journal = Journal(Path("pool.db")); journal.put(row); journal.leases()`
    """

    def __init__(self, file: Path | None = None) -> None:
        """Without a file it is kept in memory. Raises ConfigError when it is in use or no journal."""
        try:
            self._db = self._open(file)
        except (sqlite3.Error, OSError) as error:
            mend = "stop the other pool, or give another --journal"
            raise ConfigError(f"the journal {file} cannot be opened: {error}; {mend}") from None
        self._fence = int(self.fact("fence", 0)) + _FENCE_LEAP
        self._fence_kept = 0

    @staticmethod
    def _open(file: Path | None) -> sqlite3.Connection:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)  # it holds the tokens of leases
        db = sqlite3.connect(file or ":memory:", isolation_level=None, timeout=1.0)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(f"BEGIN EXCLUSIVE; {_SCHEMA} COMMIT;")
        return db

    def leases(self) -> Iterator[LeaseRow]:
        """Every lease that is not closed."""
        for row in self._do(f"SELECT {_COLUMNS} FROM leases").fetchall():
            values = dict(zip((field.name for field in fields(LeaseRow)), row, strict=True))
            state, spare = LeaseState(values.pop("state")), bool(values.pop("spare"))
            yield LeaseRow(state=state, spare=spare, **values)

    def put(self, row: LeaseRow) -> None:
        """Write a lease, over what was there. It survives the death of this process at once."""
        self._do(f"INSERT OR REPLACE INTO leases ({_COLUMNS}) VALUES ({_MARKS})", astuple(row))

    def remove(self, lease_id: str) -> None:
        """The lease is closed and its box gone."""
        self._do("DELETE FROM leases WHERE lease_id = ?", (lease_id,))

    def nodes(self) -> list[str]:
        """Nodes that joined at run time."""
        return [url for (url,) in self._do("SELECT url FROM nodes ORDER BY url")]

    def add_node(self, url: str) -> None:
        """Remember a node that joined."""
        self._do("INSERT OR REPLACE INTO nodes VALUES (?)", (url,))

    def remove_node(self, url: str) -> None:
        """Forget a node that left."""
        self._do("DELETE FROM nodes WHERE url = ?", (url,))

    def fact(self, name: str, default: str | int) -> str | int:
        """A fact about this pool; the first one asked with its default keeps that for ever."""
        self._do("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, default))
        (value,) = self._do("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return value if isinstance(value, int) else str(value)

    def next_fence(self) -> int:
        """A number larger than every one before, in this process or an earlier one."""
        self._fence += 1
        if self._fence > self._fence_kept:
            self._fence_kept = self._fence + _FENCE_BLOCK
            self._do("INSERT OR REPLACE INTO facts VALUES ('fence', ?)", (self._fence_kept,))
        return self._fence

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        self._db.close()

    def _do(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise StoreError(f"the pool's journal cannot be used: {error}; see to its disk") from None
