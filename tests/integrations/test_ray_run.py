"""Reinforcement learning over the machines of a real Ray cluster, and kill -9 of all in it but the driver."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.conftest import PATCHWRIGHT
from tests.e2e.test_kill_rl import ALGORITHM, attempts, finish, kill_when, trained_in, weights
from tests.integrations.ray_cluster import Machines, actors, leftovers, machines
from tests.metrics.otlp_receiver import Received, attributes, collector
from tests.recipes.rl_parts import SETTINGS, toml, write_model, write_small_tasks

from patchwright.errors import ConfigError
from patchwright.recipes.progress import View
from patchwright.recipes.rl import policy_samples, run_rl
from patchwright.recipes.settings import Settings
from patchwright.recipes.site import Wanted
from patchwright.store import Run
from patchwright.train.trainer import Trainer

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster() -> Iterator[Machines]:
    with machines(2) as made:
        yield made


def tables(cluster: Machines, *, ranks: int = 1, **rl: object) -> dict[str, dict[str, Any]]:
    """A configuration of one engine and one driver on each machine."""
    train = {**SETTINGS["rl"]["train"], "device": "cpu", "ranks": ranks}
    place = {"use": "ray", "address": cluster.address, "nodes": 2, "gpus_per_node": 0, "engines": 2}
    return {
        "rl": {**SETTINGS["rl"], "algorithm": ALGORITHM, **rl, "train": train},
        "line": {**SETTINGS["line"], "engine": {"cache_mb": 0}},
        "cluster": place,
    }


def start(folder: Path) -> tuple[Path, Path]:
    """A model and tasks beside a run's folder."""
    return write_model(folder.with_name("v0")), write_small_tasks(folder.with_suffix(".jsonl"))


def retrained(config: Settings, folder: Path, steps: int) -> list[str]:
    """The groups that were trained; what they, once each, in order, make of the model is in `again`."""
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
    """By the command; its driver is killed on the way, and the same command goes on."""
    from safetensors.numpy import load

    given, folder = tables(cluster, ranks=2), tmp_path / "run"
    (model, tasks), file = start(folder), tmp_path / "rl.toml"
    words = ["train", "rl", "--model", model, "--tasks", tasks, "--run", folder, "--config", file]
    command = [str(PATCHWRIGHT), *map(str, words)]
    with collector() as received:
        given["metrics"] = {"sinks": ["otel"], "otel_endpoint": received.url}
        file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in given.items()))
        kill_when(command, lambda: attempts(folder, 1) >= 1)
        finish(command)
    refuse_lost_spans(received)
    config = Settings.model_validate(given)
    assert len(retrained(config, folder, 2)) == 4
    ours, again = load(weights(folder, 2)), load((tmp_path / "again" / "model.safetensors").read_bytes())
    assert all(abs(ours[name] - again[name]).max() < 1e-5 for name in again), "two ranks compute as one"
    assert not leftovers(), "nothing is left on any machine"


def refuse_lost_spans(received: Received) -> None:
    """The drivers send what their attempts did, and the steps say which they trained on."""
    made = received.named("attempt")
    assert made and all({"box", "model", "grade"} <= set(received.below(root)) for root in made)
    trained = {group for step in received.named("step") for group in attributes(step)["patchwright.groups"]}
    assert {attributes(root)["patchwright.group"] for root in made} & trained


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
    from patchwright.integrations.ray.site import open_ray

    config, folder = Settings.model_validate(tables(cluster, steps=4)), tmp_path / "run"
    model, tasks = start(folder)
    killer = Killer(
        (lambda: attempts(folder, 1) >= 1, lambda: kill(actors("Roller")[0])),
        (lambda: attempts(folder, 2) >= 1, lambda: kill(actors("EngineActor")[0])),
        (lambda: attempts(folder, 3) >= 1, lambda: kill(actors("RankActor")[0])),
        (lambda: attempts(folder, 4) >= 1, lambda: kill(actors("RankActor")[0].parent())),  # a machine
    )
    killer.start()
    site = open_ray(config.cluster)
    asyncio.run(run_rl(config.rl, config.line, tasks, model, folder, View(), site=site))
    assert killer.done == 4, "all was killed while it ran"
    groups = retrained(config, folder, 4)
    assert len(groups) == len(set(groups)) == 8
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights(folder, 4)
    with Run.open(folder) as made:
        assert [mark.step for mark in made.marks("rl")] == [1, 2, 3, 4]
        assert sorted(groups) == sorted({entry.group for entry in made.entries(stage="rl")})


def test_a_cluster_without_room_is_told_in_a_sentence(cluster: Machines, tmp_path: Path):
    from patchwright.integrations.ray.site import open_ray

    given = Settings.model_validate(tables(cluster))
    crowded = given.cluster.model_copy(update={"drivers": 99, "placement_seconds": 0.5})
    said: list[str] = []
    wanted = Wanted(
        line=given.line, train=given.rl.train, model=tmp_path, keep=lambda *_: None, say=said.append
    )

    async def go() -> None:
        async with open_ray(crowded)(wanted):
            raise AssertionError("there was room")

    with pytest.raises(ConfigError, match="no room for this run"):
        asyncio.run(go())
    assert said and "CPUs" in said[0]
