"""The file system of a namespace box that is made from an image: unpacked folders, and a layer of its own.

Standard library only. The folders are the lower layers of an overlay and are never written to; what the box
writes goes to an upper layer in its own tmpfs. The box's user is `root` there, without any of root's powers,
and owns what the unpacked files' owner owns. Nothing in the image is trusted: its links are not followed.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH116
# Mount points are strings, and a box starts sooner without path objects

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from patchwright.sandbox import mounts, syscalls
from patchwright.sandbox.privileges import OTHERS, Identity
from patchwright.sandbox.rootfs import DEVICES
from patchwright.sandbox.trees import TreeCopy

HOME = "/root"
USER = 0
"""User and group id inside the box."""
_STAGE = "/tmp"
"""Where a box's tmpfs is mounted while its root is put together; every machine has it."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IDS = 1 << 16
_MASKS = ("/etc/hosts", "127.0.0.1 localhost box\n::1 localhost\n"), ("/etc/resolv.conf", "")


class ImageError(ValueError):
    """Boxes of this image cannot be made here; the message says why, and what can be done."""


@dataclass(frozen=True)
class ImageRoot:
    """What the root of one box is made from.

    Example: `ImageRoot(lowers=["/images/b", "/images/a"], disk_mb=64, user=1 << 30, identity=identity)`
    """

    lowers: list[str]
    """Unpacked folders, the topmost first."""
    disk_mb: int
    user: int
    identity: Identity

    def furnish(self, source: int | None, clones: mounts.Clones) -> int:
        """Make it the root of this process's mount namespace, which must be a fresh copy of the host's.

        `source` is the descriptor of the files of the box to copy, if one is; `clones` are the folders of the
        machine that it sees besides. Returns the descriptor of its own files.
        Raises ImageError, or OSError.
        """
        layers = [self._layer(path) for path in self.lowers]
        options = f"mode=0755,size={self.disk_mb}m,nr_inodes={self.disk_mb * 256}"
        syscalls.mount("box", _STAGE, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
        files = os.open(_STAGE, _FOLDER)
        for name in ("upper", "work", "root", "layers", "dev", "dev/shm"):
            os.mkdir(name, 0o755, dir_fd=files)
        os.chmod(f"{_STAGE}/dev/shm", 0o1777)
        os.chown(f"{_STAGE}/upper", self.user, self.user)
        if source is not None:
            self._fill(files, source)
        self._overlay(layers)
        _devices()
        self._enter(clones)
        return files

    def _layer(self, path: str) -> int:
        """A descriptor of a folder; as root, of it with its owner replaced by the user of the box."""
        try:
            if not self.identity.root:
                return os.open(path, _FOLDER)
            owner = os.stat(path)
            layer = syscalls.clone_mount(path)
            ids = _id_map(owner.st_uid, owner.st_gid, self.user)
            syscalls.map_mount(layer, ids)
            os.close(ids)
            return layer
        except OSError as error:
            raise ImageError(
                f"image folder {path!r} cannot be used by namespace boxes ({error}): this needs Linux 5.19 "
                "and a file system with id-mapped mounts (ext4, xfs, btrfs); use `--sandbox docker`"
            ) from error

    def _overlay(self, layers: list[int]) -> None:
        lowers = [f"/proc/self/fd/{layer}" for layer in layers]
        if self.identity.root:
            for number, layer in enumerate(layers):
                lowers[number] = f"{_STAGE}/layers/{number}"
                os.mkdir(lowers[number])
                syscalls.attach_mount(layer, lowers[number])
        options = f"lowerdir={':'.join(lowers)},upperdir={_STAGE}/upper,workdir={_STAGE}/work"
        options += "" if self.identity.root else ",userxattr"
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        try:
            syscalls.mount("box", f"{_STAGE}/root", "overlay", flags, options)
        except OSError as error:
            raise ImageError(
                f"this kernel does not let this user stack image folders ({error}); run as root, use "
                "Linux 5.11 or newer, or use `--sandbox docker`"
            ) from error
        for layer in layers:
            os.close(layer)

    def _enter(self, clones: mounts.Clones) -> None:
        """Mount what belongs to the kernel, and leave the host's files for good."""
        root = os.open(f"{_STAGE}/root", _FOLDER)
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        points = {name: self._point(root, name) for name in ("proc", "dev")}
        syscalls.bind(f"{_STAGE}/dev", f"/proc/self/fd/{points['dev']}")
        syscalls.mount("proc", f"/proc/self/fd/{points['proc']}", "proc", flags)
        try:
            mounts.attach(clones, root)
        except NotADirectoryError as error:
            raise ImageError(f"/opt of the image is no folder ({error}); unpack the image anew") from error
        os.chdir(f"{_STAGE}/root")
        syscalls.pivot_root(".", ".")
        syscalls.unmount(".")
        os.chdir("/")
        for fd in (root, *points.values()):
            os.close(fd)

    def _point(self, root: int, name: str) -> int:
        """A descriptor of a folder at the top of the image, made if it is missing."""
        try:
            os.mkdir(name, 0o755, dir_fd=root)
            os.chown(name, self.user, self.user, dir_fd=root)
        except FileExistsError:
            pass
        try:
            return os.open(name, _FOLDER, dir_fd=root)
        except OSError as error:
            raise ImageError(f"/{name} of the image is no folder ({error}); unpack the image anew") from error

    def _fill(self, files: int, source: int) -> None:
        for name, overlay in (("upper", True), ("dev/shm", False)):
            original, copy = (os.open(name, _FOLDER, dir_fd=place) for place in (source, files))
            TreeCopy(original, copy, self.user, overlay=overlay).run()
            os.close(original)
            os.close(copy)


def settle(workdir: str, gitconfig: str) -> None:
    """As the box's user, inside: make what commands expect and an image may lack.

    Raises ImageError or OSError.
    """
    if not os.access("/bin/bash", os.X_OK):
        raise ImageError("the image has no /bin/bash, which runs every command; add it to the image")
    os.makedirs(workdir, exist_ok=True)
    os.makedirs(HOME, exist_ok=True)
    for path, text in (*_MASKS, (f"{HOME}/.gitconfig", gitconfig)):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH120
            with open(path, "x", encoding="utf-8") as file:  # noqa: PTH123
                file.write(text)
        except FileExistsError:
            pass  # the image has its own


def _devices() -> None:
    folder = f"{_STAGE}/dev"
    for name in DEVICES:
        os.close(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        syscalls.bind(f"/dev/{name}", f"{folder}/{name}")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{folder}/{name}")  # noqa: PTH211
    os.symlink("pts/ptmx", f"{folder}/ptmx")  # noqa: PTH211
    os.mkdir(f"{folder}/pts")
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("devpts", f"{folder}/pts", "devpts", flags, "newinstance,ptmxmode=0666")


def _id_map(owner: int, group: int, user: int) -> int:
    """A user namespace, as a descriptor, that says of files: `owner` is `user`, and all others are nobody.

    A child of ours lives in it for as long as it takes to write that down.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _live_in_a_namespace(theirs)
    theirs.close()
    with ours:
        _, (itself, namespace), _, _ = socket.recv_fds(ours, 1, 2)
        for name, one in (("uid_map", owner), ("gid_map", group)):
            fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=itself)
            os.write(fd, _lines(one, user))
            os.close(fd)
    os.waitpid(child, 0)
    os.close(itself)
    return namespace


def _live_in_a_namespace(parent: socket.socket) -> None:
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        itself = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
        socket.send_fds(parent, [b"n"], [itself, os.open("/proc/self/ns/user", os.O_RDONLY)])
        parent.recv(1)  # until the parent is done
    finally:
        os._exit(0)


def _lines(owner: int, user: int) -> bytes:
    """`owner` is `user`; the ids beside it are some that nobody has."""
    ranges = [
        (owner, user, 1),
        (0, OTHERS, min(owner, _IDS)),
        (owner + 1, OTHERS + owner + 1, _IDS - owner - 1),
    ]
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in ranges if count > 0).encode()
