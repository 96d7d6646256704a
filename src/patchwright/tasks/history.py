"""A repository without a past, made in the box before an agent sees it, or code of its patch runs.

Images bring the history of a project along, the commit that fixes the issue included; and a task's set-up may
commit (SWE-smith's bugs are commits on top of the working code). What is left has one commit, of the work
tree as it stands, and nothing else: no other ref, reflog, remote, stash, pack, hook, alternate store,
configuration or credential. Repositories within it (submodules, vendored clones) lose their `.git`; their
files are in the one commit. Grading by our own rules does the same in its box, before the patch goes in;
official scripts name commits, so there the original stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from patchwright.errors import SandboxError
from patchwright.sandbox.base import Sandbox
from patchwright.tasks.repository import base_commit
from patchwright.types import Exec, Task

__all__ = ["WorkBox", "without_history"]

_GIT = (
    "git --no-pager -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false "
    "-c core.fileMode=true -c core.autocrlf=false -c core.safecrlf=false -c core.splitIndex=false "
    "-c core.untrackedCache=false -c gc.auto=0 -c user.name=Patchwright -c user.email=patchwright@localhost"
)

_SQUASH = r"""
set -eu
export GIT_OPTIONAL_LOCKS=0 GIT_CONFIG_NOSYSTEM=1
unset GIT_DIR GIT_WORK_TREE GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_OBJECT_DIRECTORY
here=$(GIT rev-parse --show-toplevel 2>/dev/null) || exit 44
cd "$here"
here=$(pwd -P)
old=$(GIT rev-parse --absolute-git-dir)
common=$(cd "$(GIT rev-parse --git-common-dir)" && pwd -P)
exclude=$(cat "$common/info/exclude" 2>/dev/null || true)
GIT describe --tags --long --always 2>/dev/null > NEW.version || true

# every object store this one reads from
stores() { sed '/^#/d; /^$/d' "$1/info/alternates" 2>/dev/null | while IFS= read -r line; do
    case $line in /*) echo "$line";; *) echo "$1/$line";; esac; done; }
others=$(stores "$common/objects"; for one in $(stores "$common/objects"); do stores "$one"; done)
GIT worktree list --porcelain | sed -n 's/^worktree //p' > NEW.worktrees

# the work tree as one tree; files that are tracked though ignored stay in it
export GIT_INDEX_FILE=NEW.index
[ ! -f "$old/index" ] || cp "$old/index" "$GIT_INDEX_FILE"
GIT ls-files -s | sed -n 's/^160000 [0-9a-f]* 0\t//p' > NEW.modules
find . -mindepth 2 -name .git -prune -exec rm -rf {} +
while IFS= read -r path; do GIT update-index --force-remove -- "$path"; done < NEW.modules
GIT add -A . > /dev/null
tree=$(GIT write-tree)
export GIT_AUTHOR_DATE='1704067200 +0000' GIT_COMMITTER_DATE='1704067200 +0000'
commit=$(echo Base | GIT commit-tree "$tree")

# only what that commit reaches goes over
rm -rf NEW.git
GIT init -q --template= --bare NEW.git
printf '%s\n' "$commit" | GIT pack-objects -q --revs --stdout > NEW.pack
env -u GIT_INDEX_FILE git --git-dir=NEW.git index-pack --stdin < NEW.pack > /dev/null
printf '[core]\n\t%s\n\t%s\n\t%s\n\t%s\n' 'repositoryformatversion = 0' 'filemode = true' 'bare = false' \
    'logallrefupdates = true' > NEW.git/config
mkdir -p NEW.git/refs/heads NEW.git/info
echo "$commit" > NEW.git/refs/heads/main
echo 'ref: refs/heads/main' > NEW.git/HEAD
printf '%s\n' "$exclude" > NEW.git/info/exclude
mv "$GIT_INDEX_FILE" NEW.git/index
unset GIT_INDEX_FILE
rm -rf NEW.git/hooks NEW.git/branches NEW.git/description NEW.pack NEW.modules

# and what was there before is gone, wherever it lay
rm -rf .git "$old" "$common"
for one in $others; do rm -rf "$one"; done
while IFS= read -r one; do
    case $here/ in "$one"/*) ;; *) [ ! -d "$one" ] || find "$one" -mindepth 1 -delete ;; esac
done < NEW.worktrees
mv NEW.git .git
rm -f "$HOME/.git-credentials" "$HOME/.netrc" "$HOME/.config/git/credentials"
for one in "$old" "$common" $others; do
    [ "$one" = "$here/.git" ] || [ ! -e "$one" ] || { echo "$one cannot be removed"; exit 1; }
done
echo "$commit"
cat NEW.version
rm -f NEW.version NEW.worktrees
"""

_NEW = "/tmp/patchwright-repository"
_NO_REPOSITORY = 44
_SCM = r"setuptools[_-]scm|hatch-vcs|flit[_-]scm|versioningit|dunamai|versioneer|\bpbr\b"
_DESCRIBED = re.compile(r"^\D*(\d+(?:\.\d+)*)(.*?)-(\d+)-g[0-9a-f]+$")


async def without_history(box: Sandbox, task: Task) -> tuple[Sandbox, Task]:
    """Give the box's repository one commit and no past; return the box to work in, and the task whose
    `base_commit` is that commit.

    Nothing is to be done where the repository was made by us and no set-up ran, or where there is none.
    Raises SandboxError when the past cannot be taken away.
    """
    if (task.archive is not None or task.files) and not task.setup:
        return box, replace(task, base_commit=base_commit(task))
    script = _SQUASH.replace("NEW", _NEW).replace("GIT ", f"{_GIT} ")
    done = await box.exec(script, timeout=task.limits.test_seconds, cwd=task.workdir)
    if done.code == _NO_REPOSITORY:
        return box, task
    if done.code != 0:
        raise SandboxError(
            f"task {task.id}: the repository's history cannot be taken away: {done.output[-300:]}"
        )
    lines = done.output.split()
    commit = next(line for line in reversed(lines) if re.fullmatch(r"[0-9a-f]{40,64}", line))
    version = _version(lines[-1])
    found = await box.exec(f"grep -lsE '{_SCM}' pyproject.toml setup.cfg setup.py", cwd=task.workdir)
    env = {"SETUPTOOLS_SCM_PRETEND_VERSION": version, "PBR_VERSION": version}
    asks = version and found.output.strip()
    work = cast("Sandbox", WorkBox(box, env)) if asks else box
    return work, replace(task, base_commit=commit)


def _version(described: str) -> str:
    """The version setuptools_scm guesses from `git describe`: that of the tag, or the next one's `.devN`.

    Example: `_version("v7.1.2-5-gabcdef0") == "7.1.3.dev5"`
    """
    match = _DESCRIBED.match(described)
    if match is None:
        return ""
    numbers, rest, distance = match[1].split("."), match[2], int(match[3])
    if distance == 0:
        return match[1] + rest
    return ".".join([*numbers[:-1], str(int(numbers[-1]) + 1)]) + f".dev{distance}"


class WorkBox:
    """A box whose commands have a few variables more: projects that ask git for their version get it from
    there, now that the tags are gone. All else is the box's own.

    Example: `WorkBox(box, {"PBR_VERSION": "1.2"})`
    """

    def __init__(self, box: Sandbox, env: Mapping[str, str]) -> None:
        self._box, self._env = box, env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)

    async def exec(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        on_output: Callable[[bytes], None] | None = None,
    ) -> Exec:
        """See `Sandbox.exec`."""
        env = {**self._env, **(env or {})}
        return await self._box.exec(
            command, timeout=timeout, cwd=cwd, env=env, stdin=stdin, on_output=on_output
        )

    async def fork(self) -> Sandbox:
        """See `Sandbox.fork`."""
        return cast("Sandbox", WorkBox(await self._box.fork(), self._env))
