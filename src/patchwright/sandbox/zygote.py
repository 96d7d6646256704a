"""The fork server of namespace boxes: one clean process per backend, forked once per box.

Standard library only. It makes the template root file system its own root, so that a box is one fork,
fresh namespaces, and a few mounts. Started by `namespace.py`, after `warm.preload`; it ends when its
client closes the control socket or dies. A message on that socket is one byte and the box's socket, and
for a fork the files of the box it comes from.
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
from dataclasses import dataclass
from typing import Any

from patchwright.sandbox import archive, footprint, imageroot, mounts, privileges, rootfs, syscalls, wire
from patchwright.sandbox.cgroups import Groups
from patchwright.sandbox.imageroot import ImageError, ImageRoot
from patchwright.sandbox.privileges import Identity
from patchwright.sandbox.resident import Loaded, move
from patchwright.sandbox.runner import Runner
from patchwright.sandbox.warm import Warm

_NICE = 10
"""Boxes yield to the engine, the trainer and the driver, for which every box waits."""


def main(control_fd: int, settings: str, warm: Warm | None) -> None:
    """Prepare the template, tell the client, then fork a box for every socket that arrives."""
    control = socket.socket(fileno=control_fd)
    options: dict[str, Any] = json.loads(settings)
    prefixes: list[str] = options["prefixes"]
    groups = Groups.find()  # while the host's file system is in sight
    try:
        identity, host = _prepare(prefixes, warm, options["mounts"])
    except OSError as error:
        control.sendall(wire.pack({"error": str(error), "denied": error.errno == errno.EPERM}))
        return
    try:
        loaded = options["resident"] and Loaded(**options["resident"])
    except BaseException as error:
        control.sendall(wire.pack({"broken": f"{type(error).__name__}: {error}"[:2000]}))
        return
    control.sendall(wire.pack({"ready": True, "controllers": groups.controllers}))
    gaps = footprint.settle()
    gc.collect()
    gc.freeze()  # a collection in a fork leaves shared pages shared
    _serve(control, _Order(identity, prefixes, groups, host), warm, loaded)
    del gaps
    groups.sweep()
    os._exit(0)


def _prepare(prefixes: list[str], warm: Warm | None, seen: dict[str, str]) -> tuple[Identity, int]:
    os.umask(0o022)
    os.nice(_NICE)
    syscalls.set_name("patchwright-box")
    identity = privileges.enter_mount_namespace()
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_SLAVE)  # what is mounted later is seen
    host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    clones = mounts.clone(seen, host)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    rootfs.build_template(prefixes, warm.programs() if warm else {})
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    mounts.attach(clones, root)
    os.close(root)
    move(seen)
    sys.path[:] = [path for path in sys.path if path.endswith(".zip") or os.path.isdir(path)]  # noqa: PTH112
    syscalls.become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # boxes are reaped by the kernel
    return identity, host


@dataclass
class _Order:
    """What all boxes of the fork server are made from, and what one of them is made from besides."""

    identity: Identity
    prefixes: list[str]
    groups: Groups
    host: int
    """A mount namespace in which the host's files are, for boxes that are made from folders of it."""
    number: int = 0
    source: int | None = None
    """The files of the box this one is forked from, if it is."""

    @property
    def user(self) -> int:
        """User and group id of the box, as seen from outside."""
        return self.identity.user(self.number)


def _serve(control: socket.socket, order: _Order, warm: Warm | None, loaded: Loaded | None) -> None:
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            return
        for fd in fds:  # they arrive inheritable, and commands of the box must not speak in its name
            os.set_inheritable(fd, False)
        box, order.source = socket.socket(fileno=fds[0]), fds[1] if len(fds) > 1 else None
        order.number += 1
        try:
            if order.identity.root:  # the child is PID 1 at once; an ordinary user may not come back so
                syscalls.setns(own, syscalls.CLONE_NEWPID)
                syscalls.unshare(syscalls.CLONE_NEWPID)
            if footprint.fork() == 0:
                control.close()
                os.close(own)
                _box(box, order, warm, loaded)
        except OSError as error:
            _refuse(box, f"cannot start a box: {error}")
        box.close()
        if order.source is not None:
            os.close(order.source)


def _box(box: socket.socket, order: _Order, warm: Warm | None, loaded: Loaded | None) -> None:
    """The whole life of PID 1 of a box. Never returns."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _silence()
        if os.getpid() != 1:
            syscalls.unshare(syscalls.CLONE_NEWPID)
            if footprint.fork():
                return
        spec, data = wire.receive(box)
        groups = order.groups.enter(order.number, spec["memory_mb"] + spec["disk_mb"], spec["processes"])
        files = _isolate(spec, order)
        if data:
            archive.unpack(data, spec["workdir"])
        runner = Runner(box, spec["workdir"], spec["env"], None if spec["lowers"] else warm, loaded)
        _announce(box, groups, files)
        runner.run()
    except EOFError:
        pass  # the client changed its mind
    except ImageError as error:
        _refuse(box, str(error), mistake=True)
    except (OSError, archive.ArchiveError) as error:
        _refuse(box, str(error))
    except BaseException:
        _refuse(box, "the box's runner failed: " + traceback.format_exc())
    finally:
        os._exit(0)


def _isolate(spec: wire.Header, order: _Order) -> int:
    """Leave the host behind; the descriptor of the box's files."""
    clones = mounts.clone(spec["mounts"], order.host)
    others = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
    if spec["lowers"]:
        syscalls.setns(order.host, syscalls.CLONE_NEWNS)
    os.close(order.host)
    syscalls.unshare(syscalls.CLONE_NEWNS | others)
    files = _furnish(spec, order, clones)
    if order.source is not None:
        os.close(order.source)
    socket.sethostname("box")
    syscalls.loopback_up()
    os.chdir("/")
    inside = imageroot.USER if spec["lowers"] else rootfs.USER
    privileges.drop(order.user, order.identity.root, inside)
    # After the user namespace is made: a limit it inherits would count all boxes of this user together.
    privileges.limit(spec["memory_mb"], spec["processes"], spec["disk_mb"])
    if spec["lowers"]:
        imageroot.settle(spec["workdir"], rootfs.GITCONFIG)
    return files


def _furnish(spec: wire.Header, order: _Order, clones: mounts.Clones) -> int:
    workdir, disk_mb = spec["workdir"], spec["disk_mb"]
    if spec["lowers"]:
        syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        return ImageRoot(spec["lowers"], disk_mb, order.user, order.identity).furnish(order.source, clones)
    files = rootfs.furnish(workdir, disk_mb, order.prefixes, clones)
    rootfs.own(workdir, order.user)
    if order.source is not None:
        rootfs.fill(files, order.source, order.user)
    return files


def _silence() -> None:
    """Nothing of the host's terminal reaches the box."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _announce(box: socket.socket, groups: list[str], files: int) -> None:
    """Tell the client that the box is open, and hand it a handle that kills it, and one of its files."""
    pidfd = os.pidfd_open(os.getpid())
    socket.send_fds(box, [wire.pack({"ready": True, "groups": groups})], [pidfd, files])
    os.close(pidfd)
    os.close(files)


def _refuse(box: socket.socket, message: str, *, mistake: bool = False) -> None:
    """Tell the client why there is no box; `mistake`: the user can mend it."""
    try:
        box.sendall(wire.pack({"error": message, "mistake": mistake}))
    except OSError:
        pass  # the client is gone
