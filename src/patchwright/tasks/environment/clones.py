"""The repository of a task out of somebody's clone, as of one commit and without what came after it.

The commit keeps its id, for evaluation scripts name it; its parents are cut off (a shallow clone), and there
is no remote, no other branch, no tag.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.tasks.environment.build import Repository

__all__ = ["at_commit", "find_clone"]

_FORMS = ("{owner}__{name}", "{owner}/{name}", "{name}")
_ANY_COMMIT = {
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "uploadpack.allowAnySHA1InWant",
    "GIT_CONFIG_VALUE_0": "true",
    "GIT_CONFIG_KEY_1": "safe.directory",
    "GIT_CONFIG_VALUE_1": "*",
}
_PATIENCE = 600.0  # seconds


def find_clone(clones: Path, repo: str) -> Path:
    """The clone of `OWNER/NAME` below a folder: `OWNER__NAME`, `OWNER/NAME` or `NAME`, bare or not.

    Raises ConfigError when there is none.
    """
    owner, _, name = repo.partition("/")
    for form in _FORMS:
        for ending in ("", ".git"):
            folder = clones / (form.format(owner=owner, name=name) + ending)
            if (folder / "HEAD").exists() or (folder / ".git").exists():
                return folder
    raise ConfigError(f"{clones} has no clone of {repo}; clone it to {clones}/{owner}__{name}")


def at_commit(clone: Path, commit: str) -> Repository:
    """The repository at a commit. Raises ConfigError when the clone does not have it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "testbed"
        _git("init", "--quiet", "--initial-branch=main", str(folder), where=Path(scratch))
        _git("fetch", "--quiet", "--depth=1", "--no-tags", clone.absolute().as_uri(), commit, where=folder)
        _git("reset", "--quiet", "--hard", "FETCH_HEAD", where=folder)
        for left in ("FETCH_HEAD", "ORIG_HEAD", "logs/HEAD", "logs/refs/heads/main"):
            (folder / ".git" / left).unlink(missing_ok=True)
        for hook in (folder / ".git/hooks").glob("*"):
            hook.unlink()
        project = folder / "pyproject.toml"
        text = project.read_text(encoding="utf-8", errors="replace") if project.is_file() else None
        return Repository(_packed(folder), text)


def _git(*arguments: str, where: Path) -> None:
    env = {**os.environ, **_ANY_COMMIT, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=_PATIENCE)
    if done.returncode != 0:
        raise ConfigError(f"git {arguments[0]} failed for {arguments[-1]}: {done.stderr.strip()[-300:]}")


def _packed(folder: Path) -> bytes:
    """The same bytes for the same commit: sorted, and without the times of this moment."""
    out = io.BytesIO()

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = 1704067200, 0, 0, "", ""
        return member

    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if name != ".git/index":
                tar.add(path, name, recursive=False, filter=plain)
    return out.getvalue()
