"""The few Linux system calls that Python does not wrap: namespaces, mounts, capabilities.

Standard library only: the fork server (`zygote.py`) and the program inside the box (`runner.py`) use
it. Every function raises OSError with the call's name when the kernel refuses. Constants are those of
`linux/sched.h`, `linux/mount.h`, `linux/prctl.h` and `linux/capability.h`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MNT_DETACH = 0x2

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_MOUNT_ATTR_IDMAP = 0x100000
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOVE_MOUNT_T_EMPTY_PATH = 0x40

_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_SECCOMP_MODE_FILTER = 2

_PERSONALITY_ASK = 0xFFFFFFFF
_ADDR_NO_RANDOMIZE = 0x0040000

_CAP_VERSION_3 = 0x20080522
CAP_SYS_ADMIN = 21
_LAST_CAP = 63

# Numbers of the calls glibc may be too old to name; equal on x86-64 and on every asm-generic machine.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_PIDFD_GETFD = 438
_SYS_MOUNT_SETATTR = 442
_SYS_KEYCTL = {"x86_64": 250}.get(os.uname().machine, 219)
_SYS_PIVOT_ROOT = {"x86_64": 155}.get(os.uname().machine, 41)

_KEYCTL_JOIN_SESSION_KEYRING = 1

_SIOCSIFFLAGS = 0x8914
_LOOPBACK_UP = struct.pack("16sH22x", b"lo", 0x1)  # struct ifreq, IFF_UP: the other flags are the kernel's

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` (CLONE_NEW*) for fresh ones."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace open as `fd`, which must be of `kind`."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(_libc.mount(*arguments), f"mount {target}")


def bind(source: str, target: str) -> None:
    """Make the tree at `source` appear at `target` too, with what is mounted below it."""
    mount(source, target, "", MS_BIND | MS_REC)


def lock_down(path: str) -> None:
    """Make the mount at `path` and all below it read-only, without set-uid files or devices."""
    flags = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
    attributes = struct.pack("=QQQQ", flags, 0, 0, 0)
    at, recursive = ctypes.c_int(_AT_FDCWD), ctypes.c_uint(_AT_RECURSIVE)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR, at, path.encode(), recursive, attributes, ctypes.c_size_t(len(attributes))
    )
    _check(result, f"mount_setattr {path}")


def clone_mount(path: str) -> int:
    """A descriptor of a mount of its own, not yet anywhere, of the folder at `path`."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC)
    return _check(_libc.syscall(_SYS_OPEN_TREE, ctypes.c_int(_AT_FDCWD), path.encode(), flags), "open_tree")


def seal_mount(mount_fd: int) -> None:
    """Make a cloned mount read-only, without set-uid files or devices."""
    flags = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
    _set_attributes(mount_fd, struct.pack("=QQQQ", flags, 0, 0, 0))


def map_mount(mount_fd: int, namespace: int) -> None:
    """Show the files of a cloned mount with their owners as the user namespace `namespace` maps them,
    read-only."""
    _set_attributes(mount_fd, struct.pack("=QQQQ", _MOUNT_ATTR_IDMAP | _MOUNT_ATTR_RDONLY, 0, 0, namespace))


def attach_mount(mount_fd: int, path: str) -> None:
    """Put a cloned mount at `path`."""
    at, flags = ctypes.c_int(_AT_FDCWD), ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    result = _libc.syscall(_SYS_MOVE_MOUNT, ctypes.c_int(mount_fd), b"", at, path.encode(), flags)
    _check(result, f"move_mount {path}")


def attach_mount_at(mount_fd: int, folder: int) -> None:
    """Put a cloned mount on the folder open as `folder`."""
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)
    result = _libc.syscall(_SYS_MOVE_MOUNT, ctypes.c_int(mount_fd), b"", ctypes.c_int(folder), b"", flags)
    _check(result, "move_mount")


def unmount(path: str) -> None:
    """Detach the mount at `path`, with all below it."""
    _check(_libc.umount2(path.encode(), MNT_DETACH), f"umount {path}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of this mount namespace and move the old root to `old`."""
    _check(_libc.syscall(_SYS_PIVOT_ROOT, new.encode(), old.encode()), "pivot_root")


@contextmanager
def fixed_addresses() -> Iterator[None]:
    """What this thread starts in here has the same addresses in every run, as have its descendants.

    Before Python 3.12 the order of a set that holds None hangs on an address, and with it names and order of
    tests: one patch would get two verdicts. Where the kernel refuses, addresses stay random.
    """
    before = _libc.personality(_PERSONALITY_ASK)
    _libc.personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        _libc.personality(before)


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that they can be reaped here."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """Name this process in process lists (15 bytes are kept)."""
    buffer = ctypes.create_string_buffer(name.encode())
    _check(_libc.prctl(_PR_SET_NAME, buffer, 0, 0, 0), "prctl")


def set_dumpable(allowed: bool) -> None:
    """Whether processes of the same user may trace this one or read its memory and descriptors."""
    _prctl(_PR_SET_DUMPABLE, int(allowed))


def keep_capabilities() -> None:
    """Keep the permitted capabilities over the next change of user."""
    _prctl(_PR_SET_KEEPCAPS, 1)


def no_new_privileges() -> None:
    """From here on no exec can gain anything."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def filter_calls(program: bytes) -> None:
    """Put this process under a seccomp filter in classic BPF, for good."""
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    _check(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), described, 0, 0), "seccomp")


def drop_bounding_set() -> None:
    """Empty the bounding and ambient sets: no descendant can hold a capability again."""
    for capability in range(_LAST_CAP + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last one this kernel knows
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def set_capabilities(mask: int) -> None:
    """Hold exactly the capabilities in `mask` (bit n is capability n), none inheritable."""
    header = struct.pack("=Ii", _CAP_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    _check(_libc.capset(header, data), "capset")


def loopback_up() -> None:
    """Bring up `lo` of this network namespace: servers under test listen there, nothing leaves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, _LOOPBACK_UP)


def leave_keyring() -> None:
    """Swap the kernel keyring inherited from the host for an empty one."""
    _check(_libc.syscall(_SYS_KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING, None, 0, 0, 0), "keyctl")


def take_fd(pidfd: int, fd: int) -> int:
    """Duplicate descriptor `fd` of another process: the same open file, the same offset."""
    return _check(_libc.syscall(_SYS_PIDFD_GETFD, pidfd, fd, 0), "pidfd_getfd")


def _set_attributes(mount_fd: int, attributes: bytes) -> None:
    """mount_setattr(2) with a `struct mount_attr`."""
    empty, size = ctypes.c_uint(_AT_EMPTY_PATH), ctypes.c_size_t(len(attributes))
    result = _libc.syscall(_SYS_MOUNT_SETATTR, ctypes.c_int(mount_fd), b"", empty, attributes, size)
    _check(result, "mount_setattr")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")
