"""Unpacks the tar of a layer into a folder that an overlay takes as a lower one.

A layer is hostile: nothing is written outside of the folder, whatever its names and links say; devices and
sockets are left out, set-id bits dropped, sizes and counts bounded. Boxes have one user, so every file
belongs to the user who unpacks. Deletions ("whiteouts", OCI image specification, layer.md) become what an
overlay knows: a character device 0/0, and an attribute on a folder that hides what is below it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from patchwright.errors import ImageError

__all__ = ["BLOCK", "OPAQUE", "OPAQUE_NAME", "WHITEOUT", "Unpacked", "is_whiteout", "unpack"]

BLOCK = 4096
"""Bytes a file's size is rounded up to, as disks do."""
WHITEOUT, OPAQUE_NAME = ".wh.", ".wh..wh..opq"
OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
"""The first is read by mounts of root, the second by those in user namespaces (`userxattr`)."""
_MOST_ENTRIES = 5_000_000
_HOPS = 40
_CHUNK = 1 << 20
_LONG_HEADERS = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)
_LONGEST_HEADER = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

Unpacked = tuple[str, int]
"""The digest of the tar, and the bytes its files take."""


def unpack(blob: Path, into: Path, *, limit: int, stopped: Callable[[], bool]) -> Unpacked:
    """Unpack a tar, plain or compressed by gzip or zstd, into the empty folder `into`.

    `limit` bounds the bytes written; `stopped` is asked at each entry whether to give up. Raises ImageError,
    and OSError when the disk refuses.
    """
    try:
        with _opened(blob) as plain:
            counted = _Hashed(plain)
            with tarfile.open(fileobj=cast(IO[bytes], counted), mode="r|", tarinfo=_Member) as tar:
                size = _Layer(into, limit).add_all(tar, stopped)
            counted.drain(limit)
            return f"sha256:{counted.hasher.hexdigest()}", size
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError) as error:
        raise ImageError(f"a layer is not a tar file: {error}") from None


def is_whiteout(about: os.stat_result) -> bool:
    """Whether a file of a lower folder says that the name is deleted."""
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == 0


def _opened(blob: Path) -> IO[bytes]:
    with blob.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(_GZIP):
        return cast(IO[bytes], gzip.open(blob))
    if magic == _ZSTD:
        import pyarrow  # its import takes longer than most layers

        return cast(IO[bytes], pyarrow.input_stream(str(blob), compression="zstd"))
    return blob.open("rb")


class _Hashed:
    """A stream that hashes what is read from it."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.hasher = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self.hasher.update(data)
        return data

    def drain(self, limit: int) -> None:
        """Read what follows the end of the tar: it belongs to the digest."""
        left = limit
        while data := self.read(_CHUNK):
            left -= len(data)
            if left < 0:
                raise ImageError("a layer goes on and on after its end")


class _Member(tarfile.TarInfo):
    """An entry whose sizes are believable: tarfile reads long headers whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Called by tarfile for every header."""
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _LONG_HEADERS and member.size > _LONGEST_HEADER):
            raise ImageError(f"a layer has an entry of {member.size} bytes where none can be")
        return member


class _Layer:
    """The folder being filled."""

    def __init__(self, root: Path, limit: int) -> None:
        self._root = root
        self._left = limit
        self._size = 0
        self._folders: dict[Path, tarfile.TarInfo] = {}
        self._parents: dict[tuple[str, ...], Path] = {}

    def add_all(self, tar: tarfile.TarFile, stopped: Callable[[], bool]) -> int:
        for count, member in enumerate(tar):
            if stopped():
                raise ImageError("unpacking was stopped")
            if count >= _MOST_ENTRIES:
                raise ImageError(f"a layer has more than {_MOST_ENTRIES} entries")
            tar.members = []  # type: ignore[attr-defined]  # a stream is read once; what it remembers would only grow
            self._add(tar, member)
        for path, member in self._folders.items():  # last: unpacking into a folder changes its time
            _finish(path, member, stat.S_IRWXU)
        return self._size

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            self._folders[self._root] = member
            return
        self._spend(member.size if member.isreg() else 0)
        path = self._parent(parts[:-1]) / parts[-1]
        if parts[-1].startswith(WHITEOUT):
            self._delete(path)
        elif member.isdir():
            self._folder(path, member)
        elif member.isreg():
            self._clear(path)
            _write(tar, member, path)
        elif member.issym():
            self._clear(path)
            path.symlink_to(member.linkname)
        elif member.islnk():
            self._link(path, member)

    def _spend(self, size: int) -> None:
        size = -(-size // BLOCK) * BLOCK or BLOCK
        self._size += size
        self._left -= size
        if self._left < 0:
            raise ImageError("a layer is larger than the store's budget allows; raise --budget")

    def _folder(self, path: Path, member: tarfile.TarInfo) -> None:
        if not _is_folder(path):
            self._clear(path)
            path.mkdir(mode=0o700)
        self._folders[path] = member

    def _delete(self, path: Path) -> None:
        """Write the whiteout that `path`'s name stands for."""
        if path.name == OPAQUE_NAME:
            _hide_below(path.parent)
            return
        name = path.name.removeprefix(WHITEOUT)
        if not name or name in (".", "..") or name.startswith(WHITEOUT):  # the last: notes of old aufs
            return
        path = path.with_name(name)
        self._clear(path)
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))  # of all devices, anyone may make this one

    def _link(self, path: Path, member: tarfile.TarInfo) -> None:
        parts = _parts(member.linkname)
        target = self._parent(parts[:-1]) / parts[-1] if parts else self._root
        if target == path:
            return
        if not os.path.lexists(target) or _is_folder(target):
            raise ImageError(f"a layer links {member.name[:200]!r} to what is no file of it")
        self._clear(path)
        os.link(target, path, follow_symlinks=False)

    def _parent(self, parts: list[str]) -> Path:
        """The folder `parts` in the layer, made if missing."""
        key = tuple(parts)
        if key not in self._parents:
            self._parents[key] = self._walk(parts)
        return self._parents[key]

    def _clear(self, path: Path) -> None:
        """Make room: an entry replaces an earlier one of its name, and all that was known below it."""
        if not path.is_symlink() and not path.is_dir():
            path.unlink(missing_ok=True)
            return
        self._parents.clear()
        if path.is_symlink():
            path.unlink()
        else:
            self._folders = {one: m for one, m in self._folders.items() if not one.is_relative_to(path)}
            shutil.rmtree(path)

    def _walk(self, parts: list[str]) -> Path:
        """Links on the way are followed inside of the layer, as a chroot would."""
        path, todo, hops = self._root, parts[::-1], 0
        while todo:
            part = todo.pop()
            if part == "..":
                path = path if path == self._root else path.parent
                continue
            step = path / part
            if step.is_symlink():
                hops += 1
                if hops > _HOPS:
                    raise ImageError("a layer has links that lead in circles")
                target = os.readlink(step)  # noqa: PTH115 - as bytes of the link, not a normalised path
                path = self._root if target.startswith("/") else path
                todo += [one for one in reversed(target.split("/")) if one not in ("", ".")]
                continue
            if not _is_folder(step):
                self._clear(step)
                step.mkdir(mode=0o755)
            path = step
        return path


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise ImageError(f"a layer has an entry that leads out of it: {name[:200]!r}")
    return parts


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    if source is None:
        raise ImageError(f"a layer has no content for {member.name[:200]!r}")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)
    _finish(path, member, stat.S_IRUSR)


def _finish(path: Path, member: tarfile.TarInfo, least: int) -> None:
    """Mode and time; what the owner needs to read, and to remove it again, is always granted."""
    path.chmod((member.mode & 0o1777) | least)
    seconds = min(max(float(member.mtime), 0.0), 2.0**33)
    os.utime(path, (seconds, seconds))


def _hide_below(folder: Path) -> None:
    done = False
    for name in OPAQUE:
        with contextlib.suppress(PermissionError):
            os.setxattr(folder, name, b"y")
            done = True
    if not done:
        raise ImageError(f"the disk of {folder} keeps no extended attributes; put the store on another one")
