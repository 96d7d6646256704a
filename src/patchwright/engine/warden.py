"""Runs one server, and ends it with everything it started when its parent is gone: `warden.py COMMAND…`.

Its standard input is a pipe from the parent. That it closes means the parent is done, or dead, by whatever
signal. The server dies even if the warden is killed. Started as a file, in a session of its own, from any
Python: it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["main"]

_GRACE = 15.0
"""Seconds the server and its children have to end by themselves."""
_POLL = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run `command` until it ends or the parent does; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which closes the pipe
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the server leaves behind comes to this process
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        ended = os.pidfd_open(server.pid)
        select.select([sys.stdin.fileno(), ended], [], [])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = server.poll()
    _end_all()
    return 0 if code is None else code


def _end_all() -> None:
    """Ask every descendant to end, and kill those that have not within the grace."""
    deadline, number = time.monotonic() + _GRACE, signal.SIGTERM
    asked: set[int] = set()
    while left := _descendants():
        if time.monotonic() > deadline:
            number, asked = signal.SIGKILL, set()
        for pid in left - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        asked |= left
        time.sleep(_POLL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _descendants() -> set[int]:
    """Processes that this one started, or that came to it when their parents died."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
