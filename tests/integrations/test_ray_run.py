"""Reinforcement learning over the machines of a real Ray cluster, and kill -9 of all in it but the driver."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.test_kill_rl import ALGORITHM, attempts, trained_in, weights
from tests.integrations.ray_cluster import Machines, actors, leftovers, machines
from tests.recipes.rl_parts import SETTINGS, write_model, write_small_tasks

from patchwright.recipes.progress import View
from patchwright.recipes.rl import policy_samples, run_rl
from patchwright.recipes.settings import Settings
from patchwright.store import Run
from patchwright.train.trainer import Trainer

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster() -> Iterator[Machines]:
    with machines(2) as made:
        yield made


def settings(cluster: Machines, *, ranks: int = 1, **rl: object) -> Settings:
    train = {**SETTINGS["rl"]["train"], "device": "cpu", "ranks": ranks}
    return Settings.model_validate(
        {
            "rl": {**SETTINGS["rl"], "algorithm": ALGORITHM, **rl, "train": train},
            "line": {**SETTINGS["line"], "engine": {"cache_mb": 0}},
            "cluster": {
                "use": "ray",
                "address": cluster.address,
                "nodes": 2,
                "gpus_per_node": 0,
                "engines": 2,
            },
        }
    )


def run(config: Settings, folder: Path) -> None:
    """`train rl` on the cluster, driven from this process."""
    from patchwright.integrations.ray.site import open_ray

    model, tasks = write_model(folder.with_name("v0")), write_small_tasks(folder.with_suffix(".jsonl"))
    asyncio.run(run_rl(config.rl, config.line, tasks, model, folder, View(), site=open_ray(config.cluster)))


def retrained(config: Settings, folder: Path, steps: int) -> list[str]:
    """The groups that were trained; what they, each once and in this order, make of the model is in `again`."""
    trainer, groups = Trainer(folder.with_name("v0"), config.rl.train.model_copy(update={"ranks": 1})), []
    for step in range(1, steps + 1):
        batch = trained_in(folder, step)
        trainer.step(policy_samples(batch, config.rl), loss=config.rl.method.loss)
        groups += sorted({t.group for t in batch})
        assert {turn.version for t in batch for turn in t.turns} == {step - 1}, (
            "sampled by the weights it trained"
        )
    trainer.save_weights(folder.with_name("again"), steps)
    return groups


def test_two_steps_over_two_machines_that_share_no_disk(cluster: Machines, tmp_path: Path):
    from safetensors.numpy import load

    config, folder = settings(cluster, ranks=2), tmp_path / "run"
    run(config, folder)
    assert len(retrained(config, folder, 2)) == 4
    ours, again = load(weights(folder, 2)), load((tmp_path / "again" / "model.safetensors").read_bytes())
    assert all(abs(ours[name] - again[name]).max() < 1e-5 for name in again), "two ranks compute as one"
    assert not leftovers(), "nothing is left on any machine"


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


class Killer(threading.Thread):
    """Does one thing after the other, each as soon as the run has come so far."""

    def __init__(self, *plan: tuple[Callable[[], bool], Callable[[], None]]) -> None:
        super().__init__(daemon=True)
        self.plan, self.done = plan, 0

    def run(self) -> None:
        for reached, act in self.plan:
            while not reached():
                time.sleep(0.02)
            act()
            self.done += 1


def test_a_run_survives_the_loss_of_everything_but_its_driver(cluster: Machines, tmp_path: Path):
    config, folder = settings(cluster, steps=4), tmp_path / "run"
    killer = Killer(
        (lambda: attempts(folder, 1) >= 1, lambda: kill(actors("Roller")[0])),
        (lambda: attempts(folder, 2) >= 1, lambda: kill(actors("EngineActor")[0])),
        (lambda: attempts(folder, 3) >= 1, lambda: kill(actors("RankActor")[0])),
        (lambda: attempts(folder, 4) >= 1, lambda: kill(actors("RankActor")[0].parent())),  # a machine
    )
    killer.start()
    run(config, folder)
    assert killer.done == 4, "all was killed while it ran"
    groups = retrained(config, folder, 4)
    assert len(groups) == len(set(groups)) == 8
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights(folder, 4)
    with Run.open(folder) as made:
        assert [mark.step for mark in made.marks("rl")] == [1, 2, 3, 4]
        assert sorted(groups) == sorted({entry.group for entry in made.entries(stage="rl")})
