"""The fork server of namespace boxes: one clean process per backend, forked once per box.

Standard library only. It makes the template root file system its own root, so that a box is one fork,
fresh namespaces, and a few mounts. Started by `namespace.py`, after `warm.preload`; it ends when its
client closes the control socket or dies. A message on that socket is one byte and the box's socket.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any

from patchwright.sandbox import archive, privileges, rootfs, syscalls, wire
from patchwright.sandbox.privileges import Identity
from patchwright.sandbox.runner import Runner
from patchwright.sandbox.warm import Warm

_NICE = 10
"""Boxes yield to the engine, the trainer and the driver, for which every box waits."""


def main(control_fd: int, settings: str, warm: Warm | None) -> None:
    """Prepare the template, tell the client, then fork a box for every socket that arrives."""
    control = socket.socket(fileno=control_fd)
    options: dict[str, Any] = json.loads(settings)
    prefixes: list[str] = options["prefixes"]
    try:
        identity = _prepare(prefixes, warm)
    except OSError as error:
        control.sendall(wire.pack({"error": str(error), "denied": error.errno == errno.EPERM}))
        return
    control.sendall(wire.pack({"ready": True}))
    _serve(control, identity, prefixes, warm)


def _prepare(prefixes: list[str], warm: Warm | None) -> Identity:
    os.umask(0o022)
    os.nice(_NICE)
    syscalls.set_name("patchwright-box")
    identity = privileges.enter_mount_namespace()
    rootfs.build_template(prefixes, warm.programs() if warm else {})
    sys.path[:] = [path for path in sys.path if path.endswith(".zip") or os.path.isdir(path)]  # noqa: PTH112
    syscalls.become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # boxes are reaped by the kernel
    gc.collect()
    gc.freeze()  # a collection in a fork leaves shared pages shared
    return identity


def _serve(control: socket.socket, identity: Identity, prefixes: list[str], warm: Warm | None) -> None:
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    number = 0
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        box = socket.socket(fileno=fds[0])
        number += 1
        try:
            if identity.root:  # the child is PID 1 at once; an ordinary user may not come back like this
                syscalls.setns(own, syscalls.CLONE_NEWPID)
                syscalls.unshare(syscalls.CLONE_NEWPID)
            if os.fork() == 0:
                control.close()
                os.close(own)
                _box(box, identity, identity.user(number), prefixes, warm)
        except OSError as error:
            _refuse(box, f"cannot start a box: {error}")
        box.close()


def _box(box: socket.socket, identity: Identity, user: int, prefixes: list[str], warm: Warm | None) -> None:
    """The whole life of PID 1 of a box. Never returns."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _silence()
        if os.getpid() != 1:
            syscalls.unshare(syscalls.CLONE_NEWPID)
            if os.fork():
                return
        spec, data = wire.receive(box)
        _isolate(spec, identity, user, prefixes)
        if data:
            archive.unpack(data, spec["workdir"])
        runner = Runner(box, spec["workdir"], spec["env"], warm)
        _announce(box)
        runner.run()
    except EOFError:
        pass  # the client changed its mind
    except (OSError, archive.ArchiveError) as error:
        _refuse(box, str(error))
    except BaseException:
        _refuse(box, "the box's runner failed: " + traceback.format_exc())
    finally:
        os._exit(0)


def _isolate(spec: wire.Header, identity: Identity, user: int, prefixes: list[str]) -> None:
    workdir, disk_mb = spec["workdir"], spec["disk_mb"]
    syscalls.unshare(
        syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
    )
    rootfs.furnish(workdir, disk_mb, prefixes)
    rootfs.own(workdir, user)
    socket.sethostname("box")
    syscalls.loopback_up()
    os.chdir("/")
    privileges.drop(user, identity.root)
    # After the user namespace is made: a limit it inherits would count all boxes of this user together.
    privileges.limit(spec["memory_mb"], spec["processes"], disk_mb)


def _silence() -> None:
    """Nothing of the host's terminal reaches the box."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _announce(box: socket.socket) -> None:
    """Tell the client that the box is open, and hand it a handle that kills it and tells its end."""
    pidfd = os.pidfd_open(os.getpid())
    socket.send_fds(box, [wire.pack({"ready": True})], [pidfd])
    os.close(pidfd)


def _refuse(box: socket.socket, message: str) -> None:
    try:
        box.sendall(wire.pack({"error": message}))
    except OSError:
        pass  # the client is gone
