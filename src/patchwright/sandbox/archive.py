"""Unpacks the tar a box starts from. Standard library only; used inside the box and by `process.py`.

In `unpack` nothing lands outside the folder: absolute names, `..`, devices, and members behind a symbolic
link are refused. Symbolic links are kept wherever they point (repositories have them). Executable bits,
times and hard links are kept; owners are not. `pack` and `restore` copy a Docker box's files.
"""

# ruff: noqa: PTH101, PTH102, PTH108, PTH112, PTH114, PTH211
# Strings are enough here, and a box starts sooner without path objects

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Callable, Iterator

_DEPTH = 250
"""Most folders below each other in what is packed."""


class ArchiveError(Exception):
    """The tar is damaged, or holds a member that is refused."""


def unpack(data: bytes, into: str) -> None:
    """Unpack the uncompressed tar `data` into the folder `into`. Raises ArchiveError or OSError."""
    made: set[str] = {into}
    folders: list[tuple[str, tarfile.TarInfo]] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                target = posixpath.join(into, _inside(member.name, member.name))
                _extract(tar, member, into, target, made)
                if member.isdir():
                    folders.append((target, member))
    except tarfile.TarError as error:
        raise ArchiveError(f"archive is damaged: {error}") from error
    for target, member in folders:  # last: a read-only folder must first be filled
        os.chmod(target, (member.mode & 0o777) | 0o700)


def pack(folders: list[str], *, mounts: bool = True) -> bytes:
    """A tar of these folders and all below them, for `restore`. Runs in the box whose folders they are.

    Files that vanish meanwhile, and sockets, are left out; without `mounts` also what is mounted below the
    folders. Raises OSError or MemoryError.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder in folders:
            if not any(folder.startswith(f"{other}/") for other in folders):
                _pack(tar, folder, 0, None if mounts else set(folders))
    return buffer.getvalue()


def is_mounted(path: str) -> bool:
    """Whether another file system begins in the folder `path`. Of files an overlay does not tell."""
    return os.path.isdir(path) and os.path.ismount(path)


def _pack(tar: tarfile.TarFile, path: str, depth: int, asked: set[str] | None) -> None:
    if depth > _DEPTH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    with contextlib.suppress(FileNotFoundError):
        member = tar.gettarinfo(path)
        if member is None:
            return  # a socket
        if member.isreg():
            with _readable(path, member.mode), open(path, "rb", opener=_plain) as file:
                content = file.read()
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            return
        tar.addfile(member)
        if member.isdir():
            with _readable(path, member.mode):
                for name in os.listdir(path):  # noqa: PTH208
                    below = posixpath.join(path, name)
                    if asked is None or below in asked or not is_mounted(below):
                        _pack(tar, below, depth + 1, asked)


@contextlib.contextmanager
def _readable(path: str, mode: int) -> Iterator[None]:
    """Let this user, who owns it, read what is at `path`, for a moment."""
    needed = mode | (stat.S_IRUSR | stat.S_IXUSR if os.path.isdir(path) else stat.S_IRUSR)
    if needed == mode:
        yield
        return
    os.chmod(path, needed)
    try:
        yield
    finally:
        os.chmod(path, mode)


def _plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def restore(data: bytes) -> None:
    """Put what `pack` took into the same folders of a new box, exactly. Raises OSError or ArchiveError.

    The content is of a box, and so is the place: it can reach nothing here that it could not reach there.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            if hasattr(tarfile, "fully_trusted_filter"):  # else nothing is filtered
                tar.extraction_filter = tarfile.fully_trusted_filter
            tar.extractall("/")
            for member in tar:
                if member.issym():  # whose times tarfile leaves
                    with contextlib.suppress(OSError):
                        times = (member.mtime, member.mtime)
                        os.utime(f"/{member.name}", times, follow_symlinks=False)
    except tarfile.TarError as error:
        raise ArchiveError(f"archive is damaged: {error}") from error


def _inside(path: str, name: str) -> str:
    clean = posixpath.normpath(path)
    if clean.startswith("/") or clean == ".." or clean.startswith("../"):
        raise ArchiveError(f"archive member {name!r} points outside of the working directory")
    return clean


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, into: str, target: str, made: set[str]) -> None:
    _make_folder(target if member.isdir() else posixpath.dirname(target), into, made)
    if member.isdir():
        return
    if member.isreg():
        _write(tar, member, target)
    elif member.issym():
        os.symlink(member.linkname, target)
    elif member.islnk():
        source = posixpath.join(into, _inside(member.linkname, member.name))
        _make_folder(posixpath.dirname(source), into, made)
        os.link(source, target, follow_symlinks=False)
    else:
        raise ArchiveError(f"archive member {member.name!r} is neither a file, a folder nor a link")


def _make_folder(path: str, into: str, made: set[str]) -> None:
    """Create `path` below `into`, refusing to walk through a symbolic link."""
    if path in made:
        return
    _make_folder(posixpath.dirname(path), into, made)
    try:
        os.mkdir(path)
    except FileExistsError:
        if os.path.islink(path) or not os.path.isdir(path):
            raise ArchiveError(f"archive puts a file into {path!r}, which is no folder") from None
    made.add(path)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: str) -> None:
    source = tar.extractfile(member)
    content = source.read() if source is not None else b""
    if os.path.lexists(target):
        os.unlink(target)
    with open(target, "xb", opener=_opener(member.mode & 0o777 | 0o600)) as file:
        file.write(content)
    os.utime(target, (member.mtime, member.mtime))


def _opener(mode: int) -> Callable[[str, int], int]:
    return lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, mode)
