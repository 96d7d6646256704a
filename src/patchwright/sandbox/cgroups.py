"""One control group per namespace box, where the machine lets us: memory, processes and processor of the
whole box, beside the limits each of its processes has anyway. Standard library only.

The fork server finds the places before it leaves the host's file system behind; a box's first process makes
its groups and enters them; the client removes them when the box is gone. Should the client be killed, the
fork server does; and should it be killed too, the next one. Version 1 and version 2 are served.
"""

# ruff: noqa: PTH103, PTH106, PTH118, PTH120, PTH123, PTH208
# Kernel files relative to descriptors, used once per box

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from patchwright.sandbox import owner

CPUS = 2
"""Processors one box may keep busy."""
_PARENT = "patchwright"
_PROGRAMS = "patchwright-programs"
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD = 100_000
_SHARES = 220
"""Weight of all boxes together, per processor: two tasks at the nice level of boxes (1024 is one at 0)."""
_MIB = 1 << 20
_PATIENCE = 5.0
"""Seconds the kernel may take to empty one more group whose processes were killed."""
_PAUSE = 0.01


@dataclass(frozen=True)
class Place:
    """A folder of the control group file system in which boxes get groups.

    Example: `Place(path="/sys/fs/cgroup/pids/patchwright", controllers=("pids",), unified=False, fd=7)`
    """

    path: str
    controllers: tuple[str, ...]
    unified: bool
    """Whether it is version 2."""
    fd: int

    @property
    def door(self) -> str:
        """Write 0 there to enter. Version 1 lets one's only thread in without the wait of some milliseconds
        that moving a whole process costs when it is the first in a while.
        """
        return "cgroup.procs" if self.unified else "tasks"

    def settings(self, memory_mb: int, processes: int) -> dict[str, str]:
        """File -> what to write, for a box of these limits."""
        memory, quota = str(memory_mb * _MIB), str(_PERIOD * CPUS)
        if self.unified:
            every = {"memory": ("memory.max", memory), "cpu": ("cpu.max", f"{quota} {_PERIOD}")}
        else:
            every = {"memory": ("memory.limit_in_bytes", memory), "cpu": ("cpu.cfs_quota_us", quota)}
        every["pids"] = ("pids.max", str(processes + 1))  # the runner is one
        return dict(every[controller] for controller in self.controllers)


class Groups:
    """The groups of one fork server's boxes."""

    def __init__(self, places: list[Place]) -> None:
        self._places = places
        self._prefix = f"{_ids()}-{os.getpid()}-{owner.start_time(os.getpid())}-"

    @classmethod
    def find(cls) -> Groups:
        """Find the places boxes can have groups in, make them ready, and remove what the dead left there."""
        places: list[Place] = []
        own, mounts = _own_groups(), _mounts()
        for path, controllers, unified in _candidates(own, mounts, _wanted()):
            with contextlib.suppress(OSError):  # the machine has no such thing for us
                try:
                    places.append(_prepare(path, controllers, unified))
                except OSError:
                    if not unified:
                        raise
                    places.append(_prepare_below(_inside(own[""], *mounts[""]), controllers))
        for place in places:
            for name in filter(_is_dead, os.listdir(place.fd)):
                _remove_at(place.fd, name)
        return cls(places)

    @property
    def controllers(self) -> list[str]:
        """What is bounded for a box as a whole."""
        return [name for place in self._places for name in place.controllers]

    def enter(self, number: int, memory_mb: int, processes: int) -> list[str]:
        """Make the groups of box `number`, enter them for good, and return their paths.

        `memory_mb` is for all processes and files of the box. Raises OSError.
        """
        name = f"{self._prefix}{number}"
        for place in self._places:
            os.mkdir(name, 0o755, dir_fd=place.fd)
            for file, value in place.settings(memory_mb, processes).items():
                _write(f"{name}/{file}", value, place.fd)
            _write(f"{name}/{place.door}", "0", place.fd)
            os.close(place.fd)
        return [f"{place.path}/{name}" for place in self._places]

    def sweep(self) -> None:
        """Remove all groups of this server's boxes, which are dying."""
        names = ((place.fd, name) for place in self._places for name in os.listdir(place.fd))
        left = [one for one in names if one[1].startswith(self._prefix)]
        deadline = time.monotonic() + _PATIENCE
        while left and time.monotonic() < deadline:
            before, left = left, [one for one in left if not _remove_at(*one)]
            if len(left) < len(before):
                deadline = time.monotonic() + _PATIENCE
            else:
                time.sleep(_PAUSE)


def remove(path: str) -> bool:
    """Remove a group; whether it is gone. It is not while a process of it is still dying."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _remove_at(folder: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        return error.errno != errno.EBUSY
    return True


def _ids() -> int:
    """The namespace in which process ids hold."""
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116


def _is_dead(name: str) -> bool:
    parts = name.split("-")
    if len(parts) != 4 or parts[0] != str(_ids()) or not parts[1].isdigit():
        return False
    return owner.start_time(int(parts[1])) != parts[2]


def _wanted() -> tuple[str, ...]:
    """On a machine of few processors their limit would bound nothing."""
    return _CONTROLLERS if (os.cpu_count() or 1) > CPUS else _CONTROLLERS[:2]


def _own_groups() -> dict[str, str]:
    """Controller -> the group this process is in; the empty name is that of version 2."""
    found = {}
    with open("/proc/self/cgroup", encoding="utf-8") as lines:
        for line in lines:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _mounts() -> dict[str, tuple[str, str]]:
    """Controller -> where its groups are mounted, and which of them is at the top there."""
    found = {}
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        for line in lines:
            before, _, after = line.rstrip("\n").partition(" - ")
            root, point = before.split()[3:5]
            kind, _, options = after.split()[:3]
            if kind == "cgroup2":
                found[""] = (point, root)
            elif kind == "cgroup":
                found.update(dict.fromkeys(options.split(","), (point, root)))
    return found


def _candidates(
    own: Mapping[str, str], mounts: Mapping[str, tuple[str, str]], wanted: tuple[str, ...]
) -> list[tuple[str, tuple[str, ...], bool]]:
    """Where to put boxes: at the top in version 1, where each controller is a tree of its own; in version 2
    beside this program's own group, whose processes keep it from having any below.
    """
    found: list[tuple[str, tuple[str, ...], bool]] = []
    for controller in wanted:
        if controller in own and controller in mounts:
            found.append((mounts[controller][0], (controller,), False))
    left = tuple(name for name in wanted if name not in own)
    if left and "" in own and "" in mounts:
        found.append((_beside(own[""], *mounts[""]), left, True))
    return found


def _beside(own: str, point: str, root: str) -> str:
    inside = _inside(own, point, root)
    return inside if inside == os.path.normpath(point) else os.path.dirname(inside)


def _inside(own: str, point: str, root: str) -> str:
    """Where the group `own` is seen."""
    inside = os.path.relpath(own, root) if own.startswith(root) else "."
    return os.path.normpath(os.path.join(point, inside))


def _prepare_below(path: str, controllers: tuple[str, ...]) -> Place:
    """Make the folder of all boxes in this program's own group, as a service needs that was given a group
    and nothing beside it (systemd's `Delegate=`). Whatever is in the group moves to one below, for version 2
    keeps processes out of groups that have groups with controllers. Raises OSError.
    """
    if not all(os.access(f"{path}/cgroup.{name}", os.W_OK) for name in ("procs", "subtree_control")):
        raise PermissionError(f"{path} belongs to somebody else")
    os.makedirs(f"{path}/{_PROGRAMS}", exist_ok=True)
    with open(f"{path}/cgroup.procs", encoding="ascii") as file:
        pids = file.read().split()
    for pid in pids:
        _write(f"{path}/{_PROGRAMS}/cgroup.procs", pid)
    return _prepare(path, controllers, unified=True)


def _prepare(path: str, controllers: tuple[str, ...], unified: bool) -> Place:
    """Make the folder of all boxes below `path`. Raises OSError when the machine does not let us."""
    parent = f"{path}/{_PARENT}"
    if unified:
        _enable(path, controllers)
    os.makedirs(parent, exist_ok=True)
    # To move a process, version 2 wants the right to write at the group above both.
    if not all(os.access(place, os.W_OK) for place in (parent, f"{path}/cgroup.procs")):
        raise PermissionError(f"{parent} belongs to somebody else")
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if unified:
            _enable(parent, controllers)
        if "cpu" in controllers:
            shares = _SHARES * (os.cpu_count() or 1)
            weight = ("cpu.weight", min(10_000, shares * 100 // 1024)) if unified else ("cpu.shares", shares)
            _write(weight[0], str(weight[1]), fd)
        return Place(path=parent, controllers=controllers, unified=unified, fd=fd)
    except BaseException:
        os.close(fd)
        raise


def _enable(path: str, controllers: tuple[str, ...]) -> None:
    """Let the groups below `path` have these controllers."""
    with open(f"{path}/cgroup.subtree_control", encoding="ascii") as file:
        missing = set(controllers) - set(file.read().split())
    if missing:
        with open(f"{path}/cgroup.subtree_control", "w", encoding="ascii") as file:
            file.write(" ".join(f"+{name}" for name in sorted(missing)))


def _write(path: str, value: str, folder: int | None = None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
