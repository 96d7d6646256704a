"""Process boxes: paths are mapped, folders and processes go away."""

import asyncio
from pathlib import Path

import pytest

from patchwright.errors import ConfigError
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.process import ProcessBackend


def run(work):
    async def main():
        backend = ProcessBackend()
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


def test_absolute_paths_of_the_workdir_are_mapped():
    async def work(backend):
        box = await backend.open(BoxSpec(workdir="/testbed"))
        await box.write("/testbed/a/b", b"x")
        assert await box.read("a/b") == b"x"
        assert (await box.exec("ls", cwd="/testbed/a")).output == "b\n"
        assert (await box.exec("pwd", cwd="/testbed")).output.strip() == str(Path(box.workdir).resolve())
        assert (await box.exec("pwd", cwd="/")).output == "/\n"

    run(work)


def test_closing_removes_the_folder_and_ends_the_processes():
    async def work(backend):
        box = await backend.open(BoxSpec())
        await box.exec("mkdir -p a/b; touch a/b/c; chmod 500 a/b; chmod 000 a")
        pid = int((await box.exec("setsid sleep 1000 > /dev/null & echo $!")).output)
        folder = Path(box.workdir).parent
        await box.close()
        assert not folder.exists()
        return pid

    status = Path(f"/proc/{run(work)}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"  # dead, perhaps not yet reaped


def test_the_environment_is_clean(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_CLIENT", "hunter2")

    async def work(backend):
        return (await (await backend.open(BoxSpec())).exec("env")).output

    assert "hunter2" not in run(work)


def test_an_image_is_refused():
    async def work(backend):
        with pytest.raises(ConfigError, match="--sandbox docker"):
            await backend.open(BoxSpec(image="python:3.12"))

    run(work)
