"""kill -9 and a full disk: nothing that was promised is lost, nothing half-written is read."""

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchwright.errors import StoreError
from patchwright.store import Run
from patchwright.types import Trajectory

WRITER = Path(__file__).with_name("store_writer.py")


def killed_writer(folder: Path, mode: str, least: int, more: float) -> list[str]:
    """Start a writer, let it write `least` things and `more` seconds, kill -9 it; what it printed."""
    command = [sys.executable, str(WRITER), str(folder), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(least)]
        time.sleep(more)
        process.kill()
        lines += process.stdout.readlines()
    return [line.strip() for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("mode", ["put", "seal"])
def test_what_put_returned_from_survives_kill_9(tmp_path: Path, mode: str) -> None:
    promised: set[str] = set()
    rng = random.Random(mode)
    for _ in range(4):
        promised.update(killed_writer(tmp_path / "run", mode, 8, rng.uniform(0, 0.05)))
        reader = Run.open(tmp_path / "run")
        assert promised <= reader.keys("s", 0)
        reader.close()
    with Run.create_or_open(tmp_path / "run", {}) as run:
        found = run.get("s", 0)
        assert promised <= {t.id for t in found}
        assert all(len(t.turns) == 4 and len(t.turns[3].logprobs) == 90 for t in found)
        assert not list(run.path.rglob("*.tmp"))
        run.seal("s", 0)
        assert run.get("s", 0) == found


def test_a_folder_is_whole_after_kill_9(tmp_path: Path) -> None:
    rng = random.Random(1)
    for _ in range(4):
        killed_writer(tmp_path / "run", "folder", 5, rng.uniform(0, 0.03))
        with Run.create_or_open(tmp_path / "run", {}) as run:
            assert run.latest("weights") is not None
            for folder in (run.path / "weights").iterdir():
                contents = [file.read_text() for file in (folder / "deep").iterdir()]
                assert len(contents) == 20 and len(set(contents)) == 1


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    killed_writer(tmp_path / "run", "put", 1, 0)
    assert (tmp_path / "run" / "lock").read_text().strip().isdecimal()
    Run.create_or_open(tmp_path / "run", {}).close()


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may grow past 200 kB: what a full disk looks like to a writer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def noise(name: str, size: int) -> Trajectory:
    return Trajectory(id=name, task_id="t", patch=random.Random(name).randbytes(size).hex())


def test_a_full_disk_is_one_sentence_and_leaves_nothing_half(tmp_path: Path, small_files: None) -> None:
    with Run.create_or_open(tmp_path / "run", {}) as run:
        run.put(noise("first", 1000), stage="s", step=0, version=0)
        with pytest.raises(StoreError, match=r"could not store 50 trajectories in .*run"):
            run.put_many([noise(f"x{i}", 20_000) for i in range(50)], stage="s", step=0, version=0)
        assert run.keys("s", 0) == {"first"}
        with pytest.raises(StoreError, match=r"could not write summary.json"):
            run.write_summary({"big": "x" * 300_000})
        assert run.summary() is None
        run.put(noise("second", 1000), stage="s", step=0, version=0)
    with Run.create_or_open(tmp_path / "run", {}) as run:
        assert run.keys("s", 0) == {"first", "second"}
        assert not list(run.path.rglob("*.tmp"))


def test_a_full_disk_while_sealing_keeps_the_blobs(tmp_path: Path) -> None:
    with Run.create_or_open(tmp_path / "run", {}) as run:
        attempts = [noise(f"x{i}", 20_000) for i in range(30)]
        run.put_many(attempts, stage="s", step=0, version=0)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            with pytest.raises(StoreError, match=r"could not seal step 0 of s .*free some space"):
                run.seal("s", 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list((run.path / "trajectories").iterdir()) == []
        assert {t.id for t in run.get("s", 0)} == {t.id for t in attempts}
        run.seal("s", 0)
        assert {t.id for t in run.get("s", 0)} == {t.id for t in attempts}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root; the limit tests above run anyway")
def test_no_space_left_on_device(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], check=True)
    try:
        with Run.create_or_open(disk / "run", {}) as run:
            run.put(noise("first", 1000), stage="s", step=0, version=0)
            with pytest.raises(StoreError, match=r"is full|No space.*free some space"):
                run.put_many([noise(f"x{i}", 20_000) for i in range(50)], stage="s", step=0, version=0)
            assert run.get("s", 0) == [noise("first", 1000)]
    finally:
        subprocess.run(["umount", disk], check=True)
