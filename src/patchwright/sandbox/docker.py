"""Docker boxes: one container per box, over the Engine API, with the runner of the namespace boxes inside.

The runner (`docker_init.py`) is PID 1 of the container and talks over its stdin and stdout, so a command
costs no `docker exec`, and a box ends when its owner hangs up or dies. An image needs bash and a python3
of at least 3.9 with its standard library.

The boxes of image `host` have a read-only root: what they write is in memory and bounded by `disk_mb` as
a whole. In other images the root is writable, and there `disk_mb` bounds each file, not their sum.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import secrets
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.docker_api import DockerApi, DockerChannel, message
from patchwright.sandbox.namespace import NamespaceBox
from patchwright.sandbox.rootfs import GITCONFIG, HOME
from patchwright.types import Limits

_OPEN = 120.0
"""Seconds a started container may take until its runner answers."""
_CPUS = 2
_FILES = 1024
_OOM_FIRST = 1000
"""The kernel's score of what to kill first when the machine runs out of memory."""
_READ_ONLY = [f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger", "1/oom_score_adj")]
"""Docker's own list and the runner's score, which an engine without CAP_SYS_RESOURCE cannot pin."""
_MIB = 1 << 20
_LABEL = "patchwright"
_INSIDE = (
    "archive",
    "docker_init",
    "files",
    "output",
    "prebuilt",
    "processes",
    "runner",
    "syscalls",
    "warm",
    "wire",
)
"""The modules of this package that run in a box."""
_BOOT = """
import os, sys
fd = os.memfd_create("patchwright")
left = int(sys.argv[1])
while left:
    data = os.read(0, left)
    os.write(fd, data)
    left = left - len(data) if data else sys.exit("no program came")
sys.path.insert(0, "/proc/self/fd/%d" % fd)
from patchwright.sandbox.docker_init import main
main()
"""


class DockerBox(NamespaceBox):
    """One container. The runner inside is the one of the namespace boxes, and so is its client."""

    def __init__(self, spec: BoxSpec, channel: DockerChannel, api: DockerApi, name: str) -> None:
        super().__init__(spec, channel, pidfd=-1)  # this box is killed by its name instead
        self._api = api
        self._name = name

    async def close(self) -> None:
        """Kill every process of the box and remove its container. Closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._channel.close("the box is closed")
            await self._api.remove(self._name)


class DockerBackend:
    """Opens Docker boxes. `default_image` is what boxes of image `host` are made from.

    `socket` is the engine's; left out, it is that of DOCKER_HOST, or `/var/run/docker.sock`.

    Example: `backend = DockerBackend(default_image="python:3.12")`
    """

    name = "docker"

    def __init__(self, *, default_image: str | None = None, socket: str | None = None) -> None:
        self._image = default_image
        self._api = DockerApi(socket or _socket())
        self._run = secrets.token_hex(8)
        self._starting = asyncio.Lock()
        self._reaped = False
        self._closed = False
        self._boxes: set[DockerBox] = set()

    async def open(self, spec: BoxSpec) -> DockerBox:
        """A fresh container; see `SandboxBackend.open`. Raises ConfigError when no image is set."""
        image = self._image if spec.image == "host" else spec.image
        if not image:
            raise ConfigError(
                "docker boxes need an image for tasks that name none; "
                "set `line.sandbox.image` or give `--image NAME`"
            )
        if self._closed:
            raise SandboxError("the sandbox backend is closed")
        await self._reap()
        name = f"patchwright-{secrets.token_hex(8)}"
        try:
            await self._create(name, image, _container(spec, self._run))
            channel = await self._start(name, image)
            await _furnish(channel, spec)
        except BaseException:
            await asyncio.shield(self._api.remove(name))
            raise
        box = DockerBox(spec, channel, self._api, name)
        self._boxes = {other for other in self._boxes if not other._closed} | {box}
        return box

    async def close(self) -> None:
        """Remove every container of this backend. Closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.gather(*(box.close() for box in self._boxes))
            if self._reaped:
                await self._remove(await self._api.containers(f"{_LABEL}.run={self._run}"))
        finally:
            await self._api.aclose()

    async def _create(self, name: str, image: str, container: dict[str, Any]) -> None:
        query, container = {"name": name}, {**container, "Image": image}
        status, text = await self._api.call("POST", "/containers/create", query=query, body=container)
        if status == 404:
            await self._pull(image)
            status, text = await self._api.call("POST", "/containers/create", query=query, body=container)
        if status != 201:
            raise SandboxError(f"Docker does not create a container of {image!r}: {message(text)}")

    async def _pull(self, image: str) -> None:
        async with self._starting:
            status, _ = await self._api.call("GET", f"/images/{image}/json")
            if status != 200 and (reason := await self._api.pull(image)):
                raise SandboxError(f"image {image!r} is not there and cannot be pulled: {reason}")

    async def _start(self, name: str, image: str) -> DockerChannel:
        channel = await self._api.attach(name)
        status, text = await self._api.call("POST", f"/containers/{name}/start")
        if status != 204:
            channel.close("not started")
            raise SandboxError(
                f"a container of {image!r} does not start (it needs bash and python3): {message(text)}"
            )
        return channel

    async def _reap(self) -> None:
        """Once, remove what programs of this machine that are dead have left behind."""
        async with self._starting:
            if not self._reaped:
                found = await self._api.containers(f"{_LABEL}=1")
                dead = [one for one in found if _is_dead(one["Labels"].get(f"{_LABEL}.owner", ""))]
                await self._remove(dead)
                self._reaped = True

    async def _remove(self, containers: Iterable[dict[str, Any]]) -> None:
        await asyncio.gather(*(self._api.remove(one["Id"]) for one in containers))


async def _furnish(channel: DockerChannel, spec: BoxSpec) -> None:
    header = {"op": "open", "workdir": spec.workdir, "env": dict(spec.env), "gitconfig": GITCONFIG}
    try:
        async with asyncio.timeout(_OPEN):
            channel.send(_program())
            await channel.ask(header, spec.archive)
    except TimeoutError:
        raise SandboxError(f"a box did not open within {_OPEN:.0f} s") from None


def _container(spec: BoxSpec, run: str) -> dict[str, Any]:
    """The container of a box ("Create a container" in the Engine API's reference)."""
    labels = {_LABEL: "1", f"{_LABEL}.run": run, f"{_LABEL}.owner": _owner()}
    return {
        "Entrypoint": ["python3", "-I", "-S", "-c", _BOOT, str(len(_program()))],
        "Cmd": [],
        "Env": [f"HOME={HOME}"] if spec.image == "host" else [],
        "WorkingDir": "/",
        "Hostname": "box",
        "Labels": labels,
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
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
        "core": 0,
    }


def _memory_folders(workdir: str | None, size: int) -> dict[str, Any]:
    """Folders in memory that share `size` bytes: half is the working directory's, if it is one."""
    shares = {"/tmp": size // 4}
    if workdir is not None:
        shares = {HOME: size // 8, **shares, workdir: size // 2}
    options = "rw,exec,nosuid,nodev,mode=1777,size={}"
    return {"ShmSize": size // 8, "Tmpfs": {path: options.format(n) for path, n in shares.items()}}


@functools.cache
def _program() -> bytes:
    """The runner and what it imports, as a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for package in ("patchwright", "patchwright/sandbox"):
            bundle.writestr(f"{package}/__init__.py", "")
        for module in _INSIDE:
            source = Path(__file__).with_name(f"{module}.py").read_bytes()
            bundle.writestr(f"patchwright/sandbox/{module}.py", source)
    return buffer.getvalue()


def _owner() -> str:
    """This program, told apart from all others of this machine since it started; empty without /proc."""
    return (
        json.dumps([*_machine(), os.getpid(), _start_time(os.getpid())]) if Path("/proc/1").exists() else ""
    )


def _is_dead(owner: str) -> bool:
    """Whether the owner is a program of this machine that has ended. Of others nothing can be known."""
    try:
        boot, namespace, pid, started = json.loads(owner)
        return [boot, namespace] == _machine() and _start_time(int(pid)) != started
    except (ValueError, TypeError, OSError):
        return False


def _machine() -> list[str]:
    """This boot of this machine, and the namespace in which its process ids hold."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return [boot, str(Path("/proc/self/ns/pid").readlink())]


def _start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _socket() -> str:
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not host.startswith("unix://"):
        raise ConfigError(f"DOCKER_HOST is {host!r}; only a Unix socket can be used: `unix:///PATH`")
    return host.removeprefix("unix://")
