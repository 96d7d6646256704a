"""The system calls no box needs, refused. Standard library only; PID 1 of a box puts itself under it.

A box holds no capability, so most of these would fail anyway; the filter keeps their code, where kernels
have their holes, out of reach. The numbers are those of `asm/unistd.h`. Programs of another architecture
than the machine's own (32-bit ones) cannot run.
"""

from __future__ import annotations

import errno
import os
import struct

from patchwright.sandbox import syscalls

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of `linux/audit.h`."""
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # mounts
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "lookup_dcookie": (212, 18),
    # namespaces: those that take flags are below
    "setns": (308, 268),
    # the kernel itself
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142), "syslog": (103, 116),
    "acct": (163, 89), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "iopl": (172, None), "ioperm": (173, None), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "vhangup": (153, 58),
    # keys, and what goes round every other check
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}  # fmt: skip
"""Name -> its number on x86-64 and on aarch64."""
_CLONE, _UNSHARE, _SOCKET = (56, 220), (272, 97), (41, 198)
_CLONE3 = 435
_NEW_NAMESPACES = 0x7E020000
"""Every CLONE_NEW* but CLONE_NEWTIME, which shares its bit with the signal numbers of clone."""
_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink. Others are not bound to a network namespace (vsock), or only attacked."""
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data; of the first argument the low half, for both machines are little-endian."""
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def program(machine: str) -> bytes:
    """The filter for `machine` as classic BPF; empty where its call numbers are not known here."""
    if machine not in _ARCHITECTURES:
        return b""
    column = list(_ARCHITECTURES).index(machine)
    refused = sorted(numbers[column] or 0 for numbers in _REFUSED.values() if numbers[column] is not None)
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        *_unless(_ARCHITECTURES[machine], [_refuse(errno.EPERM)]),
        _step(_LOAD, _NUMBER),
        *_if(_AT_LEAST, _X32, [_refuse(errno.EPERM)]),
    ]
    for number in refused:
        steps += _if(_EQUAL, number, [_refuse(errno.EPERM)])
    steps += _if(_EQUAL, _CLONE3, [_refuse(errno.ENOSYS)])  # its flags cannot be seen; libc falls back
    namespaces = [_step(_LOAD, _ARGUMENT), *_if(_ANY_BIT, _NEW_NAMESPACES, [_refuse(errno.EPERM)])]
    for call in (_CLONE, _UNSHARE):
        steps += _if(_EQUAL, call[column], [*namespaces, _step(_RETURN, _ALLOW)])
    family = [_step(_LOAD, _ARGUMENT)]
    for known in _FAMILIES:
        family += _if(_EQUAL, known, [_step(_RETURN, _ALLOW)])
    steps += _if(_EQUAL, _SOCKET[column], [*family, _refuse(errno.EAFNOSUPPORT)])
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def apply() -> bool:
    """Put this process and all it will start under the filter, for good; whether the machine has one.

    Needs `no_new_privileges`, or the capability.
    """
    if _PROGRAM:
        try:
            syscalls.filter_calls(_PROGRAM)
            return True
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):  # a kernel without such filters
                raise
    return False


def _if(test: int, value: int, then: list[bytes]) -> list[bytes]:
    """Go through `then` when what was loaded passes the test, else past it."""
    return [struct.pack("=HBBI", test, 0, len(then), value), *then]


def _unless(value: int, then: list[bytes]) -> list[bytes]:
    return [struct.pack("=HBBI", _EQUAL, len(then), 0, value), *then]


def _step(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value)


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERROR | error)


_PROGRAM = program(os.uname().machine)
"""Made once, in the fork server or the container."""
