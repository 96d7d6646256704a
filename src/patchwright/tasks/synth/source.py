"""The source of a library: a release on the package index, a folder, or a git repository."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.store.files import attributed, commit
from patchwright.tasks.sdist import Requirement, fetch_sdist

PYPI = "pypi:"
_GIT = re.compile(r"(git\+)?(https?|ssh|git|file)://\S+|\w[\w.-]*@[\w.-]+:\S+")
_ASIDE = (".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".nox", ".*_cache")
_CLONE_SECONDS = 600
_MOST_BYTES = 500 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Where a library's files are. Example: `Source("lib-0.5.1", Path("out/archive/lib-0.5.1"))`"""

    name: str
    """Name and version, of which task ids are made."""
    root: Path


def fetch_source(given: str, folder: Path) -> Source:
    """The library `given` as `pypi:NAME==VERSION`, a folder, or a git URL (`URL@REVISION` too), kept below
    `folder`; what is there already is not fetched again.

    Nothing of the library runs. Raises ConfigError when it cannot be had, StoreError when the disk refuses.
    """
    if given.startswith(PYPI):
        pinned = Requirement.parse(given.removeprefix(PYPI))
        return Source(str(pinned), fetch_sdist(pinned, folder))
    if _GIT.fullmatch(given):
        return _clone(given.removeprefix("git+"), folder)
    path = Path(given)
    if not path.is_dir():
        raise ConfigError(
            f"`{given}` is no source of tasks; give `composed`, `pypi:NAME==VERSION`, a folder or a git URL"
        )
    return _copy(path.resolve(), folder)


def _copy(path: Path, folder: Path) -> Source:
    """A copy: the folder may change while its tasks live on. Its name tells its content."""
    beside = folder / f"{_plain(path.name)}.tmp"
    with attributed("copy a library", folder):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        aside = shutil.ignore_patterns(*_ASIDE)

        def left_out(place: str, names: list[str]) -> set[str]:
            own = {name for name in names if Path(place, name).resolve().is_relative_to(folder.resolve())}
            return {*aside(place, names), *own}

        shutil.copytree(path, beside, symlinks=True, ignore=left_out)
    return _settled(beside, f"{_plain(path.name)}-{_digest(beside)}", folder)


def _clone(url: str, folder: Path) -> Source:
    address, at, revision = url.rpartition("@") if re.search(r"@[\w./-]+$", url[8:]) else (url, "", "")
    name = _plain(address.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git"))
    with attributed("clone a library", folder):
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f"{name}.clone.tmp"
        shutil.rmtree(beside, ignore_errors=True)
    _git("clone", "--quiet", *(() if at else ("--depth=1",)), "--no-tags", "--", address, str(beside))
    if at:
        _git("-C", str(beside), "checkout", "--quiet", "--detach", revision)
    sha = _git("-C", str(beside), "rev-parse", "--short=12", "HEAD").strip()
    with attributed("clone a library", folder):
        shutil.rmtree(beside / ".git")
    return _settled(beside, f"{name}-{sha}", folder)


def _settled(beside: Path, name: str, folder: Path) -> Source:
    size = sum(path.lstat().st_size for path in beside.rglob("*"))
    if size > _MOST_BYTES:
        shutil.rmtree(beside)
        raise ConfigError(f"{name} is larger than {_MOST_BYTES >> 20} MiB; give the library's own folder")
    with attributed("keep a library", folder):
        if (folder / name).is_dir():
            shutil.rmtree(beside)
        else:
            commit(beside, folder / name)
    return Source(name, folder / name)


def _git(*arguments: str) -> str:
    """Run git without asking anybody and without the repository's hooks. Raises ConfigError in its words."""
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", *arguments]
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=_CLONE_SECONDS
        )
    except FileNotFoundError:
        raise ConfigError("there is no git on this machine; install it, or give a folder") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"git {arguments[0]} took more than {_CLONE_SECONDS} s; give a folder") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise ConfigError(f"git {arguments[0]} failed: {said}; check address and revision")
    return done.stdout


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "library"


def _digest(root: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:12]
