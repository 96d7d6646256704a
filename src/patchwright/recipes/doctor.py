"""`patchwright doctor`: what this machine can and cannot do, each finding with its mend."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from patchwright.errors import ConfigError, PatchwrightError
from patchwright.sandbox import kernel
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.docker_api import engine_socket
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Exec

__all__ = ["Finding", "diagnose"]

_DISK_GB = 2.0
"""The quickstart's run folder stays well under this."""
_MEMORY_GB = 3.0
"""Model, trainer and 64 boxes of the quickstart together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing looked at. Example: `Finding(name="disk", ok=True, detail="31 GB free")`"""

    name: str
    ok: bool
    detail: str
    mend: str = ""
    """What to do about it, when it is not ok."""
    needed: bool = True
    """Whether the quickstart cannot run without it."""


async def diagnose(folder: Path) -> list[Finding]:
    """Look at the machine; runs are to be written below `folder`. Nothing is raised."""
    looks: list[Callable[[], Finding]] = [
        _python, _git, _memory, _ports, _torch, _transformers, _ray, _docker, _systemd, _user_namespaces
    ]  # fmt: skip
    return [*(look() for look in looks), _disk(folder), *await _boxes()]


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
        detail=f"{total:.1f} GB",
        mend=f"the quickstart wants {_MEMORY_GB:.0f} GB; lower line.concurrency",
        needed=False,
    )


def _ports() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            detail = f"127.0.0.1:{server.getsockname()[1]} can be listened on"
        return Finding(name="loopback", ok=True, detail=detail)
    except OSError as error:
        mend = "bring up the loopback device (`ip link set lo up`)"
        return Finding(name="loopback", ok=False, detail=str(error), mend=mend)


def _torch() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return _package("torch", f", {cores} CPU cores", "pip install 'patchwright[local]'")


def _transformers() -> Finding:
    return _package("transformers", "", "pip install 'patchwright[local]'")


def _ray() -> Finding:
    try:
        return Finding(name="ray", ok=True, detail=importlib.metadata.version("ray"), needed=False)
    except importlib.metadata.PackageNotFoundError:
        mend = "only for `[cluster] use = \"ray\"`: pip install 'patchwright[ray]'"
        return Finding(name="ray", ok=False, detail="not installed", mend=mend, needed=False)


def _package(name: str, more: str, mend: str) -> Finding:
    try:
        detail = f"{importlib.metadata.version(name)}{more}"
        return Finding(name=name, ok=True, detail=detail)
    except importlib.metadata.PackageNotFoundError:
        detail = "not installed; training and the local engine need it"
        return Finding(name=name, ok=False, detail=detail, mend=mend)


def _docker() -> Finding:
    mend = "only for docker boxes: start Docker or Podman's socket, join its group, or set DOCKER_HOST"
    try:
        path = engine_socket()
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=2) as client:
            found = client.get("http://docker/version").json()
        names = [part["Name"] for part in found.get("Components") or ()]
        name = "Podman" if any("Podman" in one for one in names) else "Docker"
        return Finding(name="docker", ok=True, detail=f"{name} {found['Version']} at {path}", needed=False)
    except ConfigError as error:
        return Finding(name="docker", ok=False, detail=str(error), mend=mend, needed=False)
    except (httpx.HTTPError, ValueError, KeyError, AttributeError) as error:
        return Finding(name="docker", ok=False, detail=f"{path}: {error}", mend=mend, needed=False)


def _systemd() -> Finding:
    ok = Path("/run/systemd/system").is_dir()
    return Finding(
        name="systemd",
        ok=ok,
        detail="`patchwright node install` can be used" if ok else "this machine was not started by it",
        mend="only for `patchwright node install`: have `patchwright node serve` started by another means",
        needed=False,
    )


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


def _disk(folder: Path) -> Finding:
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free / 1e9
    writable = os.access(place, os.W_OK)
    detail = f"{free:.1f} GB free in {place}{'' if writable else ', but it cannot be written to'}"
    mend = f"free {_DISK_GB:.0f} GB, or give --run a folder on another disk"
    return Finding(name="disk", ok=writable and free >= _DISK_GB, detail=detail, mend=mend)


async def _boxes() -> list[Finding]:
    """Open a real namespace box and run a command: no kernel setting says as much."""
    backend = NamespaceBackend()
    try:
        box = await backend.open(BoxSpec())
        done = await box.exec("git --version && python3 --version && grep Seccomp: /proc/self/status")
        await box.close()
        return [_box(done), _control_groups(await backend.controllers())]
    except PatchwrightError as error:
        mend = "do what it says, or use `-s line.sandbox.use=docker`"
        return [Finding(name="boxes", ok=False, detail=str(error), mend=mend)]
    finally:
        await backend.close()


def _box(done: Exec) -> Finding:
    if done.code:
        mend = "git and python3 must be in PATH"
        return Finding(name="boxes", ok=False, detail=done.output[-300:], mend=mend)
    filtered = done.output.split()[-1] == "2"
    calls = "needless system calls are refused" if filtered else "no filter of system calls here"
    return Finding(name="boxes", ok=True, detail=f"a namespace box opened and ran a command; {calls}")


def _control_groups(controllers: list[str]) -> Finding:
    if controllers:
        detail = f"each box is bounded as a whole ({', '.join(controllers)})"
        return Finding(name="cgroups", ok=True, detail=detail, needed=False)
    return Finding(
        name="cgroups",
        ok=False,
        detail="memory is bounded for each process of a box only",
        mend="run as root, or in a group of one's own: `systemd-run --user --scope -p Delegate=yes …`",
        needed=False,
    )
