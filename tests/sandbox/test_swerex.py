"""Boxes by swe-rex against its real server: the conformance suite, and what goes wrong far away."""

import asyncio
import hashlib
import os
import signal
import time
from pathlib import Path

import pytest
from swerex_boxes import open_servers

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox.base import BoxSpec, Resident
from patchwright.sandbox.check import CHECKS, run_check
from patchwright.sandbox.check_isolation import ISOLATION
from patchwright.sandbox.check_tools import tar_of
from patchwright.sandbox.swerex import SwerexBackend

AT_ONCE = 4


@pytest.fixture(scope="module")
def servers():
    with open_servers() as servers:
        yield servers


def run(servers, work, **options):
    async def main():
        backend = SwerexBackend(servers.deploy, **options)
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


def gone(pid):
    """A process that was killed is not dead at once."""
    status = Path(f"/proc/{pid}/stat")
    for _ in range(1200):
        try:
            if status.read_text().split()[2] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_the_boxes_conform(servers):
    """All checks but those of isolation, some at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def work(backend):
        async def one(check):
            async with slots:
                return await run_check(check, backend)

        return await asyncio.gather(*(one(check) for check in CHECKS))

    results = run(servers, work)
    assert [(result.name, result.detail) for result in results if not result.ok] == []
    assert {result.name for result in results if result.skipped} == {check.__name__ for check in ISOLATION}


def test_a_command_longer_than_a_call_is_waited_for(servers):
    async def work(backend):
        box = await backend.open(BoxSpec())
        heard = []
        command = "for i in 1 2 3; do echo $i; sleep 0.4; done; exit 3"
        loud = await box.exec(command, on_output=heard.append)
        quiet = await box.exec("sleep 1; echo done")
        late = await box.exec("echo early; sleep 60", timeout=3)
        return loud, heard, quiet, late

    loud, heard, quiet, late = run(servers, work, piece=0.2)
    assert (loud.code, loud.output, b"".join(heard)) == (3, "1\n2\n3\n", b"1\n2\n3\n")
    assert len(heard) > 1  # told while it ran
    assert (quiet.code, quiet.output) == (0, "done\n") and quiet.seconds > 1
    assert late.timed_out and late.output == "early\n"


def test_a_server_that_dies_under_a_command_voids_the_attempt(servers):
    async def work(backend):
        box = await backend.open(BoxSpec())
        running = asyncio.create_task(box.exec("sleep 600", timeout=600))
        await asyncio.sleep(0.5)
        os.kill(servers.made[-1].pid, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(SandboxError, match="is gone"):
            await running
        with pytest.raises(SandboxError):
            await box.read("x")
        return time.monotonic() - started

    assert run(servers, work) < 20


def test_a_supervisor_that_dies_voids_the_attempt(servers):
    """A command can kill it: it is a process of the box's user."""

    async def work(backend):
        box = await backend.open(BoxSpec())
        with pytest.raises(SandboxError, match="supervised"):
            await box.exec("kill -9 $PPID; sleep 600", timeout=600)

    run(servers, work)


def test_input_of_megabytes_arrives_as_it_is(servers):
    content = os.urandom(5_000_000)

    async def work(backend):
        box = await backend.open(BoxSpec())
        return await box.exec("sha256sum", stdin=content)

    assert run(servers, work).output.split()[0] == hashlib.sha256(content).hexdigest()


def test_a_command_may_empty_the_temporary_folder(servers):
    async def work(backend):
        box = await backend.open(BoxSpec())
        await box.exec("rm -rf /tmp/* /tmp/.[a-z]*")
        return await box.exec("echo fine")

    assert run(servers, work).output == "fine\n"


def test_a_fork_has_none_of_what_was_removed(servers):
    """Also not of what every new box of the image has."""

    async def work(backend):
        box = await backend.open(BoxSpec(workdir="/usr/share/doc/bash"))  # as if the image had the repository
        before = (await box.exec("ls | wc -l; rm -r *; echo new > only")).output
        fork = await box.fork()
        return before, (await fork.exec("ls")).output

    before, after = run(servers, work)
    assert int(before) > 1 and after == "only\n"


def test_what_is_mounted_into_a_box_is_neither_copied_nor_removed(servers):
    """It may be a volume that many boxes have."""

    async def work(backend):
        box = await backend.open(BoxSpec())
        mounted = await box.exec("mkdir ~/cache && mount -t tmpfs none ~/cache && touch ~/cache/shared ~/own")
        fork = await box.fork()
        await box._ask({"op": "restore"}, tar_of({}))
        shown = [await one.exec("ls ~ ~/cache", cwd="/") for one in (fork, box)]
        return mounted, *(result.output for result in shown)

    mounted, fork, box = run(servers, work)
    assert mounted.code == 0, mounted.output
    assert "own" in fork and "shared" not in fork
    assert "shared" in box and "own" not in box


def test_boxes_end_with_their_backend(servers):
    async def work(backend):
        one = await backend.open(BoxSpec())
        pids = [servers.made[-1].pid]
        await backend.open(BoxSpec())
        pids.append(servers.made[-1].pid)
        await one.exec("setsid sleep 1000 > /dev/null 2>&1 &")
        await one.close()
        first_is_gone = gone(pids[0])
        await backend.close()
        await backend.close()
        with pytest.raises(SandboxError, match="closed"):
            await backend.open(BoxSpec())
        return first_is_gone, pids

    first_is_gone, pids = run(servers, work)
    assert first_is_gone and all(gone(pid) for pid in pids)


def test_a_cancelled_opening_leaves_no_server(servers):
    async def work(backend):
        opening = asyncio.create_task(backend.open(BoxSpec()))
        await asyncio.sleep(0.05)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        return opening.cancelled()

    made = len(servers.made)
    assert run(servers, work)
    assert all(gone(deployment.pid) for deployment in servers.made[made:] if deployment.pid)


def test_the_image_of_a_task_reaches_the_deployment(servers):
    async def work(backend):
        for image in ("host", "python:3.12"):
            await (await backend.open(BoxSpec(image=image))).close()

    run(servers, work)
    assert [deployment.image for deployment in servers.made[-2:]] == [None, "python:3.12"]


def test_what_needs_this_machine_is_refused(servers):
    async def work(backend):
        resident = Resident(command="true", python="/opt/kit/python", program="/opt/kit/main.py")
        with pytest.raises(ConfigError, match="agent outside"):
            await backend.open(BoxSpec(mounts={"/opt/kit": "/usr"}))
        box = await backend.open(BoxSpec(resident=resident))
        with pytest.raises(ConfigError, match="agent outside"):
            await box.listen(lambda connection: asyncio.sleep(0))

    run(servers, work)


def test_a_wrong_token_is_an_infrastructure_fault(servers):
    def deploy(image):
        deployment = servers.deploy(image)
        started = deployment.start

        async def start():
            await started()
            deployment.runtime._config.auth_token = "wrong"

        deployment.start = start
        return deployment

    async def main():
        backend = SwerexBackend(deploy)
        try:
            with pytest.raises(SandboxError, match="answered"):
                await backend.open(BoxSpec())
        finally:
            await backend.close()

    asyncio.run(main())
    assert gone(servers.made[-1].pid)
