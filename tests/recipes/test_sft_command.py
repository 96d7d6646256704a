"""`patchwright train sft` and `import-trajectories` on small data: what is trained on, and how."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from tests.recipes.sft_parts import losses, make_model, make_run

from patchwright.errors import ConfigError
from patchwright.metrics import Metrics
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.data.conversation import plain
from patchwright.recipes.data.swegym import judged
from patchwright.recipes.data.trajectories import import_trajectories
from patchwright.recipes.progress import View
from patchwright.recipes.sft import Data, SftConfig, load_data, plan_steps, run_sft, train_sft
from patchwright.store import Run
from patchwright.train.config import TrainConfig
from patchwright.train.worker import TrainerProcess
from patchwright.types import Outcome

QUIET = View(Console(quiet=True))
TALK = [
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "ls"},
    {"role": "user", "content": "mod.py"},
    {"role": "assistant", "content": "done"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("sft-model"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("sft-data") / "run")


def test_the_same_steps_whatever_is_done(recorded, model):
    data = load_data(SftConfig(), LineConfig(), model, recorded, QUIET)
    steps, ends = plan_steps(data.train, SftConfig(epochs=2.5, batch_tokens=100))
    again, _ = plan_steps(data.train, SftConfig(epochs=2.5, batch_tokens=100))
    assert steps == again
    first, second = (
        sorted(row.trajectory_id for step in part for row in step) for part in halves(steps, ends)
    )
    assert first == second == sorted(row.trajectory_id for row in data.train)
    assert max(ends) == len(steps) and len(ends) == 3


def halves(steps, ends):
    first, second, _ = sorted(ends)
    return steps[:first], steps[first:second]


def test_resolved_attempts_only_and_none_of_the_held_out_tasks(recorded, model):
    data = load_data(SftConfig(held_out=0.25), LineConfig(), model, recorded, QUIET)
    names = [{row.trajectory_id for row in part} for part in (data.train, data.held_out)]
    assert len(names[0]) == 14 and len(names[1]) == 4 and not names[0] & names[1]
    assert names[0] | names[1] == {f"t{number}" for number in range(24) if number % 4}
    with pytest.raises(ConfigError, match="leaves one side empty"):
        load_data(SftConfig(held_out=0.001), LineConfig(), model, recorded, QUIET)
    short = load_data(SftConfig(max_length=25), LineConfig(), model, recorded, QUIET).train
    assert 0 < len(short) < 18 and all(len(row) <= 25 for row in short)
    with pytest.raises(ConfigError, match=r"longer than sft\.max_length = 3"):
        load_data(SftConfig(max_length=3), LineConfig(), model, recorded, QUIET)


def test_the_loss_on_held_out_rows_is_measured_and_they_are_not_trained_on(model, recorded, tmp_path):
    config = SftConfig(epochs=2, batch_tokens=200, warmup_steps=1, held_out=0.25, evaluate_every=2)
    data = load_data(config, LineConfig(), model, recorded, QUIET)

    async def train():
        with Run.create_or_open(tmp_path / "run", {}) as run:
            async with TrainerProcess(model, config.train) as trainer:
                before = await trainer.evaluate(data.held_out)
                await train_sft(trainer, run, data, config, QUIET)
                return before, await trainer.evaluate(data.held_out)

    before, after = asyncio.run(train())
    measured = list(Metrics(tmp_path / "run" / "metrics.jsonl").read("sft-held-out"))
    steps, ends = plan_steps(data.train, config)
    wanted = sorted({*range(2, len(steps) + 1, 2), *ends})
    assert [row["step"] for row in measured] == wanted
    assert measured[-1]["loss"] == pytest.approx(after) and before != after


def test_schedules_reach_the_optimizer(model, recorded, tmp_path):
    config = SftConfig(epochs=1, batch_tokens=150, warmup_steps=2, schedule="cosine", floor=0.1)
    asyncio.run(run_sft(config, LineConfig(), model, recorded, tmp_path / "run", QUIET))
    rates = [rate for _, (_, _, _, rate) in sorted(losses(tmp_path / "run").items())]
    peak = config.train.lr
    assert rates[0] == pytest.approx(peak / 3) and rates[2] == pytest.approx(peak)
    assert rates[2:] == sorted(rates[2:], reverse=True) and rates[-1] > 0.1 * peak


# --- messages ---------------------------------------------------------------------------------


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_of_messages_are_trained_on_unless_they_say_that_they_failed(model, tmp_path):
    rows = [{"messages": TALK}, {"messages": TALK, "resolved": False}, {"messages": json.dumps(TALK[:2])}]
    data = load_data(SftConfig(), LineConfig(), model, lines(tmp_path / "m.jsonl", *rows), QUIET)
    assert [sum(row.mask) for row in data.train] == [len("ls") + 1 + len("done") + 1, len("ls") + 1]
    parquet = tmp_path / "m.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": TALK}]), parquet)
    assert load_data(SftConfig(), LineConfig(), model, parquet, QUIET) == Data(data.train[:1], [])
    weights = asyncio.run(
        run_sft(
            SftConfig(epochs=60, warmup_steps=1, train=TrainConfig(lr=1e-2, normalise="token")),
            LineConfig(),
            model,
            tmp_path / "m.jsonl",
            tmp_path / "run",
            QUIET,
        )
    )
    last = losses(tmp_path / "run")
    assert last[max(last)][0] < 0.1 < last[0][0] and Path(weights.path).is_dir()


def test_what_cannot_be_trained_on_is_one_sentence(model, tmp_path):
    for row, why in (
        ({"text": "x"}, "no conversation in messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role 'robot'"),
        ({"messages": TALK[:1]}, "no resolved trajectory"),
    ):
        with pytest.raises(ConfigError, match=why):
            load_data(SftConfig(), LineConfig(), model, lines(tmp_path / "m.jsonl", row), QUIET)
    with pytest.raises(ConfigError, match="is not a run"):
        load_data(SftConfig(), LineConfig(), model, tmp_path, QUIET)


def test_published_sets_become_runs(model, tmp_path):
    swegym_sft = {"messages": TALK}
    sampled = {
        "instance_id": "a__b-1",
        "run_id": "r",
        "resolved": False,
        "messages": TALK,
        "test_result": {"git_patch": "diff"},
    }
    nebius = {
        "instance_id": "c__d-2",
        "trajectory": [
            {"role": "system", "text": "S"},
            {"role": "user", "text": "u"},
            {"role": "ai", "text": "a"},
        ],
        "target": True,
        "generated_patch": "diff --git",
        "exit_status": "submitted",
    }
    smith = {"instance_id": "e__f-3", "messages": json.dumps(TALK), "resolved": True, "patch": "p"}
    shares = {
        "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        "resolved": 1,
    }
    verifier = {"messages": judged(plain(TALK), resolved=False)}
    source = lines(tmp_path / "p.jsonl", swegym_sft, sampled, nebius, smith, shares, verifier, {"text": "x"})
    assert import_trajectories(str(source), tmp_path / "run", "", True, QUIET) == 6
    with Run.open(tmp_path / "run") as run:
        found = {t.task_id: t for t in run.trajectories()}
        outcomes = [entry.outcome for entry in run.entries()]
    assert outcomes.count(Outcome.RESOLVED) == 4 and outcomes.count(Outcome.UNRESOLVED) == 2
    assert found["a__b-1"].patch == "diff" and found["a__b-1"].outcome is Outcome.UNRESOLVED
    assert found["c__d-2"].exit == "submitted" and found["c__d-2"].messages[-1] == {
        "role": "assistant",
        "content": "a",
    }
    logged = [t for t in found.values() if t.messages == tuple(TALK)]
    assert len(logged) >= 3, "a verifier's log is the conversation again"
    data = load_data(SftConfig(), LineConfig(), model, tmp_path / "run", QUIET)
    assert len(data.train) == 4, "runs without tokens are tokenised by the model's template"


def test_rows_without_a_verdict_need_one(tmp_path):
    source = lines(tmp_path / "p.jsonl", {"messages": TALK})
    words = [
        sys.executable,
        "-m",
        "patchwright.cli",
        "import-trajectories",
        str(source),
        "--run",
        str(tmp_path / "r"),
    ]
    refused = subprocess.run(words, capture_output=True, text=True)
    assert refused.returncode == 2 and "give --resolved or --unresolved" in refused.stderr
    assert subprocess.run([*words, "--unresolved"], capture_output=True).returncode == 0
    with Run.open(tmp_path / "r") as run:
        assert [entry.outcome for entry in run.entries()] == [Outcome.UNRESOLVED]
