"""Who a namespace box runs as: an unprivileged user without any capability, bounded in what it takes.

Standard library only. As real root every box gets a user id of its own that owns nothing on this
machine, so that even a write that slips into a kernel file is refused; as an ordinary user it is that
user, inside a user namespace. Inside the box it is user 1000,
`agent`, or `root` where the box is made from an image.
"""

# ruff: noqa: PTH123
# Kernel files, written once per box

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from patchwright.sandbox import seccomp, syscalls

_FIRST_ID = 1 << 30
"""Ids from here on belong to nobody: above those that distributions and `subuid` hand out."""
_IDS = 1 << 29
_PER_SERVER = 1 << 14
_OTHER_IDS = 1 << 16
OTHERS = _FIRST_ID + _IDS - _OTHER_IDS
"""The last of them: in boxes of images, owners of files other than the box's user."""
_ADDRESS_SPARE = 16 << 30
"""Address space over the memory limit, for programs that reserve far more than they use."""
_MIB = 1 << 20
_FILES = 1024
_OOM_FIRST = "1000"


@dataclass(frozen=True)
class Identity:
    """Who boxes are outside of themselves: as root one id per box, else the one user there is."""

    root: bool

    def user(self, number: int) -> int:
        """User and group id of box `number`, as seen by the fork server."""
        if not self.root:
            return 0
        server = os.getpid() % ((_IDS - _OTHER_IDS) // _PER_SERVER)
        return _FIRST_ID + server * _PER_SERVER + number % _PER_SERVER


def enter_mount_namespace() -> Identity:
    """Give this process a mount namespace it may change, with the strongest identity it can get.

    Raises OSError when the kernel allows neither root's way nor an ordinary user's.
    """
    if os.geteuid() == 0 and _maps_enough_ids():
        try:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            return Identity(root=True)
        except PermissionError:
            pass  # root without its powers (a container): try as any other user
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    _map_ids(f"0 {user} 1", f"0 {group} 1")
    return Identity(root=False)


def drop(user: int, root: bool, inside: int) -> None:
    """Become `user`, called `inside` in a user namespace of one's own, for good: no capability, no way to
    gain one.
    """
    if root:
        os.setgroups([])
        syscalls.keep_capabilities()
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        # Held over the change of user: some kernels refuse user namespaces to unprivileged programs.
        syscalls.set_capabilities(1 << syscalls.CAP_SYS_ADMIN)
        syscalls.set_dumpable(True)
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    _map_ids(f"{inside} {user} 1", f"{inside} {user} 1")
    try:
        syscalls.leave_keyring()
    except OSError:
        pass  # refused to us (seccomp) or absent, it is so to the box too
    # Without this a box could make namespaces, and in them file systems, beyond its limits.
    _write("/proc/sys/user/max_user_namespaces", "0")
    _write("/proc/self/oom_score_adj", _OOM_FIRST)
    syscalls.drop_bounding_set()
    syscalls.set_capabilities(0)
    syscalls.no_new_privileges()
    seccomp.apply()
    syscalls.set_dumpable(False)


def limit(memory_mb: int, processes: int, disk_mb: int) -> None:
    """Bound what every process of the box may take; `processes` is of the box as a whole."""
    memory = memory_mb * _MIB
    _set(resource.RLIMIT_DATA, memory)
    _set(resource.RLIMIT_AS, memory + _ADDRESS_SPARE)
    _set(resource.RLIMIT_NPROC, processes + 1)  # the runner is one
    _set(resource.RLIMIT_FSIZE, disk_mb * _MIB)
    _set(resource.RLIMIT_NOFILE, _FILES)
    _set(resource.RLIMIT_CORE, 0)


def _set(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _maps_enough_ids() -> bool:
    """Whether the ids meant for boxes exist here (not so in a container with few ids)."""
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        ranges = [(int(start), int(count)) for start, _, count in (line.split() for line in lines)]
    return any(start <= _FIRST_ID and start + count >= _FIRST_ID + _IDS for start, count in ranges)


def _map_ids(users: str, groups: str) -> None:
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", users)
    _write("/proc/self/gid_map", groups)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
