"""The main job: a policy learns to fix bugs it has never seen."""

import json
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.e2e.conftest import patchwright

from patchwright.render import Renderer
from patchwright.store import Run
from patchwright.types import Outcome

pytestmark = pytest.mark.e2e


def test_the_policy_after_rl_beats_the_untrained_one_beyond_luck(summary):
    stages = {stage["name"]: stage for stage in summary["stages"]}
    before, after = stages["init"]["held_out"], stages["rl"]["held_out"]
    assert before["total"] >= 150 and after["total"] >= 150
    # Were both equally able, 8 resolved attempts would all fall on one side in 1 of 256 cases.
    assert before["resolved"] == 0 and after["resolved"] >= 8
    assert [stage["name"] for stage in summary["stages"]] == ["init", "sft", "rl"]


def test_nothing_was_void(summary):
    assert sum(stage["held_out"]["void"] for stage in summary["stages"]) == 0


def test_every_trained_token_is_one_the_engine_sampled(short_run: Path):
    """Concatenated prompt and completion ids of a chain are the conversation, decoded."""
    with Run.open(short_run) as run:
        trajectory = next(run.trajectories(stage="rl", step=1, outcome=Outcome.RESOLVED))
        renderer = Renderer.load(str(short_run / "weights" / "v0"))
    ids = [token for turn in trajectory.turns for token in (*turn.prompt_ids, *turn.completion_ids)]
    text = renderer.decode(ids)
    assert all(message["content"] in text for message in trajectory.messages)
    assert all(len(turn.completion_ids) == len(turn.logprobs) for turn in trajectory.turns)
    assert max(turn.version for turn in trajectory.turns) == 4


def test_the_run_opens_with_other_peoples_tools(short_run: Path):
    parts = sorted((short_run / "trajectories").glob("rl-*.parquet"))
    assert sum(pq.read_table(part).num_rows for part in parts) == 2 * 12 * 8
    with sqlite3.connect(f"file:{short_run / 'run.db'}?mode=ro", uri=True) as index:
        assert index.execute("select count(*) from sqlite_master").fetchone()[0] > 0


def test_show_prints_the_run_and_an_attempt(short_run: Path):
    shown = patchwright("show", short_run)
    assert shown.returncode == 0 and "rl" in shown.stdout
    with Run.open(short_run) as run:
        name = run.entries(stage="eval-rl-held_out")[0].id
    attempt = patchwright("show", short_run, name)
    assert attempt.returncode == 0 and "mod.py" in attempt.stdout


def test_the_same_command_again_does_nothing_twice(short_run: Path, summary):
    config = Path(__file__).with_name("short.toml")
    again = patchwright("quickstart", "--run", short_run, "--config", config, "--json")
    assert again.returncode == 0 and json.loads(again.stdout) == summary
    with Run.open(short_run) as run:
        assert run.summary() == summary
