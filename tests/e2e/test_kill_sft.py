"""kill -9 in the middle of a step of `train sft`: the run comes to the same weights, to the bit."""

import os
import signal
import subprocess
import time

import pytest
from tests.e2e.conftest import PATCHWRIGHT
from tests.recipes.sft_parts import losses, make_model, make_run

pytestmark = pytest.mark.e2e


def command(model, data, run, *sets):
    words = ["train", "sft", "--model", model, "--data", data, "--run", run]
    words += [word for item in sets for word in ("-s", item)]
    return [str(PATCHWRIGHT), *map(str, words)]


def files_of(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix != ".md"}


def kill_after(words, run, steps):
    """Start the command and kill it when it has taken so many steps; its trainer dies with it."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if len(losses(run)) >= steps:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"


@pytest.mark.parametrize("lora", [(), ("sft.train.lora.rank=4",)])
def test_a_run_killed_in_the_middle_of_a_step_comes_to_the_same_weights_to_the_bit(tmp_path, lora):
    model, recorded = make_model(tmp_path / "model"), make_run(tmp_path / "data")
    sets = ["sft.epochs=12", "sft.batch_tokens=60", "sft.warmup_steps=3", "sft.checkpoint_every=5"]
    sets += ["sft.train.micro_batch_tokens=30", *lora]
    assert (
        subprocess.run(command(model, recorded, tmp_path / "whole", *sets), capture_output=True).returncode
        == 0
    )
    killed = command(model, recorded, tmp_path / "killed", *sets)
    for steps in (7, 23):
        kill_after(killed, tmp_path / "killed", steps)
    assert subprocess.run(killed, capture_output=True).returncode == 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole"), "every step had the same batch"
    weights = [files_of(tmp_path / name / "weights" / "v1") for name in ("killed", "whole")]
    assert weights[0] == weights[1] and "model.safetensors" in weights[0]
    assert ("adapter_model.safetensors" in weights[0]) is bool(lora)
    assert len(list((tmp_path / "killed" / "checkpoints").iterdir())) == 2
