"""Control groups of namespace boxes, where this machine has them for us."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import patchwright
from patchwright.sandbox import owner
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
            server = int(groups[0].name.split("-")[1])
            os.kill(server, signal.SIGKILL)
        client.kill()
    if also_server:
        until(lambda: not owner.start_time(server), "a killed fork server lives")
    return groups


def until(condition, otherwise):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def test_groups_go_with_a_killed_client():
    run(nothing)
    groups = killed_client(also_server=False)
    until(lambda: not any(path.exists() for path in groups), "groups of a killed client are left")


def test_the_next_start_removes_groups_that_nobody_could():
    run(nothing)
    groups = killed_client(also_server=True)
    until(lambda: not any(busy(path) for path in groups), "a box of a killed client lives")
    run(nothing)
    assert not any(path.exists() for path in groups)


def busy(group):
    """Whether a process is still in the control group, or in one below it."""
    with contextlib.suppress(OSError):
        return any(file.read_text().strip() for file in group.rglob("cgroup.procs"))
    return False


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


VERSION_2 = """
import json, os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from patchwright.sandbox import cgroups, syscalls

syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
syscalls.mount("none", sys.argv[1], "cgroup2")
offered = Path(sys.argv[1], "cgroup.controllers").read_text().split()
switch = Path(sys.argv[1], "cgroup.subtree_control")
before = switch.read_text().split()
ours = [name for name in ("memory", "pids", "cpu") if name in offered]
top = Path(sys.argv[1], f"patchwright-test-{os.getpid()}")
top.mkdir()
delegated = tuple(ours or offered[:1])
cgroups._enable(sys.argv[1], delegated)
if sys.argv[2] == "service":
    (top / "cgroup.procs").write_text(str(os.getpid()))
    place = cgroups._prepare_below(str(top), delegated)
else:
    place = cgroups._prepare(str(top), delegated, True)
enabled = Path(place.path, "cgroup.subtree_control").read_text().split()
groups = cgroups.Groups([replace(place, controllers=tuple(ours))])
read, write = os.pipe()
box = os.fork()
if box == 0:
    paths = groups.enter(1, 64, 8)
    os.write(write, json.dumps(paths).encode())
    time.sleep(60)
(path,) = json.loads(os.read(read, 4096))
files = [Path(path, name) for name in ("memory.max", "pids.max")]
found = {
    "delegated": delegated, "enabled": enabled, "inside": Path(f"/proc/{box}/cgroup").read_text(),
    "path": path, "removed": cgroups.remove(path),
    "limits": {file.name: file.read_text().strip() for file in files if file.exists()},
}
os.kill(box, signal.SIGKILL)
os.waitpid(box, 0)
groups.sweep()
found["left"] = [one.name for one in Path(place.path).iterdir() if one.is_dir()]
found["own"] = Path("/proc/self/cgroup").read_text()
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
for folder in (*top.glob("*/"), top):
    folder.rmdir()
for name in set(delegated) - set(before):
    switch.write_text(f"-{name}")
print(json.dumps({**found, "ours": ours}))
"""


@pytest.mark.parametrize("where", ["beside", "service"])
def test_version_2_of_the_kernel_itself(tmp_path, where):
    """It can be mounted where most controllers belong to version 1, too: what is left is used."""
    if os.geteuid():
        return  # only root may mount it
    done = subprocess.run(
        [sys.executable, "-c", VERSION_2, str(tmp_path), where],
        env={**os.environ, "PYTHONPATH": str(Path(patchwright.__file__).parents[1])},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["delegated"]) <= set(found["enabled"])
    assert f"0::{found['path'].removeprefix(str(tmp_path))}\n" in found["inside"]
    assert not found["removed"] and found["left"] == []
    assert ("/patchwright-programs\n" in found["own"]) == (where == "service")
    bounds = {"memory.max": str(64 << 20), "pids.max": "9"}
    assert found["limits"] == {name: bounds[name] for name in bounds if name.split(".")[0] in found["ours"]}
