"""Finds the processes of a command by a variable in their environment, where no kernel object holds them
together. Standard library only; used by `process.py`, and inside of the boxes of `swerex.py`.

What has cleared its environment is not found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "PATCHWRIGHT_COMMAND"
"""The variable: a name of the box, a colon, a number and a colon."""
_ROUNDS = 20
_PAUSE = 0.01
"""Seconds in which a process gets through `execve`, in whose midst it shows no environment."""


def kill_marked(mark: str) -> None:
    """Kill the processes whose environment says `mark`, until there are none (Linux only)."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(_ROUNDS):
        seen = {pid: _environment(pid) for pid in _pids()}
        victims = [pid for pid, text in seen.items() if b"\0" + wanted in b"\0" + text]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not victims:
            if not any(_has_program(pid) for pid, text in seen.items() if not text):
                return
            time.sleep(_PAUSE)


def _pids() -> list[int]:
    proc = Path("/proc")
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()] if proc.is_dir() else []


def _environment(pid: int) -> bytes:
    """Its variables, each ended by a NUL; empty for one that is dead, of another user, or between two
    programs."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _has_program(pid: int) -> bool:
    """Whether it is alive and of this user, and no thread of the kernel."""
    try:
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except OSError:
        return False
    return True
