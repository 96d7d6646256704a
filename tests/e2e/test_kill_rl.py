"""kill -9 of a whole `train rl`, in the middle of a round and of an update: the same next batch, the same
weights to the bit, every group trained once."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from tests.e2e.conftest import PATCHWRIGHT, lives
from tests.recipes.rl_parts import SETTINGS, toml, write_model, write_small_tasks

from patchwright.config import load_config
from patchwright.errors import StoreError
from patchwright.recipes.rl import RlConfig, policy_samples
from patchwright.recipes.settings import Settings
from patchwright.store import Run
from patchwright.train.trainer import Trainer
from patchwright.types import Trajectory

pytestmark = pytest.mark.e2e
T = TypeVar("T")

ALGORITHM = {"length_coef": 1.0, "entropy_coef": 0.01, "kl": "k3"}
"""A gradient though nothing is ever resolved; the reference makes an update long enough to be hit."""


def command(folder: Path, model: Path, *, concurrency: int, **rl: object) -> list[str]:
    """`train rl` into a folder, on settings written beside it."""
    given = {"rl": {**SETTINGS["rl"], "algorithm": ALGORITHM, **rl}, "line": dict(SETTINGS["line"])}
    given["line"] |= {"concurrency": concurrency, "engine": {"cache_mb": 0}}
    file, tasks = folder.with_suffix(".toml"), write_small_tasks(folder.with_suffix(".jsonl"))
    file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in given.items()))
    words = ["train", "rl", "--model", model, "--tasks", tasks, "--run", folder, "--config", file]
    return [str(PATCHWRIGHT), *map(str, words)]


def config_of(words: list[str]) -> RlConfig:
    return load_config(Settings, Path(words[-1])).rl


def finish(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def kill_when(words: list[str], reached: Callable[[], bool]) -> None:
    """Start the command, kill it as soon as it has come so far; nothing of it goes on."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline and not reached():
        time.sleep(0.002)
    assert process.poll() is None, "it was done before it could be killed"
    os.kill(process.pid, signal.SIGSTOP)  # looking for children takes longer than an update
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not any(map(lives, psutil.wait_procs(children, timeout=60)[1])), "a child outlived its run"


def attempts(folder: Path, step: int) -> int:
    """How many of a round are stored."""
    return len(peek(folder, lambda run: run.entries(stage="rl", step=step)) or ())


def peek(folder: Path, look: Callable[[Run], T]) -> T | None:
    """Into a run that another process writes; None while there is none, or it is being made."""
    if (folder / "run.db").exists():
        with contextlib.suppress(StoreError), Run.open(folder) as run:
            return look(run)
    return None


def trained_in(folder: Path, step: int) -> list[Trajectory]:
    """What a step trained on: the groups the journal names, or those of its own round."""
    with Run.open(folder) as run:
        batches = {mark.step: mark.info["groups"] for mark in run.marks("rl-batch")}
        if step not in batches:
            return run.get("rl", step)
        return [t for t in run.trajectories(stage="rl") if t.group in batches[step]]


def weights(folder: Path, version: int) -> bytes:
    return (folder / "weights" / f"v{version}" / "model.safetensors").read_bytes()


def test_a_killed_run_comes_to_the_same_batches_and_weights_to_the_bit(tmp_path: Path):
    """Synchronous. One attempt at a time, as the arithmetic of a batch depends on its size."""
    model = write_model(tmp_path / "v0")
    rounds = {"concurrency": 1, "steps": 2, "samples_per_task": 2}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(command(whole, model, **rounds))
    words = command(killed, model, **rounds)
    kill_when(words, lambda: attempts(killed, 1) >= 1)
    assert attempts(killed, 1) < 4, "in the middle of the round"
    kill_when(words, lambda: attempts(killed, 1) == 4)
    assert not (killed / "checkpoints" / "1").exists(), "in the middle of the update"
    finish(words)
    for step in (1, 2):
        batches = [policy_samples(trained_in(folder, step), config_of(words)) for folder in (whole, killed)]
        assert batches[0] == batches[1] and batches[0]
        assert weights(killed, step) == weights(whole, step)
    assert weights(whole, 2) != weights(whole, 1) != (model / "model.safetensors").read_bytes()


def test_every_group_is_trained_once_whatever_was_killed_and_ran_ahead(tmp_path: Path):
    """What the journal says was trained, trained again without a break, gives the run's weights."""
    model, killed = write_model(tmp_path / "v0"), tmp_path / "killed"
    rounds = {"steps": 3, "max_staleness": 1, "train": {"lr": 1e-2}}
    words = command(killed, model, concurrency=12, **rounds)
    kill_when(words, lambda: attempts(killed, 1) + attempts(killed, 2) >= 2)
    kill_when(words, lambda: (killed / "checkpoints" / "1").exists())  # trained, and not yet loaded
    finish(words)
    config, versions, groups = config_of(words), set(), []
    trainer = Trainer(model, config.train)
    for step in (1, 2, 3):
        batch = trained_in(killed, step)
        samples = policy_samples(batch, config)
        assert samples, "a round that trains on nothing shows nothing"
        trainer.step(samples, loss=config.method.loss)
        groups += sorted({t.group for t in batch})
        versions |= {step - 1 - turn.version for t in batch for turn in t.turns}
    trainer.save_weights(tmp_path / "again", 3)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights(killed, 3)
    with Run.open(killed) as run:
        assert sorted(groups) == sorted({entry.group for entry in run.entries(stage="rl")})
        assert [mark.step for mark in run.marks("rl")] == [1, 2, 3]
    assert len(groups) == len(set(groups)) == 6 and versions == {0, 1}, "some tokens were a version old"
