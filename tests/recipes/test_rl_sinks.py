"""`train rl` with every sink that needs no account: figures of its steps, spans of their parts."""

import subprocess
import sys
from pathlib import Path

from tests.fleet.pool_processes import free_port
from tests.metrics.otlp_receiver import attributes, collector
from tests.metrics.test_sinks import events
from tests.recipes.rl_parts import SETTINGS, toml, write_model, write_small_tasks

from patchwright.metrics import Metrics


def test_a_run_that_trains_tells_its_sinks(tmp_path: Path):
    run, tasks = tmp_path / "run", write_small_tasks(tmp_path / "tasks.jsonl")
    model, file = write_model(tmp_path / "v0"), tmp_path / "run.toml"
    with collector() as received:
        metrics = {
            "sinks": ["tensorboard", "prometheus", "otel"],
            "otel_endpoint": received.url,
            "prometheus_port": free_port(),
        }
        given = {"rl": {**SETTINGS["rl"], "steps": 1}, "line": SETTINGS["line"], "metrics": metrics}
        file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in given.items()))
        words = ["train", "rl", "--model", model, "--run", run, "--tasks", tasks, "--config", file]
        process = [sys.executable, "-m", "patchwright.cli", *map(str, words)]
        done = subprocess.run(process, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "sink" not in done.stderr
    (row,) = Metrics(run / "metrics.jsonl").read("rl")
    drawn = {tag: value for tag, _, value in events(run / "tensorboard")}
    assert drawn["rl/reward"] == row["reward"] and drawn["rl/attempts"] == 6
    (step,) = received.named("step")
    below = received.below(step)
    assert below[0] == "collect" and below[-2:] == ["load", "compare"] and "train" in below
    attempts = received.named("attempt")
    groups = sorted({attributes(root)["patchwright.group"] for root in attempts})
    assert len(groups) == 2, "what a step trained on is found by its groups"
    assert attributes(step) == {
        "patchwright.stage": "rl",
        "patchwright.step": 1,
        "patchwright.groups": groups,
    }
    assert len(attempts) == 6 and step.trace_id not in {root.trace_id for root in attempts}
    assert {"box", "model", "grade"} <= set(received.below(attempts[0]))
    assert "tensorboard" not in (run / "config.json").read_text(), "sinks may change when a run is resumed"
