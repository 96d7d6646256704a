"""The patch of a box: taken out as a git diff, put into another box by a ladder of git and GNU patch.

What a patch says is read in `grade/diff.py`; here it goes in and out of real boxes, through files.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterable

from patchwright.errors import SandboxError
from patchwright.grade.diff import Diff
from patchwright.sandbox.base import Sandbox
from patchwright.tasks.repository import base_commit
from patchwright.types import Exec, Task

__all__ = ["GIT", "apply_patch", "listed", "take_patch"]

PATCH_FILE = "/tmp/patchwright.diff"

GIT = (
    "git --no-pager --literal-pathspecs -c safe.directory='*' -c core.hooksPath=/dev/null "
    "-c core.quotePath=true"
)
"""Git that is not led astray by hooks, by whose files these are, or by globs in file names."""

_NOT_FOUND = 127

PATCH_LIMIT = 48 * 2**20
"""Bytes of the largest patch that is taken out of a box; nobody's fix is larger, but a core dump is."""

# What running tests leaves behind is not part of anybody's fix.
_LEAVINGS = "':(exclude,glob)**/__pycache__/**' ':(exclude,glob)**/.pytest_cache/**'"

_ADD = (
    "rm -f .git/index.lock; mkdir -p .git/info; "
    "git -c safe.directory='*' -c core.fileMode=true -c core.autocrlf=false -c core.safecrlf=false "
    f"-c core.fsmonitor=false add -A -- . {_LEAVINGS}"
)
_DIFF = (
    f"{GIT} -c diff.suppressBlankEmpty=false diff --cached --binary --no-color --no-ext-diff --no-textconv "
    "--src-prefix=a/ --dst-prefix=b/ --submodule=short --ignore-submodules=none -U3 --inter-hunk-context=0"
)


# `git apply` refuses to write beyond a link; its own `--3way` (git 2.39) and GNU patch (2.7) do not.
_STRAIGHT = (
    "while IFS= read -r -d '' path; do while path=${path%/*}; [ \"$path\" != . ]; do "
    '[ ! -L "$path" ] || exit 1; done; done'
)


async def take_patch(box: Sandbox, task: Task) -> str:
    """Everything that differs from `task.base_commit`: new, deleted, binary and renamed files too.

    Files that git ignores, and what running Python leaves behind, are not part of it. Empty when nothing
    changed, or when there is nothing to take: the agent destroyed the repository, filled the disk, or left
    a change of more than `PATCH_LIMIT`. Raises SandboxError when the box is gone.
    """
    data = await _diff(box, task, _ADD)
    try:
        return data.decode()
    except UnicodeDecodeError:  # a text file in another encoding: ask for it as a binary diff, pure ASCII
        binary = f"printf '\\n* -diff\\n' >> .git/info/attributes && {_ADD}"
        return (await _diff(box, task, binary)).decode("utf-8", "replace")


async def _diff(box: Sandbox, task: Task, add: str) -> bytes:
    done = await box.exec(
        f"{add} && {_DIFF} {shlex.quote(base_commit(task))} -- > {PATCH_FILE} && "
        f'[ "$(wc -c < {PATCH_FILE})" -le {PATCH_LIMIT} ]',
        timeout=task.limits.test_seconds,
        cwd=task.workdir,
    )
    return await box.read(PATCH_FILE) if done.code == 0 else b""


async def apply_patch(box: Sandbox, task: Task, diff: Diff) -> str:
    """Apply a patch in the box's workdir. Returns "" when it went in, else what git said about it.

    The rungs are those of SWE-bench's harness: `git apply`, `git apply --3way`, GNU patch with a fuzz of 5
    that never goes backwards. (`git apply --reject`, between the last two there, goes in whole only where
    `git apply` does.) Each starts from the tree as it was; a patch that goes in by halves has not gone in.
    Raises SandboxError when the box is gone or hangs.
    """
    first = await _run(box, task, f"{GIT} apply --whitespace=nowarn -", diff.data)
    if first.code == 0:
        return ""
    paths = listed(diff.paths)
    await box.write(PATCH_FILE, diff.data)
    if (await _run(box, task, _second(), paths)).code == 0:
        return ""
    said = first.output.strip() or f"git apply ended with {first.code}"
    if any(section.indented for section in diff.sections):
        return said
    third = await _run(box, task, _third(), paths)
    lacking = "; the image has no `patch` to try with" if third.code == _NOT_FOUND else ""
    return said + lacking if third.code else ""


def _second() -> str:
    """Merge by the blobs that the patch names, on a copy of the index; when that conflicts, every file the
    patch names is put back."""
    return (
        f"cat > {PATCH_FILE}.paths; {_STRAIGHT} < {PATCH_FILE}.paths; "
        f"tar -cf {PATCH_FILE}.tar --null -T {PATCH_FILE}.paths 2>/dev/null; "
        f"cp .git/index {PATCH_FILE}.index || exit 1; "
        f"GIT_INDEX_FILE={PATCH_FILE}.index {GIT} apply --3way --whitespace=nowarn {PATCH_FILE} && exit 0; "
        f"xargs -0 -r rm -rf -- < {PATCH_FILE}.paths; "
        f"tar -xf {PATCH_FILE}.tar; exit 1"
    )


def _third() -> str:
    """GNU patch, which would write into `.git` if there were one by that name."""
    aside = f".{secrets.token_hex(16)}"
    return (
        f"command -v patch > /dev/null || exit {_NOT_FOUND}; {_STRAIGHT}; "
        f"[ ! -e .git ] || mv .git {aside} || exit 1; "
        f"patch --batch --forward --unified --fuzz=5 --no-backup-if-mismatch -g 0 -p1 -i {PATCH_FILE}; "
        f"code=$?; if [ -e .git ]; then rm -rf .git; code=1; fi; "
        f"[ ! -e {aside} ] || mv {aside} .git; exit $code"
    )


async def _run(box: Sandbox, task: Task, command: str, stdin: bytes) -> Exec:
    done = await box.exec(command, timeout=task.limits.test_seconds, cwd=task.workdir, stdin=stdin)
    if done.timed_out:
        raise SandboxError(f"task {task.id}: git was still applying the patch when its time was up")
    return done


def listed(paths: Iterable[str]) -> bytes:
    """Paths for `xargs -0`, each taken as a path and no option. Example: `listed(["a b"]) == b"./a b\\0"`"""
    return b"".join(b"./" + path.encode("utf-8", "surrogateescape") + b"\0" for path in sorted(paths))
