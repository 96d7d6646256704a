"""`events.jsonl`: what attempts are doing, told while they do it, for who watches a run.

Nothing is decided by it and nothing needs it: it is not durable, it is cut when it grows large, and a disk
that refuses it costs the run nothing.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

__all__ = ["FILE", "Events"]

FILE = "events.jsonl"
"""Its name in a run's folder."""
_LARGEST = 32 * 2**20
"""Bytes past which the file is begun anew: what is left out of it is over, and in the store."""
_LONGEST = 500
"""Characters kept of one value: failures quote what boxes printed."""


class Events:
    """Appends one JSON object a line: `t` (seconds since the epoch), `id` (the attempt), `what`, and more.

    `what` is `begin` (a process starts to write: whatever was in flight before is not any more), `queue` (an
    attempt waits for a box), `agent` (the agent works), `model` (it calls the model), `turn` (the call is
    recorded: when it `started`, `seconds`, `tokens`, `version`; the agent works again), `grade`, and `end`
    (`outcome`, and of a void one the `error`).

    Example: `Events(run.path / FILE).note("rl-3-toy-1-0", "queue", task="toy-1")`
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._size = path, -1, 0
        self._open(os.O_APPEND)

    def _open(self, how: int) -> None:
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o644)
            self._size = os.fstat(self._file).st_size
        except OSError:
            self._file = -1
        self.note("", "begin", pid=os.getpid())

    def note(self, attempt: str, what: str, **more: str | int | float) -> None:
        """Tell what an attempt does from now on."""
        if self._file < 0:
            return
        kept = {key: value[:_LONGEST] if isinstance(value, str) else value for key, value in more.items()}
        line = json.dumps({"t": round(time.time(), 3), "id": attempt, "what": what, **kept}) + "\n"
        try:
            self._size += os.write(self._file, line.encode())
        except OSError:  # a full disk: the run will say so itself where it matters
            self.close()
        if self._size > _LARGEST:
            self.close()
            self._open(os.O_APPEND | os.O_TRUNC)

    def close(self) -> None:
        """Write no more. Closing twice is allowed."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()
