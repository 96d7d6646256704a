"""A task's repository as the tar a box is opened with: work tree and `.git`, made in this process.

The git repository has one commit on `main`, always the same one for the same files, and nothing that could
tell the solution: no history, remotes or hooks. The index matches the work tree, so `git status` is clean
and `git diff`, `git checkout` and `git stash` work in the box from the first command on.
"""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from dulwich.index import IndexEntry, commit_tree, write_index_dict
from dulwich.object_store import MemoryObjectStore
from dulwich.objects import Blob, Commit
from dulwich.pack import SHA1Writer

from patchwright.errors import ConfigError
from patchwright.types import Task

_AUTHOR = b"Patchwright <patchwright@localhost>"
_DATE = 1704067200  # 2024-01-01, so that the commit id depends on the files only
_CONFIG = (
    b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
)
_PLAIN_ATTRIBUTES = b"* -text -filter -ident\n"
"""Lets no attributes file of the repository rewrite contents, which would show as changes."""

_MAIN = ".git/refs/heads/main"
_PAST = {".git", ".hg", ".svn", ".bzr", ".jj"}
"""Left out of every archive, at any depth: history, and with it perhaps the fix."""

_REGULAR, _PROGRAM, _LINK = 0o100644, 0o100755, 0o120000


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file of the work tree: its git mode, and its blob. A link's content is its target."""

    mode: int
    blob: Blob


_Tree = Mapping[str, _Entry]
_State = tuple[tuple[str, int, int, int], ...]  # path, mode, size, mtime of what an archive is made of


def repository_archive(task: Task) -> bytes:
    """The uncompressed tar of a task's repository, empty when its image already holds one.

    Raises ConfigError when the task's archive cannot be read, or a path leads out of the repository.
    """
    if task.archive is None and not task.files:
        return b""
    base = (task.archive, _state(task)) if task.archive else None
    return _tar_of(base, tuple(sorted(task.files.items())))


def base_commit(task: Task) -> str:
    """The commit a patch is taken against, as an id where `HEAD` would move with an agent's own commits."""
    archive = repository_archive(task) if task.base_commit == "HEAD" else b""
    if not archive:
        return task.base_commit
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.name == _MAIN and (data := tar.extractfile(member)) is not None:
                return data.read().decode().strip()
    return task.base_commit


@lru_cache(maxsize=64)
def _tar_of(base: tuple[str, _State] | None, files: tuple[tuple[str, str], ...]) -> bytes:
    tree = dict(_archive(*base)) if base else {}
    for path, content in files:
        mode = tree[path].mode if path in tree else _REGULAR
        tree[_checked(path)] = _Entry(mode, Blob.from_string(content.encode()))
    return _pack({**_git(tree), **tree})


# --- the base archive -------------------------------------------------------------------------


def _state(task: Task) -> _State:
    """Changes whenever the archive's files do; tells cached contents from stale ones."""
    root = Path(task.archive or "")
    try:
        paths = [path for path in sorted(root.rglob("*")) if path.is_symlink() or not path.is_dir()]
        return tuple(_stamp(path) for path in (paths if root.is_dir() else [root]))
    except OSError as error:
        raise ConfigError(
            f"task {task.id}: archive {task.archive} cannot be read: {error.strerror}; check the path"
        ) from None


def _stamp(path: Path) -> tuple[str, int, int, int]:
    found = path.lstat()
    return str(path), found.st_mode, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=16)
def _archive(archive: str, state: _State) -> _Tree:
    root = Path(archive)
    found = _folder(root, state) if root.is_dir() else _tar_file(root)
    return {_checked(path): entry for path, entry in found if _PAST.isdisjoint(PurePosixPath(path).parts)}


def _folder(root: Path, state: _State) -> Iterator[tuple[str, _Entry]]:
    for name, mode, _, _ in state:
        path = Path(name)
        if stat.S_ISLNK(mode):
            yield path.relative_to(root).as_posix(), _Entry(_LINK, _blob(str(path.readlink()).encode()))
        elif stat.S_ISREG(mode):
            yield path.relative_to(root).as_posix(), _Entry(_file_mode(mode), _blob(path.read_bytes()))


def _tar_file(path: Path) -> Iterator[tuple[str, _Entry]]:
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                data = tar.extractfile(member) if member.isreg() or member.islnk() else None
                if data is not None:
                    yield member.name.removeprefix("./"), _Entry(_file_mode(member.mode), _blob(data.read()))
                elif member.issym():
                    yield member.name.removeprefix("./"), _Entry(_LINK, _blob(member.linkname.encode()))
    except (tarfile.TarError, EOFError) as error:
        raise ConfigError(f"archive {path} is not a tar file: {error}; give a tar file or a folder") from None


def _blob(content: bytes) -> Blob:
    return Blob.from_string(content)


def _file_mode(mode: int) -> int:
    return _PROGRAM if mode & stat.S_IXUSR else _REGULAR


def _checked(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or ".git" in parts or "/".join(parts) != path:
        raise ConfigError(f"`{path}` is not a path inside a repository; write it relative, without `..`")
    return path


# --- git --------------------------------------------------------------------------------------


def _git(tree: _Tree) -> dict[str, bytes]:
    """The files of `.git` for one commit that holds `tree`."""
    store = MemoryObjectStore()
    named = {path.encode(): entry for path, entry in tree.items()}
    top = commit_tree(store, [(path, entry.blob.id, entry.mode) for path, entry in named.items()])
    commit = _commit(top)
    made = [*(entry.blob for entry in tree.values()), *(store[sha] for sha in store), commit]
    objects = {item.id.decode(): item for item in made}
    files = {
        ".git/HEAD": b"ref: refs/heads/main\n",
        ".git/config": _CONFIG,
        _MAIN: commit.id + b"\n",
        ".git/index": _index(named),
        **{f".git/objects/{sha[:2]}/{sha[2:]}": item.as_legacy_object() for sha, item in objects.items()},
    }
    if any(PurePosixPath(path).name == ".gitattributes" for path in tree):
        files[".git/info/attributes"] = _PLAIN_ATTRIBUTES
    return files


def _commit(tree: bytes) -> Commit:
    commit = Commit()
    commit.tree = tree
    commit.author = commit.committer = _AUTHOR
    commit.author_time = commit.commit_time = _DATE
    commit.author_timezone = commit.commit_timezone = 0
    commit.encoding = b"UTF-8"
    commit.message = b"Base\n"
    return commit


def _index(named: Mapping[bytes, _Entry]) -> bytes:
    """The stat fields are unknown here; git compares contents where they differ, and notes them."""
    out = io.BytesIO()
    writer = SHA1Writer(out)
    entries = {
        path: IndexEntry(_DATE, _DATE, 0, 0, entry.mode, 0, 0, len(entry.blob.data), entry.blob.id)
        for path, entry in named.items()
    }
    write_index_dict(writer, entries)
    writer.write_sha()
    return out.getvalue()


# --- the tar ----------------------------------------------------------------------------------


def _pack(files: Mapping[str, bytes | _Entry]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in files.items():
            entry = content if isinstance(content, _Entry) else _Entry(_REGULAR, _blob(content))
            info = tarfile.TarInfo(path)
            info.mtime = _DATE
            data = entry.blob.data
            if entry.mode == _LINK:
                info.type, info.linkname = tarfile.SYMTYPE, data.decode(errors="surrogateescape")
                tar.addfile(info)
            else:
                info.mode, info.size = entry.mode & 0o777, len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
