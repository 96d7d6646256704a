"""Who made what outlives its maker: containers, control groups. Standard library only.

A process id alone is used again; with the machine's boot, the namespace in which the id holds and the
time at which the process started, it names one program for good. The machine's own name tells whether
another boot is an earlier one of this machine, whose programs are all dead, or another machine's.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def this_program() -> str:
    """This program, told apart from all others of this machine since it started; empty without /proc."""
    if not Path("/proc/1").exists():
        return ""
    return json.dumps([*_boot(), os.getpid(), start_time(os.getpid()), _machine()])


def is_dead(owner: str) -> bool:
    """Whether the owner is a program of this machine that has ended. Of others nothing can be known."""
    try:
        boot, namespace, pid, started, *machine = json.loads(owner)
        if boot != _boot()[0]:
            return bool(machine == [_machine()] != [""])
        return bool(namespace == _boot()[1] and start_time(int(pid)) != started)
    except (ValueError, TypeError, OSError):
        return False


def _boot() -> list[str]:
    """This boot of this machine, and the namespace in which its process ids hold."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return [boot, str(Path("/proc/self/ns/pid").readlink())]


def _machine() -> str:
    """What the machine is called over all its boots; empty where nothing says."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty when there is none, or a dead one to be reaped.

    Field 22 of /proc/PID/stat.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
