"""Folders of the machine that a box sees read-only: how `BoxSpec.mounts` is checked, taken and laid.

Standard library only: `zygote.py` uses it. A mount is cloned where the machine's files are in sight, and
attached when the box's root is put together.
"""

# Mount points are strings, and a box starts sooner without path objects

from __future__ import annotations

import os
from collections.abc import Mapping

from patchwright.sandbox import syscalls

PLACE = "/opt/"
"""Everything mounted lies below: no system folder and no folder of a box's own is there."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Clones = list[tuple[str, int]]
"""Where each goes, and its descriptor."""


def check_mounts(mounts: Mapping[str, str]) -> None:
    """Raises ValueError, with a sentence, when boxes cannot have these mounts."""
    for target, source in mounts.items():
        if not target.startswith(PLACE) or os.path.normpath(target) != target:
            raise ValueError(f"mount {target!r} must be an absolute path below {PLACE} without '..'")
        if not os.path.isabs(source) or not os.path.isdir(source):  # noqa: PTH112, PTH117
            raise ValueError(f"mount {target!r}: {source!r} is no folder of this machine; give a whole path")


def clone(mounts: Mapping[str, str], host: int) -> Clones:
    """Read-only mounts of the folders, from the mount namespace open as `host`. Raises OSError."""
    if not mounts:
        return []
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(host, syscalls.CLONE_NEWNS)
    clones = [(target, syscalls.clone_mount(source)) for target, source in mounts.items()]
    syscalls.setns(own, syscalls.CLONE_NEWNS)
    os.close(own)
    for _, fd in clones:
        syscalls.seal_mount(fd)
    return clones


def attach(clones: Clones, root: int) -> None:
    """Lay them over the root open as `root`; no link in it is followed. Raises OSError."""
    for target, fd in clones:
        folder = os.dup(root)
        for name in target.strip("/").split("/"):
            folder = _step(folder, name)
        syscalls.attach_mount_at(fd, folder)
        os.close(folder)
        os.close(fd)


def _step(folder: int, name: str) -> int:
    """A descriptor of a folder in `folder`, made if it is missing; `folder` is closed."""
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        pass
    inner = os.open(name, _FOLDER, dir_fd=folder)
    os.close(folder)
    return inner
