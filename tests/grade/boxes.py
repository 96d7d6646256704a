"""Boxes for the tests of grading: what a box's work tree holds, before and after a patch."""

import json

from patchwright.grade.diff import parse
from patchwright.grade.patch import apply_patch, take_patch
from patchwright.grade.run import open_box
from patchwright.sandbox.base import Sandbox, SandboxBackend
from patchwright.types import Limits, Task, Tests

LISTING = r"""
import hashlib, json, os, sys
found = {}
for folder, folders, files in os.walk(b"."):
    folders[:] = [name for name in folders if name != b".git"]
    for name in files + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
        path = os.path.join(folder, name)
        if os.path.islink(path):
            what = ["link", os.readlink(path).hex()]
        else:
            content = open(path, "rb").read()
            what = [bool(os.stat(path).st_mode & 0o100), hashlib.sha256(content).hexdigest(), len(content)]
        found[path.hex()] = what
json.dump(found, sys.stdout, sort_keys=True)
"""


def task_of(files: dict[str, str], **tests: object) -> Task:
    """A task with nothing but files."""
    chosen = {"command": "true", "fail_to_pass": (), **tests}
    return Task(id="t", prompt="", files=files, tests=Tests(**chosen), limits=Limits(test_seconds=120))


async def tree(box: Sandbox) -> dict[str, list]:
    """Path (hex) -> content hash and mode of every file and link in the work tree."""
    await box.write("/tmp/listing.py", LISTING.encode())
    done = await box.exec("python3 /tmp/listing.py")
    assert done.code == 0, done.output
    return json.loads(done.output)


async def applied(backend: SandboxBackend, task: Task, patch: str) -> tuple[str, dict[str, list]]:
    """What applying a patch in a fresh box said, and the tree after it."""
    box = await open_box(backend, task)
    try:
        return await apply_patch(box, task, parse(patch)), await tree(box)
    finally:
        await box.close()


async def changed(backend: SandboxBackend, task: Task, command: str) -> tuple[str, dict[str, list]]:
    """The patch and the tree of a box in which a command did its work."""
    box = await open_box(backend, task)
    try:
        done = await box.exec(command)
        assert done.code == 0, done.output
        return await take_patch(box, task), await tree(box)
    finally:
        await box.close()
