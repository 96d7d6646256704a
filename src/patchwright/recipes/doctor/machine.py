"""The machine itself: Python, git, memory, disk, ports, the kernel, the GPU."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from patchwright.fleet.api import DEFAULT_PORT
from patchwright.fleet.pool_api import DEFAULT_POOL_PORT
from patchwright.metrics.config import MetricsConfig
from patchwright.recipes.doctor.finding import Finding
from patchwright.sandbox import kernel

__all__ = ["look"]

_DISK_GB = 2.0
"""The quickstart's run folder stays well under this."""
_MEMORY_GB = 3.0
"""Model, trainer and 64 boxes of the quickstart together."""
_SERVERS = {
    "serve": 8000,
    "node": DEFAULT_PORT,
    "pool": DEFAULT_POOL_PORT,
    "prometheus": MetricsConfig().prometheus_port,
}
"""Ports that are listened on unless told otherwise."""
_GPU_SPARED = "only for larger models: train and serve them on a machine with an NVIDIA GPU"
_GPU_WANTED = (
    'go to a machine with an NVIDIA GPU, or give `cpu` where the configuration says `device = "cuda"`'
)
_ASK_GPU = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def look(folder: Path, *, gpu: bool = False) -> list[Finding]:
    """Every finding; runs are to be written below `folder`, and whether a `gpu` is needed is to be told."""
    own = [_python(), _git(), _memory(), _disk(folder), _gpu(needed=gpu), _loopback(), _ports()]
    return [*own, _systemd(), _kernel(), _user_namespaces()]


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    detail = f"{platform.python_version()} on {platform.system()} {platform.release()}"
    return Finding(name="python", ok=ok, detail=detail, mend="install Python 3.11 or newer")


def _git() -> Finding:
    found = shutil.which("git")
    return Finding(
        name="git", ok=bool(found), detail=found or "not found", mend="install git; patches are taken with it"
    )


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return Finding(
        name="memory",
        ok=total >= _MEMORY_GB,
        detail=f"{total:.1f} GB, {len(os.sched_getaffinity(0))} CPU cores",
        mend=f"the quickstart wants {_MEMORY_GB:.0f} GB; lower line.concurrency",
        needed=False,
    )


def _disk(folder: Path) -> Finding:
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free / 1e9
    writable = os.access(place, os.W_OK)
    detail = f"{free:.1f} GB free in {place}{'' if writable else ', but it cannot be written to'}"
    mend = f"free {_DISK_GB:.0f} GB, or give --run a folder on another disk"
    return Finding(name="disk", ok=writable and free >= _DISK_GB, detail=detail, mend=mend)


def _gpu(*, needed: bool) -> Finding:
    """As the driver tells: asking torch takes seconds, and it may be built without."""
    program = shutil.which("nvidia-smi")
    if program is None:
        mend = _GPU_WANTED if needed else _GPU_SPARED
        return Finding(name="gpu", ok=False, detail="no nvidia-smi: no NVIDIA GPU", mend=mend, needed=needed)
    try:
        done = subprocess.run([program, *_ASK_GPU], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        mend = "run `nvidia-smi` and mend what it says; the driver may not fit the kernel"
        return Finding(name="gpu", ok=False, detail=f"nvidia-smi: {error}", mend=mend, needed=needed)
    detail = "; ".join(line.strip() for line in done.stdout.splitlines()[:8]) or "nvidia-smi names none"
    if _version("torch").endswith("+cpu"):
        mend = "install a CUDA build of torch: `pip install --force-reinstall torch` from PyPI"
        detail = f"{detail}; this torch is built without CUDA"
        return Finding(name="gpu", ok=False, detail=detail, mend=mend, needed=needed)
    return Finding(name="gpu", ok=True, detail=detail, needed=needed)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            detail = f"127.0.0.1:{server.getsockname()[1]} can be listened on"
        return Finding(name="loopback", ok=True, detail=detail)
    except OSError as error:
        mend = "bring up the loopback device (`ip link set lo up`)"
        return Finding(name="loopback", ok=False, detail=str(error), mend=mend)


def _ports() -> Finding:
    taken = [f"{port} ({name})" for name, port in _SERVERS.items() if not _free(port)]
    if not taken:
        detail = ", ".join(f"{port} ({name})" for name, port in _SERVERS.items()) + " are free"
        return Finding(name="ports", ok=True, detail=detail, needed=False)
    mend = "only for those servers: stop what listens there, or give them another port (`--port`)"
    return Finding(name="ports", ok=False, detail=f"taken: {', '.join(taken)}", mend=mend, needed=False)


def _free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _systemd() -> Finding:
    ok = Path("/run/systemd/system").is_dir()
    return Finding(
        name="systemd",
        ok=ok,
        detail="`patchwright node install` can be used" if ok else "this machine was not started by it",
        mend="only for `patchwright node install`: have `patchwright node serve` started by another means",
        needed=False,
    )


def _kernel() -> Finding:
    """What namespace boxes are made of. Whether one opens says `boxes`."""
    features = {
        "user namespaces": Path("/proc/self/ns/user").exists(),
        "overlayfs": "overlay" in _text("/proc/filesystems").split(),
        "seccomp filters": "errno" in _text("/proc/sys/kernel/seccomp/actions_avail").split(),
        "control groups": Path("/proc/self/cgroup").exists(),
    }
    lacking = [name for name, there in features.items() if not there]
    version = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1"
    detail = f"lacks {', '.join(lacking)}" if lacking else f"{', '.join(features)} {version}"
    mend = "use a kernel with these built in (`modprobe overlay` loads overlayfs), or docker boxes"
    return Finding(name="kernel", ok=not lacking, detail=detail, mend=mend, needed=False)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _user_namespaces() -> Finding:
    """For ordinary users: whoever runs this may be root, and a node's service is not."""
    found = kernel.obstacles(root=False)
    return Finding(
        name="namespaces",
        ok=not found,
        detail=", ".join(one.what for one in found) or "no setting keeps ordinary users from making them",
        mend="; ".join(one.mend for one in found),
        needed=False,
    )
