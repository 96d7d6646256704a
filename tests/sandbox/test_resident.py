"""A program that is held loaded: loaded once, forked in every box, and like one that was started there."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from patchwright.errors import SandboxError
from patchwright.sandbox.base import BoxSpec, Resident
from patchwright.sandbox.namespace import NamespaceBackend

KIT = "/opt/toy"
COMMAND = f'"{KIT}/python" "{KIT}/program.py"'
RESIDENT = Resident(command=COMMAND, python=f"{KIT}/python", program=f"{KIT}/program.py")
PROGRAM = """
import os, random, sys, uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["CHOSEN"] = "at load"
import early
LOADED, SEEN = str(uuid.uuid4()), []


def main():
    import json
    import late
    SEEN.append(1)
    said = {
        "loaded": LOADED, "seen": len(SEEN), "random": random.random(), "late": late.__file__,
        "folder": os.getcwd(), "input": sys.stdin.read(), "uid": os.getuid(),
        "fds": sorted(map(int, os.listdir("/proc/self/fd"))),
        "env": {name: os.environ.get(name) for name in ("GIVEN", "CHOSEN", "HOME")},
    }
    print(json.dumps(said), flush=True)
    if os.environ.get("SLEEP"):
        os.system("sleep 60")
    if os.environ.get("BREAK"):
        raise RuntimeError("seen")
    return 7


if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def kit(tmp_path):
    folder = tmp_path / "kit"
    folder.mkdir()
    (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "program.py").write_text(PROGRAM)
    for name in ("early", "late"):
        (folder / f"{name}.py").write_text("")
    for path in (tmp_path, folder, folder / "python"):
        path.chmod(0o755)
    return folder


def with_boxes(kit, work):
    """`work` with a function that opens boxes."""

    async def main():
        backend = NamespaceBackend()
        try:
            return await work(lambda: backend.open(BoxSpec(mounts={KIT: str(kit)}, resident=RESIDENT)))
        finally:
            await backend.close()

    return asyncio.run(main())


def test_it_is_loaded_once_and_every_run_is_a_fresh_copy(kit):
    async def work(box):
        one, two = await box(), await box()
        fork = await one.fork()
        return [json.loads((await each.exec(COMMAND)).output) for each in (one, one, two, fork)]

    found = with_boxes(kit, work)
    assert len({said["loaded"] for said in found}) == 1 and [said["seen"] for said in found] == [1] * 4
    assert len({said["random"] for said in found}) == 4
    assert {said["late"] for said in found} == {f"{KIT}/late.py"}  # where boxes see it


def test_it_runs_as_if_it_had_been_started_there(kit):
    async def work(open_):
        box = await open_()
        found = await box.exec(COMMAND, cwd="/tmp", env={"GIVEN": "1"}, stdin=b"text")
        broken = await box.exec(COMMAND, env={"BREAK": "1"})
        other = await box.exec(f"true; {COMMAND}")
        return found, broken, other

    found, broken, other = with_boxes(kit, work)
    said = json.loads(found.output)
    assert (found.code, said["folder"], said["input"], said["uid"]) == (7, "/tmp", "text", 1000)
    assert said["env"] == {"GIVEN": "1", "CHOSEN": "at load", "HOME": "/home/agent"}
    assert said["fds"][:3] == [0, 1, 2] and len(said["fds"]) == 4  # and the folder that was listed
    assert broken.code == 1 and "RuntimeError: seen" in broken.output
    assert other.code == 7 and json.loads(other.output)["loaded"] != said["loaded"]  # cold, as any command


def test_time_ends_it_and_what_it_started(kit):
    async def work(open_):
        box = await open_()
        for seconds in (1, 5, 25):  # a busy machine may need the first to come so far
            late = await box.exec(COMMAND, env={"SLEEP": "1"}, timeout=seconds)
            if late.output:
                break
        return late, (await box.exec("ps -A -o args | grep -c '[s]leep 60'")).output

    late, left = with_boxes(kit, work)
    assert late.timed_out and late.output.startswith("{") and left == "0\n"


def test_one_that_cannot_be_loaded_is_named(kit):
    (kit / "early.py").write_text("raise ImportError('no such wheel')")

    async def work(open_):
        await open_()

    with pytest.raises(SandboxError, match="cannot be loaded: ImportError: no such wheel"):
        with_boxes(kit, work)
