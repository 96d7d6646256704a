"""Every command of docs/data.md, run from top to bottom."""

import json
from pathlib import Path

import pytest
from tests.e2e.conftest import patchwright
from tests.e2e.test_docs import commands
from tests.recipes.sft_parts import make_model, make_run

pytestmark = pytest.mark.e2e


def test_the_data_page_runs_from_top_to_bottom(tmp_path: Path):
    make_run(tmp_path / "runs" / "rollout", messages=True)
    model = str(make_model(tmp_path / "model"))
    for command in commands("docs/data.md"):
        done = patchwright(*[model if word == "DIR" else word for word in command], cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
    adapter = tmp_path / "runs" / "lora" / "weights" / "v1" / "adapter" / "adapter_config.json"
    assert json.loads(adapter.read_text())["r"] == 8
