"""Folders between machines that share no disk: a folder is packed into Ray's object store in chunks, and
unpacked where it is wanted, once a machine.

    parcel = pack(Path("runs/a/weights/v3"), "weights")   # on one machine
    folder = cache.unpack(parcel)                         # on others: a complete folder, or none

What comes out is what went in: every file is checked against the hash it was packed with.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import ray

from patchwright.errors import EngineError
from patchwright.store.files import attributed

__all__ = ["Cache", "Parcel", "pack", "write"]

CHUNK = 32 * 2**20
"""Bytes of one object: small beside any object store, large beside the cost of an object."""
_KEPT = 2
"""Folders of a kind a machine keeps: the one in use and the one before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """One file. Example: `Packed(name="config.json", digest="9f…", chunks=(ref,))`"""

    name: str
    """Relative to the folder."""
    digest: str
    """SHA-256, hexadecimal."""
    chunks: tuple[Any, ...]
    """References to its bytes, in order. They live as long as somebody holds the parcel, and as long as the
    process that packed it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """A folder in the object store. Made by `pack`."""

    kind: str
    """Folders of a kind replace each other; of `model` there is one, which stays."""
    files: tuple[Packed, ...]

    @property
    def digest(self) -> str:
        """Names the content."""
        listed = "\n".join(f"{file.digest} {file.name}" for file in self.files)
        return hashlib.sha256(listed.encode()).hexdigest()[:24]


def pack(folder: Path, kind: str, *, without: Collection[str] = ()) -> Parcel:
    """Put a folder's files, those `without` certain suffixes, into the object store. Raises StoreError when
    one cannot be read."""
    with attributed("read the files", folder):
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in without)
        return Parcel(kind=kind, files=tuple(_packed(path, folder) for path in paths))


def _packed(path: Path, folder: Path) -> Packed:
    digest, chunks = hashlib.sha256(), []
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            digest.update(data)
            chunks.append(ray.put(data))
    name = path.relative_to(folder).as_posix()
    return Packed(name=name, digest=digest.hexdigest(), chunks=tuple(chunks))


def write(parcel: Parcel, folder: Path) -> None:
    """Write the files into `folder`, beside what is there. Raises EngineError or StoreError."""
    with attributed("write what came over Ray", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file in parcel.files:
            _write(file, folder)


def _write(file: Packed, folder: Path) -> None:
    if PurePosixPath(file.name).is_absolute() or ".." in PurePosixPath(file.name).parts:
        raise EngineError(f"a file that came over Ray is named {file.name!r}; nothing was written")
    path, digest = folder / file.name, hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        for chunk in file.chunks:
            data = _fetched(chunk)
            digest.update(data)
            out.write(data)
    if digest.hexdigest() != file.digest:
        raise EngineError(
            f"{file.name} arrived over Ray with other bytes than it was sent with; send it again"
        )


def _fetched(chunk: Any) -> bytes:
    try:
        data: bytes = ray.get(chunk)
    except ray.exceptions.RayError as error:
        raise EngineError(f"a folder could not be fetched over Ray: {error}") from error
    return data


class Cache:
    """What this machine has unpacked for one run; shared by the run's processes here.

    It goes with the last of them that is closed. Each holds a lock that dies with it: what killed ones leave
    is swept up by whoever opens or closes a cache next.
    """

    def __init__(self, run: str, base: str = "") -> None:
        self._root = Path(base or tempfile.gettempdir()) / f"patchwright-ray-{os.getuid()}"
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._root.stat().st_uid != os.getuid() or self._root.is_symlink():
            raise EngineError(f"{self._root} belongs to somebody else; give `cluster.cache` another folder")
        with _locked(self._root / "sweep.lock"):
            self._folder = self._root / run
            self._folder.mkdir(exist_ok=True)
            self._held = _open(self._folder / "held.lock")
            fcntl.flock(self._held, fcntl.LOCK_SH)
            self._sweep()

    def unpack(self, parcel: Parcel) -> Path:
        """The folder, unpacked unless it is here. Raises EngineError or StoreError."""
        folder = self._folder / parcel.kind / parcel.digest
        folder.parent.mkdir(exist_ok=True)
        with _locked(self._folder / f"{parcel.kind}.lock"):
            if not folder.exists():
                self._unpack(parcel, folder)
            os.utime(folder)
            if parcel.kind != "model":
                self._drop(folder.parent)
        return folder

    def scratch(self, name: str) -> Path:
        """An empty folder of one's own."""
        folder = self._folder / f"scratch-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def close(self) -> None:
        """Let go; the last one removes the folder. Closing twice is allowed."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
            with _locked(self._root / "sweep.lock"):
                self._sweep()

    def _sweep(self) -> None:
        """Remove the caches of runs that are over."""
        for folder in self._root.iterdir():
            if folder.is_dir() and not _in_use(folder / "held.lock"):
                shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def _unpack(parcel: Parcel, folder: Path) -> None:
        beside = folder.with_name(f"{folder.name}.tmp")
        shutil.rmtree(beside, ignore_errors=True)  # of a process that was killed
        write(parcel, beside)
        beside.rename(folder)  # never synced: what a crash of the machine leaves nobody reads

    @staticmethod
    def _drop(folder: Path) -> None:
        """Keep the folders used last."""
        here = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in here[_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _in_use(path: Path) -> bool:
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
