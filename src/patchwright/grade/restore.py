"""Whatever the patch did to the tests is undone: they come from the task, in a box the patch is in already.

Official harnesses take the files of the test patch back to the base commit and apply it; files that a task
brings along are written over. A patch that puts a link or a folder where a test belongs loses it first.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection

from patchwright.grade.diff import parse_tests
from patchwright.grade.patch import GIT, listed
from patchwright.sandbox.base import Sandbox
from patchwright.types import Task

__all__ = ["restore_tests"]

TEST_PATCH_FILE = "/tmp/patchwright-tests.diff"


async def restore_tests(box: Sandbox, task: Task, touched: Collection[str]) -> tuple[str, str]:
    """Put the task's tests into a box whose patch touched these paths.

    Returns what applying the test patch said, and what went wrong ("" when nothing did). Raises
    SandboxError when the box is gone.
    """
    named = parse_tests(task.tests.patch).paths
    await _clear(box, task, _in_the_way([*named, *task.tests.files], touched))
    said = ""
    if task.tests.patch.strip():
        said, problem = await _apply(box, task, named)
        if problem:
            return said, problem
    for path, content in task.tests.files.items():
        try:
            await box.write(path, content.encode())
        except OSError as error:
            return said, f"test file {path} cannot be written: {error.strerror}"
    return said, ""


def _in_the_way(wanted: Collection[str], touched: Collection[str]) -> list[str]:
    """What of the patch lies at, above or below a file that is to be put back."""
    return [
        found
        for found in touched
        if any(
            found == path or path.startswith(f"{found}/") or found.startswith(f"{path}/") for path in wanted
        )
    ]


async def _clear(box: Sandbox, task: Task, paths: Collection[str]) -> None:
    if paths:
        command = 'xargs -0 -r sh -c \'for p; do [ -L "$p" ] || [ -e "$p" ] && rm -rf -- "$p"; done\' sh'
        await box.exec(command, timeout=task.limits.test_seconds, cwd=task.workdir, stdin=listed(paths))


async def _apply(box: Sandbox, task: Task, named: Collection[str]) -> tuple[str, str]:
    """Take the named files back to the base commit, the new ones away, and apply the test patch."""
    await box.write(TEST_PATCH_FILE, parse_tests(task.tests.patch).data)
    base = shlex.quote(task.base_commit)
    script = (
        f"set -e; cat > {TEST_PATCH_FILE}.paths; P={TEST_PATCH_FILE}.paths; "
        f"{GIT} rev-parse -q --verify {base}^{{commit}} > /dev/null; "
        f"xargs -0 -r rm -rf -- < $P; "
        f"xargs -0 -r {GIT} ls-tree -r -z --name-only {base} -- < $P > $P.base; "
        f"xargs -0 -r {GIT} checkout -q -f {base} -- < $P.base; "
        f"{GIT} apply -v --whitespace=nowarn {TEST_PATCH_FILE}"
    )
    done = await box.exec(script, timeout=task.limits.test_seconds, cwd=task.workdir, stdin=listed(named))
    problem = f"the task's test patch does not go in: {done.output[-500:].strip()}" if done.code else ""
    return done.output, problem
