"""Namespace boxes: what the conformance suite cannot see from inside one backend."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.descriptors import open_files

import patchwright
from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.check_tools import tar_of
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Limits

PACKAGE = Path(patchwright.__file__).parent


def run(work):
    """Run `work(backend)` with a backend that is closed afterwards."""

    async def main():
        async with backend() as opened:
            return await work(opened)

    return asyncio.run(main())


@contextlib.asynccontextmanager
async def backend():
    opened = NamespaceBackend(warm=())
    try:
        yield opened
    finally:
        await opened.close()


def processes():
    """pid -> (parent, start time) of every process that is not dead."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found[int(entry.name)] = (int(fields[1]), fields[19])
    return found


def descendants(root):
    """(pid, start time) of all below `root`."""
    table, family = processes(), {root}
    while True:
        more = {pid for pid, (parent, _) in table.items() if parent in family} - family
        if not more:
            return {(pid, table[pid][1]) for pid in family - {root} if pid in table}
        family |= more


@pytest.fixture
def family():
    """Tells (pid, start time) of all that came below this process since: servers of other tests may live."""
    others = descendants(os.getpid())
    return lambda: descendants(os.getpid()) - others


def mounted():
    """What is mounted here, but for Docker's and other tests' own, which may be at work beside these."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if "docker" not in line and "/pytest-" not in line]


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


CLIENT = """
import asyncio
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend

async def main():
    backend = NamespaceBackend(warm=())
    boxes = [await backend.open(BoxSpec()) for _ in range(3)]
    for box in boxes:
        await box.exec("setsid sleep 1000 & disown; sleep 1000 &")
    running = [asyncio.create_task(box.exec("sleep 1000", timeout=1000)) for box in boxes]
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    await asyncio.gather(*running)

asyncio.run(main())
"""


def test_addresses_are_the_same_in_every_run():
    """So is what hangs on them, such as the order of a set that holds None before Python 3.12."""

    async def look(opened):
        box = await opened.open(BoxSpec())
        return (await box.exec("python3 -c 'print(id(None), id(object()))'")).output

    assert len({run(look) for _ in range(3)}) == 1


def test_nothing_survives_a_killed_client():
    mounts = mounted()
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    with client:
        assert client.stdout.readline() == b"ready\n"
        # the fork server; per box its runner, two sleeps and a shell
        wait_until(lambda: len(descendants(client.pid)) >= 1 + 3 * 4)
        family = descendants(client.pid)
        client.kill()

    def alive():
        return family & {(pid, start) for pid, (_, start) in processes().items()}

    wait_until(lambda: not alive())
    assert mounted() == mounts


def test_nothing_is_left_after_closing(family):
    async def work(backend):
        before_files = open_files()
        first = await backend.open(BoxSpec())
        await first.close()
        files, server = open_files(), family()
        assert len(server) == 1

        async def use(number):
            box = await backend.open(BoxSpec(limits=Limits(disk_mb=16)))
            result = await box.exec(f"sleep 1000 & echo {number}")
            await box.close()
            return result.output

        assert await asyncio.gather(*(use(n) for n in range(30))) == [f"{n}\n" for n in range(30)]
        assert family() == server
        assert not open_files() - files
        return before_files

    before = run(work)
    assert not family()
    assert not open_files() - before


def test_a_box_that_dies_raises_and_does_not_hang(family):
    async def work(backend):
        await (await backend.open(BoxSpec())).close()
        server = family()
        box = await backend.open(BoxSpec())
        ((runner, _),) = family() - server
        running = asyncio.create_task(box.exec("sleep 1000", timeout=1000))
        await asyncio.sleep(0.2)
        os.kill(runner, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await running
        with pytest.raises(SandboxError):
            await box.read("x")
        await box.close()

    run(work)


def test_boxes_outlive_the_fork_server_which_comes_back(family):
    async def work(backend):
        box = await backend.open(BoxSpec())
        (server,) = [one for one in family() if processes()[one[0]][0] == os.getpid()]
        os.kill(server[0], signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: server not in family())
        assert (await box.exec("echo alive")).output == "alive\n"
        other = await backend.open(BoxSpec())
        assert (await other.exec("echo new")).output == "new\n"
        await box.close()

    run(work)
    assert not family()


def test_closing_the_backend_closes_its_boxes():
    async def main():
        async with backend() as opened:
            box = await opened.open(BoxSpec())
        await opened.close()
        with pytest.raises(SandboxError, match="closed"):
            await box.exec("true")
        with pytest.raises(SandboxError, match="closed"):
            await opened.open(BoxSpec())

    asyncio.run(main())


def test_an_abandoned_open_leaves_nothing(family):
    async def work(backend):
        await (await backend.open(BoxSpec())).close()
        server = family()
        for delay in (0, 0.001, 0.003, 0.006):
            opening = asyncio.create_task(backend.open(BoxSpec()))
            await asyncio.sleep(delay)
            opening.cancel()
            for box in await asyncio.gather(opening, return_exceptions=True):
                if not isinstance(box, BaseException):  # it was faster than the cancelling
                    await box.close()
        await asyncio.to_thread(wait_until, lambda: family() == server)

    run(work)


def test_a_box_answers_right_after_a_cancelled_command():
    async def work(backend):
        box = await backend.open(BoxSpec())
        for number in range(20):
            running = asyncio.create_task(box.exec("yes"))
            await asyncio.sleep(0.002 * number)
            running.cancel()
            assert (await box.exec(f"echo {number}")).output == f"{number}\n"

    run(work)


def test_a_timeout_spares_what_earlier_commands_left():
    async def work(backend):
        box = await backend.open(BoxSpec())
        await box.exec("(while :; do echo tick; sleep 0.05; done) & echo $! > pid")
        killed = await box.exec("setsid sleep 1000 & sleep 1000", timeout=0.5)
        alive = await box.exec("kill -0 $(cat pid) && cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        return killed, alive

    killed, alive = run(work)
    assert killed.timed_out
    assert alive.code == 0
    assert "sleep 1000" not in alive.output


def test_nothing_of_the_clients_environment_gets_in(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_CLIENT", "hunter2")

    async def work(backend):
        box = await backend.open(BoxSpec(env={"GIVEN": "1"}))
        return (await box.exec("env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline")).output

    output = run(work)
    assert "GIVEN=1" in output
    assert "hunter2" not in output
    assert str(PACKAGE) not in output


def test_the_keys_of_the_client_stay_behind():
    number = {"x86_64": 250}.get(os.uname().machine, 219)
    script = f"import ctypes; print(ctypes.CDLL(None).syscall({number}, 0, -3, 0))"

    async def work(backend):
        box = await backend.open(BoxSpec())
        return int((await box.exec("python3 -", stdin=script.encode())).output)

    ours = int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    assert run(work) != ours


def test_who_and_where_one_is():
    async def work(backend):
        box = await backend.open(BoxSpec())
        return (
            await box.exec("whoami; id -u; hostname; pwd; echo ~; python -c 'import os; os.openpty()'")
        ).output

    assert run(work) == "agent\n1000\nbox\n/testbed\n/home/agent\n"


@pytest.mark.parametrize(
    "workdir", ["/tmp/deep/er", "/home/agent/repo", "/home/agent", "/root/x", "/workspace/a/b"]
)
def test_where_a_workdir_may_be(workdir):
    async def work(backend):
        box = await backend.open(BoxSpec(workdir=workdir, archive=tar_of({"a": b"x"})))
        return (await box.exec("pwd; ls; touch b; python3 -c 'print(1)'; which python")).output

    assert run(work) == f"{workdir}\na\n1\n{sys.prefix}/bin/python\n"


@pytest.mark.parametrize("workdir", ["/", "/usr/src", "/etc", "relative", "/a/../b", sys.prefix, "/proc/x"])
def test_where_a_workdir_may_not_be(workdir):
    async def work(backend):
        with pytest.raises(ConfigError, match="workdir"):
            await backend.open(BoxSpec(workdir=workdir))

    run(work)


def test_an_image_is_refused():
    async def work(backend):
        with pytest.raises(ConfigError, match="--sandbox docker"):
            await backend.open(BoxSpec(image="python:3.12"))

    run(work)


def test_a_full_disk_is_an_oserror():
    async def work(backend):
        box = await backend.open(BoxSpec(limits=Limits(disk_mb=4)))
        with pytest.raises(OSError, match=r"big"):
            await box.write("big", bytes(8_000_000))
        await box.exec("rm -f big")
        await box.write("small", b"x")

    run(work)


def test_a_damaged_archive_opens_no_box(family):
    async def work(backend):
        with pytest.raises(SandboxError, match="archive"):
            await backend.open(BoxSpec(archive=b"no tar" * 1000))
        await asyncio.to_thread(wait_until, lambda: len(family()) == 1)

    run(work)


def sources():
    """The part of the package that a client needs, as files for a box."""
    parts = [
        PACKAGE / "__init__.py",
        PACKAGE / "errors.py",
        *(PACKAGE / "types").glob("*.py"),
        *(PACKAGE / "sandbox").glob("*.py"),
        *(PACKAGE / "metrics").glob("*.py"),
    ]
    return {str(path.relative_to(PACKAGE.parent)): path.read_bytes() for path in parts}


def test_a_kernel_that_refuses_is_explained():
    """Inside a box no further namespace can be made: the sentence names the other backends."""
    script = (
        b"import asyncio\nfrom patchwright.sandbox.namespace import NamespaceBackend\n"
        b"print(asyncio.run(NamespaceBackend(warm=()).available()))\n"
    )

    async def work(backend):
        box = await backend.open(BoxSpec(archive=tar_of(sources())))
        return await box.exec("python3 -", stdin=script, env={"PYTHONPATH": "/testbed"})

    result = run(work)
    assert "--sandbox docker" in result.output and "--sandbox process" in result.output
    assert "Traceback" not in result.output


ORDINARY = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from patchwright.sandbox.check import run_check
from patchwright.sandbox.check_behaviour import exit_codes, timeout_kills_the_tree
from patchwright.sandbox.check_isolation import ISOLATION
from patchwright.sandbox.namespace import NamespaceBackend

async def main():
    backend = NamespaceBackend(warm=())
    reason = await backend.available()
    if reason:
        print(reason)
        return
    for check in (exit_codes, timeout_kills_the_tree, *ISOLATION):
        result = await run_check(check, backend)
        print(result.ok, result.name, result.detail)
    await backend.close()

asyncio.run(main())
"""


def ordinary_python():
    """How to start a Python as an ordinary user, who may not reach the one of these tests."""
    who = {} if os.getuid() else {"user": 54321, "group": 54321, "extra_groups": []}
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            check = "import sys; sys.exit(sys.version_info < (3, 11))"
            if subprocess.run([python, "-c", check], cwd="/", check=False, **who).returncode == 0:
                return python, who
    pytest.skip("no Python 3.11 that an ordinary user could start")


def test_an_ordinary_user_gets_the_same_isolation_or_a_reason():
    python, who = ordinary_python()
    with tempfile.TemporaryDirectory() as tree:
        Path(tree).chmod(0o755)
        for name, content in sources().items():
            (Path(tree) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(tree) / name).write_bytes(content)
        command = [python, "-B", "-c", ORDINARY, tree]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **who)
    if "--sandbox docker" not in done.stdout:
        results = done.stdout.splitlines()
        assert len(results) > 10, done
        assert [line for line in results if not line.startswith("True")] == []
