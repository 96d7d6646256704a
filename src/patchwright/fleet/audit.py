"""The audit log of a node or a pool: one JSON line per thing done, in a file that is rotated."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from patchwright.errors import ConfigError

__all__ = ["Audit", "audit_file"]

_FILE_BYTES = 16 * 2**20
_FILES = 4
_SHOWN = 200
"""Characters kept of a command."""


def audit_file(name: str) -> Path:
    """Where the log of that name is when nobody says otherwise: in `$XDG_STATE_HOME/patchwright`, or
    `~/.local/state/patchwright`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "patchwright" / f"{name}.jsonl"


class Audit:
    """Appends lines to a file; without one, it does nothing.

    Example: `Audit(Path("audit.jsonl")).write("exec", box="1f0c", command="ls", code=0, seconds=0.002)`
    """

    def __init__(self, file: Path | None) -> None:
        """Raises ConfigError when the file cannot be written."""
        self._handler = _open(file) if file else None

    def write(
        self,
        what: str,
        *,
        who: str = "",
        box: str = "",
        lease: str = "",
        command: str = "",
        code: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """One line; `who` asked, from which address. A full disk costs lines and one word on stderr, not the
        command."""
        if self._handler is None:
            return
        entry = {
            "time": round(time.time(), 3),
            "what": what,
            **({"who": who} if who else {}),
            "lease": lease[:_SHOWN],
            "box": box,
            "command": command[:_SHOWN],
            "code": code,
            "ms": round(seconds * 1000, 1),
        }
        self._handler.handle(logging.makeLogRecord({"msg": json.dumps(entry)}))

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        if self._handler is not None:
            self._handler.close()


class _Handler(RotatingFileHandler):
    _trouble = ""
    """Why the last line could not be written."""

    def _open(self) -> TextIOWrapper:
        """For its owner's eyes only: commands may hold secrets."""
        file = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return os.fdopen(file, "a", encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging. Of troubles that last, only the first is told."""
        before, self._trouble = self._trouble, ""
        super().emit(record)
        if self._trouble and not before:
            sys.stderr.write(f"the audit log {self.baseFilename} cannot be written: {self._trouble}\n")

    def handleError(self, record: logging.LogRecord) -> None:
        """Called by logging when a line could not be written."""
        self._trouble = str(sys.exc_info()[1])

    def close(self) -> None:
        """What a full disk has no room for is lost."""
        with contextlib.suppress(OSError):
            super().close()


def _open(file: Path) -> _Handler:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _Handler(file, maxBytes=_FILE_BYTES, backupCount=_FILES, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the audit log {file} cannot be written: {error.strerror}; give another --audit"
        ) from None
