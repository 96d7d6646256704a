"""Finds and kills the processes of a namespace box from its PID 1. Standard library only."""

# ruff: noqa: PTH123, PTH208
# /proc is read many times a second

from __future__ import annotations

import os
import signal
import time

Known = dict[int, str]
"""Process id -> start time, in the kernel's ticks: together they name a process for good."""

_ROUNDS = 200
_PATIENCE = 2.0
_PAUSE = 0.001


def any_other() -> bool:
    """Whether the box has any process besides this one."""
    try:
        os.kill(-1, 0)
    except ProcessLookupError:
        return False
    return True


def known() -> Known:
    """Every process of the box that is alive, but this one."""
    found: Known = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and (start := _start_time(name)):
            found[int(name)] = start
    return found


def kill_all_but(spared: Known) -> None:
    """Kill every process of the box but this one and `spared`.

    One system call kills them all at once when nothing is spared. Else it goes in rounds, since a
    process may fork meanwhile; what out-forks the rounds costs the spared ones their lives too. One that was
    killed forks no more, but a busy machine may let it die late: that is waited for, not long.
    """
    killed: set[tuple[int, str]] = set()
    rounds, deadline = 0, time.monotonic() + _PATIENCE
    while spared and rounds < _ROUNDS:
        victims = {(pid, start) for pid, start in known().items() if spared.get(pid) != start}
        if victims <= killed:
            if not victims or time.monotonic() > deadline:
                return
            time.sleep(_PAUSE)
            continue
        rounds += 1
        for pid, _ in victims - killed:
            _kill(pid)
        killed |= victims
    _kill(-1)
    deadline = time.monotonic() + _PATIENCE
    while known() and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _start_time(pid: str) -> str:
    """Field 22 of /proc/PID/stat; empty when the process is gone or dead and waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
