"""Process boxes: paths are mapped, folders and processes go away."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import patchwright
from patchwright.errors import ConfigError
from patchwright.sandbox import owner
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.process import ProcessBackend

SOURCE = str(Path(patchwright.__file__).parents[1])


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


def dead(pid):
    """Killed, and on a busy machine not dead at once."""
    deadline = time.monotonic() + 30
    while owner.start_time(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not owner.start_time(pid)


def test_closing_removes_the_folder_and_ends_the_processes():
    async def work(backend):
        box = await backend.open(BoxSpec())
        await box.exec("mkdir -p a/b; touch a/b/c; chmod 500 a/b; chmod 000 a")
        pid = int((await box.exec("setsid sleep 1000 > /dev/null & echo $!")).output)
        folder = Path(box.workdir).parent
        await box.close()
        assert not folder.exists()
        return pid

    assert dead(run(work))


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


LEAVES_A_BOX = """
import asyncio, os, signal
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.process import ProcessBackend

async def main():
    box = await ProcessBackend().open(BoxSpec())
    started = await box.exec("sleep 1000 >/dev/null 2>&1 & echo $!")
    print(box._root, started.output, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def left_box(folder):
    """The folder and a process of a box whose program was killed."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": SOURCE}
    program = [sys.executable, "-c", LEAVES_A_BOX]
    done = subprocess.run(program, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    root, process = done.stdout.split()
    return Path(root), int(process)


def open_one(folder):
    program = "import asyncio; from patchwright.sandbox.base import BoxSpec; "
    program += "from patchwright.sandbox.process import ProcessBackend; "
    program += "b = ProcessBackend(); asyncio.run(b.open(BoxSpec())); asyncio.run(b.close())"
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": SOURCE}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_the_next_start_removes_what_a_dead_program_left(tmp_path):
    root, process = left_box(tmp_path)
    assert root.is_dir() and owner.start_time(process)
    living = tmp_path / "patchwright-box-living"
    living.mkdir()
    (living / "owner").write_text(owner.this_program())
    open_one(tmp_path)
    assert not root.exists() and dead(process)
    assert living.is_dir()


def test_what_was_left_before_the_machine_was_started_anew_is_removed(tmp_path):
    boot, *rest, machine = json.loads(owner.this_program())
    earlier, elsewhere = tmp_path / "patchwright-box-earlier", tmp_path / "patchwright-box-elsewhere"
    for root, named in ((earlier, machine), (elsewhere, "another")):
        root.mkdir()
        (root / "owner").write_text(json.dumps([f"not {boot}", *rest, named]))
    open_one(tmp_path)
    assert elsewhere.is_dir()
    assert earlier.is_dir() == (not machine)  # nothing is known of a machine without a name
