"""Closing a box: once however many ask, and again when it could not be removed."""

import asyncio
import subprocess
import sys

import pytest
from tests.descriptors import open_files

from patchwright.errors import SandboxError
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.box import Box
from patchwright.sandbox.docker_container import container
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Exec


class StubbornBox(Box):
    """Its removal takes a moment, and fails `failures` times."""

    def __init__(self, failures=0):
        super().__init__(BoxSpec())
        self.failures = failures
        self.endings = 0

    async def fork(self):
        raise NotImplementedError

    async def listen(self, serve, *, port=0):
        raise NotImplementedError

    async def read(self, path):
        raise NotImplementedError

    async def write(self, path, data, *, mode=0o644):
        raise NotImplementedError

    async def _run(self, command):
        return Exec(code=0, output="")

    async def _end(self):
        self.endings += 1
        await asyncio.sleep(0.01)
        if self.endings <= self.failures:
            raise SandboxError("the engine does not answer")


def test_a_box_that_could_not_be_removed_is_closed_by_the_next_call():
    async def run():
        box = StubbornBox(failures=2)
        for _ in range(2):
            with pytest.raises(SandboxError, match="engine"):
                await box.close()
            assert not box.closed
            with pytest.raises(SandboxError, match="the box is closed"):
                await box.exec("true")
        await box.close()
        await box.close()
        assert box.closed and box.endings == 3

    asyncio.run(run())


def test_everybody_who_closes_at_once_waits_for_one_end():
    async def run():
        box = StubbornBox()
        await asyncio.gather(*(box.close() for _ in range(5)))
        assert box.closed and box.endings == 1

    asyncio.run(run())


def test_a_close_that_was_cancelled_is_done_by_the_next():
    async def run():
        box = StubbornBox()
        closing = asyncio.create_task(box.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert not box.closed
        await box.close()
        assert box.closed and box.endings == 2

    asyncio.run(run())


def test_a_namespace_box_whose_close_was_cancelled_is_gone_after_the_next():
    """With its processes, its descriptors and its control groups."""

    async def run():
        backend = NamespaceBackend()
        try:
            await (await backend.open(BoxSpec())).close()  # what is opened once for all
            before = open_files()
            box = await backend.open(BoxSpec())
            closing = asyncio.create_task(box.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            await box.close()
            assert box.closed and not open_files() - before
        finally:
            await backend.close()

    asyncio.run(run())


def test_a_container_to_which_no_program_comes_ends():
    """Its stdin stays open when its engine dies and forgets it."""
    entrypoint = container(BoxSpec(), "any", "run")["Entrypoint"]
    command = [sys.executable, *entrypoint[1:-1], "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.wait(30) == 1
