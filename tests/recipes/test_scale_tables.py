"""docs/scale.md has the tables that the code makes, and `bench scale` prints one."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

from patchwright.recipes.scale_tables import fill
from patchwright.train.config import TrainConfig
from patchwright.types import Sample

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_the_page_has_the_tables_as_they_are():
    page = PAGE.read_text(encoding="utf-8")
    for name in ("trainer", "engine", "update", "fleet"):
        assert f"<!-- {name} -->\n|" in page
    assert fill(page) == page, "run `python -m patchwright.recipes.scale_tables docs/scale.md`"


def test_a_token_of_a_row_travels_in_as_many_bytes_as_the_page_says():
    count = 1000
    noise = [tuple(-1 / (place + shift) for place in range(count)) for shift in (1, 2, 3)]
    logprobs, advantages, weights = noise
    row = Sample(
        token_ids=tuple(range(0, 151 * count, 151)),  # of Qwen's vocabulary
        mask=(1,) * count,
        logprobs=logprobs,
        advantages=advantages,
        weights=weights,
    )
    assert round(len(pickle.dumps(row)) / count) == 33
    assert "33 bytes a token" in PAGE.read_text(encoding="utf-8")


def test_new_weights_have_the_bytes_the_page_reckons_with(tmp_path: Path):
    """Float32, whatever the model came as."""
    from safetensors.numpy import load_file
    from tests.recipes.rl_parts import write_model

    from patchwright.train.trainer import Trainer

    Trainer(write_model(tmp_path / "v0"), TrainConfig(dtype="bfloat16")).save_weights(tmp_path / "v1", 1)
    kept = load_file(tmp_path / "v1" / "model.safetensors").values()
    assert {value.dtype.name for value in kept} == {"float32"}


def test_the_command_simulates_what_is_asked_for():
    words = ["bench", "scale", "--seconds", "5", "-s", "boxes=100", "-s", "nodes=4", "-s", "think=1"]
    run = [sys.executable, "-m", "patchwright.cli", *words]
    done = subprocess.run([*run, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["site"]["boxes"] == 100 and 10 < found["load"]["commands"] < 100
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert "100 boxes on 4 nodes" in done.stdout and "busiest" in done.stdout
    done = subprocess.run([*run, "-s", "boxs=1"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (
        2,
        "error: unknown key `boxs` in `-s boxs=1`; did you mean `boxes`?\n",
    )
