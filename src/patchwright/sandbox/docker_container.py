"""What a Docker box is made of: the container as the Engine API takes it, and the program sent into it."""

from __future__ import annotations

import functools
import resource
from typing import Any

from patchwright.sandbox import owner
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.bundle import bundled
from patchwright.sandbox.rootfs import HOME
from patchwright.types import Limits

_CPUS = 2
_FILES = 1024
_PROCESSES = 1 << 15
"""Processes of the box's user, on the whole machine: `PidsLimit` bounds a box."""
_OOM_FIRST = 1000
"""The kernel's score of what to kill first when the machine runs out of memory."""
_READ_ONLY = [f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger", "1/oom_score_adj")]
"""Docker's own list and the runner's score, which an engine without CAP_SYS_RESOURCE cannot pin."""
_MIB = 1 << 20
LABEL = "patchwright"
"""Everything made carries it, and two more that begin with it: the run and its owner."""
INSIDE = (
    "archive",
    "docker_init",
    "files",
    "footprint",
    "output",
    "prebuilt",
    "processes",
    "resident",
    "runner",
    "seccomp",
    "stream",
    "syscalls",
    "tunnel",
    "warm",
    "wire",
)
"""The modules of this package that run in a box."""
_ARRIVES = 120
"""Seconds until the program must be there. An engine that dies while it starts a container may forget it."""
_BOOT = """
import os, signal, sys
signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
signal.alarm(int(sys.argv[2]))
fd = os.memfd_create("patchwright")
left = int(sys.argv[1])
while left:
    data = os.read(0, left)
    os.write(fd, data)
    left = left - len(data) if data else sys.exit("no program came")
signal.alarm(0)
sys.path.insert(0, "/proc/self/fd/%d" % fd)
from patchwright.sandbox.docker_init import main
main()
"""


def labels(run: str) -> dict[str, str]:
    """By these what belongs to `run`, and to this program, is found again."""
    return {LABEL: "1", f"{LABEL}.run": run, f"{LABEL}.owner": owner.this_program()}


def container(spec: BoxSpec, image: str, run: str) -> dict[str, Any]:
    """The container of a box ("Create a container" in the Engine API's reference).

    Of the spec it depends on limits and mounts, and for image `host` on the working directory, a mount.
    """
    return {
        "Image": image,
        "Entrypoint": ["python3", "-I", "-S", "-c", _BOOT, str(len(program())), str(_ARRIVES)],
        "Cmd": [],
        "Env": [f"HOME={HOME}"] if spec.image == "host" else [],
        "WorkingDir": "/",
        "Hostname": "box",
        "Labels": labels(run),
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
        "StopSignal": "SIGKILL",  # PID 1 heeds no other, and an engine that stops would wait for it
        "StdinOnce": True,  # the runner sees the end of its stdin when this program is gone
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": _confinement(spec),
    }


def _confinement(spec: BoxSpec) -> dict[str, Any]:
    limits, host = spec.limits, spec.image == "host"
    bytes_ = (limits.memory_mb + limits.disk_mb) * _MIB  # files in memory count too
    return {
        "AutoRemove": True,
        "NetworkMode": "none",
        "IpcMode": "private",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": host,
        "PidsLimit": limits.processes + 1,  # the runner is one
        "Memory": bytes_,
        "MemorySwap": bytes_,
        "CpuPeriod": 100_000,
        "CpuQuota": 100_000 * _CPUS,
        "ReadonlyPaths": _READ_ONLY,
        "Mounts": [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
            for target, source in spec.mounts.items()
        ],
        "OomScoreAdj": _OOM_FIRST,
        "Ulimits": [{"Name": name, "Soft": n, "Hard": n} for name, n in _ulimits(limits).items()],
        "LogConfig": {"Type": "none"},
        **_memory_folders(spec.workdir if host else None, limits.disk_mb * _MIB),
    }


def _ulimits(limits: Limits) -> dict[str, int]:
    return {
        "data": limits.memory_mb * _MIB,
        "fsize": limits.disk_mb * _MIB,
        "nofile": _FILES,
        "nproc": _most_processes(),
        "core": 0,
    }


def _most_processes() -> int:
    """Where this is left out, Podman asks for a million, which it may not have: its service lowers its own
    bound to the kernel's number of process ids, and within a container cannot raise it again.
    """
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return _PROCESSES if hard == resource.RLIM_INFINITY else min(hard, _PROCESSES)


def memory_folders(spec: BoxSpec) -> list[str]:
    """The folders of a box that are in memory, and so no part of its container's files."""
    folders = ["/tmp", "/dev/shm"]
    return [*folders, HOME, spec.workdir] if spec.image == "host" else folders


def _memory_folders(workdir: str | None, size: int) -> dict[str, Any]:
    """Folders in memory that share `size` bytes: half is the working directory's, if it is one."""
    shares = {"/tmp": size // 4}
    if workdir is not None:
        shares = {HOME: size // 8, **shares, workdir: size // 2}
    options = "rw,exec,nosuid,nodev,mode=1777,size={}"
    return {"ShmSize": size // 8, "Tmpfs": {path: options.format(n) for path, n in shares.items()}}


@functools.cache
def program() -> bytes:
    """The runner and what it imports, as a zip."""
    return bundled(INSIDE)
