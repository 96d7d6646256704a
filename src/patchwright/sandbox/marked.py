"""Finds the processes of a command by a variable in their environment, where no kernel object holds them
together. Standard library only; used by `process.py`, and inside of the boxes of `swerex.py`.

What has cleared its environment is not found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK = "PATCHWRIGHT_COMMAND"
"""The variable: a name of the box, a colon, a number and a colon."""
_ROUNDS = 20


def kill_marked(mark: str) -> None:
    """Kill the processes whose environment says `mark`, until there are none (Linux only)."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(_ROUNDS):
        victims = [pid for pid in _pids() if any(e.startswith(wanted) for e in _variables(pid))]
        if not victims:
            return
        for pid in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    proc = Path("/proc")
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()] if proc.is_dir() else []


def _variables(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
