"""Verdicts on disk: identical patches of one task are graded once, across workers, runs and resumes.

The key covers all that decides a verdict: the task's box, tests and limits, the patch as it is applied, and
`EDITION`, which is raised whenever the rules change. Void endings have no verdict and are never here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from patchwright.store.files import attributed
from patchwright.tasks.repository import repository_archive
from patchwright.types import Grade, Task

__all__ = ["GradeCache", "Grading", "fingerprint", "key"]

EDITION = 4

_LEFT_OUT = {"prompt", "solution", "trust", "meta", "archive", "hidden"}
"""Fields of a task that do not decide what a patch is worth; the archive goes in by its content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grading:
    """A verdict and what led to it. Example: `(await grader.grading(task, patch)).log`"""

    grade: Grade
    log: str = ""
    """What the tests wrote; empty when they were not run, or the verdict was only remembered."""
    patch: str = ""
    """The patch as it was applied."""
    command_seconds: float = 0.0
    """Wall time of the test command alone; `grade.seconds` is that of the whole grading."""
    sessions: int | None = None
    """How often the runner called the witness (`grade/witness.py`); None when none was wanted."""


def fingerprint(task: Task) -> str:
    """What of a task decides its verdicts, as a hash."""
    known = {
        field.name: getattr(task, field.name)
        for field in dataclasses.fields(task)
        if field.name not in _LEFT_OUT
    }
    known["tests"] = dataclasses.asdict(task.tests)
    known["limits"] = dataclasses.asdict(task.limits)
    base = repository_archive(task) if task.archive is not None else b""
    return _hash(json.dumps(known, sort_keys=True, default=dict), hashlib.sha256(base).hexdigest())


def key(fingerprint: str, patch: bytes) -> str:
    """Under which a verdict is kept."""
    return _hash(str(EDITION), fingerprint, hashlib.sha256(patch).hexdigest())


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


class GradeCache:
    """Verdicts in one SQLite file, safe to share between processes and to kill at any moment.

    Example: `GradeCache(Path("runs/grade/grades.db")).get(key)`
    """

    def __init__(self, file: Path) -> None:
        """Open or create it. Raises StoreError."""
        self._file = file
        with attributed("open the cache of grades", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(file, isolation_level=None, timeout=60)
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS grades (key TEXT PRIMARY KEY, grading BLOB NOT NULL)"
            )

    def get(self, key: str) -> Grading | None:
        """The verdict under a key; None when there is none that can be read. Raises StoreError."""
        with attributed("read the cache of grades", self._file):
            row = self._base.execute("SELECT grading FROM grades WHERE key = ?", (key,)).fetchone()
        try:
            return _adapter().validate_json(zlib.decompress(row[0])) if row else None
        except (ValidationError, zlib.error):  # of another edition: grade again
            return None

    def put(self, key: str, grading: Grading) -> None:
        """Keep a verdict. Raises StoreError."""
        packed = zlib.compress(_adapter().dump_json(grading), 1)
        with attributed("keep a grade", self._file):
            self._base.execute("INSERT OR REPLACE INTO grades VALUES (?, ?)", (key, packed))

    def close(self) -> None:
        """Close the file."""
        self._base.close()


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Grading)
