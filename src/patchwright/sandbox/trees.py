"""Copies a box's folders into another box's. Standard library only; runs in the fork server's children.

What is copied is hostile and may change meanwhile: every step goes from a folder's descriptor, follows no
link and reads only regular files, so nothing but the folder itself is ever read.
"""

# ruff: noqa: PTH118
# Descriptors of folders are what makes this safe, and pathlib has none

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, field

_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEPTH = 250
"""Folders below each other; two descriptors are open for each."""
_CHUNK = 1 << 20
_OVERLAY = ("trusted.overlay.opaque", "user.overlay.opaque")
"""By these a folder of an overlay's upper layer hides what the layers below have at its place."""


@dataclass
class TreeCopy:
    """One copy of the folder open as `source` into the folder open as `target`, which stays.

    `owner` gets what the source's ordinary users own; None leaves all to this process's user.
    Example: `TreeCopy(source, target, owner=None).run()`
    """

    source: int
    target: int
    owner: int | None
    overlay: bool = False
    """Whether the folders are upper layers of an overlay: what marks a removed file is kept."""
    _links: dict[int, str] = field(default_factory=dict)
    """Inode -> where in the target the first name of a file with several names is."""

    def run(self) -> None:
        """Copy. Raises OSError: no room, no right to read, nested too deeply."""
        self._folder(self.source, self.target, "", 0)

    def _folder(self, source: int, target: int, path: str, depth: int) -> None:
        if depth > _DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"folders are nested more than {_DEPTH} deep")
        with os.scandir(source) as entries:
            for entry in entries:
                try:
                    self._entry(entry, source, target, path, depth)
                except FileNotFoundError:
                    pass  # removed meanwhile
                except FileExistsError:  # a folder that every new box has
                    os.rmdir(entry.name, dir_fd=target)
                    self._entry(entry, source, target, path, depth)
        if self.overlay:
            self._copy_marks(source, target)
        self._dress(target, os.fstat(source))

    def _entry(self, entry: os.DirEntry[str], source: int, target: int, path: str, depth: int) -> None:
        name = entry.name
        if entry.is_file(follow_symlinks=False):
            self._file(name, source, target, os.path.join(path, name))
        elif entry.is_dir(follow_symlinks=False):
            self._subfolder(name, source, target, os.path.join(path, name), depth)
        elif entry.is_symlink():
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            self._dress_name(name, source, target)
        else:
            self._special(name, source, target)

    def _subfolder(self, name: str, source: int, target: int, path: str, depth: int) -> None:
        inner = os.open(name, _FOLDER, dir_fd=source)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=target)
            copy = os.open(name, _FOLDER, dir_fd=target)
            try:
                self._folder(inner, copy, path, depth + 1)
            finally:
                os.close(copy)
        finally:
            os.close(inner)

    def _file(self, name: str, source: int, target: int, path: str) -> None:
        original = os.open(name, _LOOK, dir_fd=source)
        try:
            status = os.fstat(original)
            if not stat.S_ISREG(status.st_mode):
                return  # replaced meanwhile
            if status.st_nlink > 1 and (first := self._links.setdefault(status.st_ino, path)) != path:
                os.link(first, name, src_dir_fd=self.target, dst_dir_fd=target, follow_symlinks=False)
                return
            copy = os.open(name, _MAKE, 0o600, dir_fd=target)
            try:
                _copy_content(original, copy, status)
                self._dress(copy, status)
            finally:
                os.close(copy)
        finally:
            os.close(original)

    def _special(self, name: str, source: int, target: int) -> None:
        """Pipes are kept, and an overlay's marks of removed files; sockets are dead without their server."""
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISFIFO(status.st_mode):
            os.mkfifo(name, dir_fd=target)
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)
            self._dress_name(name, source, target)
        elif self.overlay and stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=target)

    def _dress(self, copy: int, status: os.stat_result) -> None:
        if self.owner is not None and status.st_uid:
            os.fchown(copy, self.owner, self.owner)
        os.fchmod(copy, stat.S_IMODE(status.st_mode))
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _dress_name(self, name: str, source: int, target: int) -> None:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if self.owner is not None and status.st_uid:
            os.chown(name, self.owner, self.owner, dir_fd=target, follow_symlinks=False)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)

    def _copy_marks(self, source: int, target: int) -> None:
        for name in _OVERLAY:
            try:
                os.setxattr(target, name, os.getxattr(source, name))
            except OSError:
                pass  # not marked


def _copy_content(original: int, copy: int, status: os.stat_result) -> None:
    size = status.st_size
    if status.st_blocks * 512 < size:
        _copy_sparse(original, copy, size)
    elif size <= _CHUNK:
        _write_all(copy, os.read(original, _CHUNK))
    else:
        _copy_range(original, copy, 0, size)


def _copy_sparse(original: int, copy: int, size: int) -> None:
    """Holes stay holes: a file may be far larger than the disk."""
    os.ftruncate(copy, size)
    position = 0
    while position < size:
        try:
            start = os.lseek(original, position, os.SEEK_DATA)
            position = os.lseek(original, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but hole from here on
                return
            raise
        _copy_range(original, copy, start, position)


def _copy_range(original: int, copy: int, start: int, end: int) -> None:
    os.lseek(copy, start, os.SEEK_SET)
    while start < end:
        count = os.sendfile(copy, original, start, min(end - start, 64 * _CHUNK))
        if count == 0:
            return  # shortened meanwhile
        start += count


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
