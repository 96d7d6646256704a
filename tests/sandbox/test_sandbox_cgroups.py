"""Control groups of namespace boxes, where this machine has them for us."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import patchwright
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.cgroups import _candidates
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Limits

SMALL = Limits(memory_mb=64, disk_mb=16, processes=32)
CLIENT = """
import asyncio
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend

async def main():
    backend = NamespaceBackend(warm=())
    boxes = [await backend.open(BoxSpec()) for _ in range(3)]
    print(*(path for box in boxes for path in box._handles.groups), flush=True)
    await boxes[0].exec("sleep 1000", timeout=1000)

asyncio.run(main())
"""


def run(work):
    async def main():
        backend = NamespaceBackend(warm=())
        try:
            if "memory" not in await backend.controllers():
                pytest.skip("no control groups for this user on this machine")
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


def test_memory_is_bounded_for_the_box_as_a_whole():
    """Ten processes that are each within the limit of one are together beyond that of the box."""
    hold = 'python3 -c "x = bytearray(40 << 20); import time; time.sleep(60)"'

    async def work(backend):
        box = await backend.open(BoxSpec(limits=SMALL))
        started = time.monotonic()
        result = await box.exec(f"for i in $(seq 10); do {hold} & done; wait -n; echo one ended", timeout=30)
        assert "one ended" in result.output and time.monotonic() - started < 29
        await box.exec("pkill python3")
        return await box.exec("echo alive")

    assert run(work).output == "alive\n"


def test_groups_go_with_the_box():
    async def work(backend):
        box = await backend.open(BoxSpec(limits=SMALL))
        groups = [Path(path) for path in box._handles.groups]
        assert groups and all(path.is_dir() for path in groups)
        await box.exec("sleep 1000 & sleep 1000 & echo started")
        await box.close()
        return groups

    assert not any(path.exists() for path in run(work))


def killed_client(also_server):
    """The groups of a client that was killed with three boxes open, with or without its fork server."""
    command = [sys.executable, "-c", CLIENT]
    source = str(Path(patchwright.__file__).parents[1])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": source}
    ) as client:
        groups = [Path(path) for path in client.stdout.readline().split()]
        assert groups
        if also_server:
            os.kill(int(groups[0].name.split("-")[1]), signal.SIGKILL)
        client.kill()
    return groups


def test_groups_go_with_a_killed_client():
    run(nothing)
    groups = killed_client(also_server=False)
    deadline = time.monotonic() + 15
    while any(path.exists() for path in groups):
        assert time.monotonic() < deadline, "groups of a killed client are left"
        time.sleep(0.05)


def test_the_next_start_removes_groups_that_nobody_could():
    run(nothing)
    groups = killed_client(also_server=True)
    time.sleep(1)  # the boxes are dying
    run(nothing)
    assert not any(path.exists() for path in groups)


async def nothing(backend):
    pass


def test_where_groups_are_put():
    """Version 1 with one tree per controller, version 2 under systemd, and a mixture."""
    first = {"memory": ("/cg/memory", "/"), "pids": ("/cg/pids", "/")}
    wanted = ("memory", "pids")
    assert _candidates({"memory": "/a/b", "pids": "/"}, first, wanted) == [
        ("/cg/memory", ("memory",), False),
        ("/cg/pids", ("pids",), False),
    ]
    unified = {"": ("/cg", "/")}
    own = {"": "/user.slice/user@1000.service/app.slice/shell.scope"}
    assert _candidates(own, unified, wanted) == [("/cg/user.slice/user@1000.service/app.slice", wanted, True)]
    assert _candidates({"": "/"}, unified, wanted) == [("/cg", wanted, True)]
    mixed = {"": ("/cg/unified", "/"), "pids": ("/cg/pids", "/")}
    assert _candidates({"": "/", "pids": "/"}, mixed, wanted) == [
        ("/cg/pids", ("pids",), False),
        ("/cg/unified", ("memory",), True),
    ]
