"""kill -9 at any station: no graded attempt is lost, none is trained twice, nothing is left running."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from tests.e2e.conftest import PATCHWRIGHT, lives, patchwright

from patchwright.errors import StoreError
from patchwright.store import Run

pytestmark = pytest.mark.e2e
TINY = Path(__file__).with_name("tiny.toml")


def stored(run: Path) -> dict[str, object]:
    if (run / "run.db").exists():
        with contextlib.suppress(StoreError), Run.open(run) as opened:  # it may be in the making
            return {entry.id: (entry.stage, entry.step, entry.outcome) for entry in opened.entries()}
    return {}


def kill_at(run: Path, stage: str) -> dict[str, object]:
    """Start the quickstart, kill it as soon as it has stored something under `stage`; what it had stored."""
    process = subprocess.Popen(
        [PATCHWRIGHT, "quickstart", "--run", run, "--config", TINY],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        children = psutil.Process(process.pid).children(recursive=True) or children
        if any(where[0].startswith(stage) for where in stored(run).values()):
            break
        time.sleep(0.05)
    before = stored(run)
    assert process.poll() is None, "it was done before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not any(map(lives, alive)), "a child outlived its run"
    return before


def test_a_run_killed_in_every_stage_comes_to_the_same_end(tmp_path: Path):
    run = tmp_path / "run"
    for stage in ("expert", "rl", "eval-rl"):
        before = kill_at(run, stage)
        after = stored(run)
        assert before.items() <= after.items(), f"lost in {stage}"
    done = patchwright("quickstart", "--run", run, "--config", TINY)
    assert done.returncode == 0, done.stderr
    with Run.open(run) as opened:
        assert [mark.step for mark in opened.marks("rl")] == [1, 2, 3]
        assert all(len(opened.entries(stage="rl", step=step)) == 4 for step in (1, 2, 3))
        assert opened.summary() is not None


def test_ctrl_c_leaves_nothing_and_says_how_to_go_on(tmp_path: Path):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [PATCHWRIGHT, "quickstart", "--run", run, "--config", TINY], stderr=subprocess.PIPE, text=True
    )
    while not any(where[0] == "expert" for where in stored(run).values()):
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "same command" in said
    assert not any(map(lives, psutil.wait_procs(children, timeout=60)[1]))
