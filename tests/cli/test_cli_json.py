"""`--json`: one value on stdout and nothing else, with what docs/cli.md says is in it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.recipes.sft_parts import make_run
from tests.recipes.toy_attempts import write_toy_model, write_toy_run

from patchwright.cli.reference import commands

ROW = {
    "instance_id": "psf__requests-1",
    "repo": "psf/requests",
    "version": "2.31",
    "base_commit": "c0ffee",
    "problem_statement": "Mend it.",
    "patch": "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-a\n+b\n",
    "test_patch": "",
    "FAIL_TO_PASS": "[]",
    "PASS_TO_PASS": "[]",
}
SERVERS = {"serve", "view", "gateway serve", "pool serve", "node serve"}


def said(*words: object, cwd: Path) -> dict:
    """What a command prints with `--json`."""
    command = [sys.executable, "-m", "patchwright.cli", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_command_that_comes_to_an_end_by_itself_has_it():
    without = {name for name, one in commands() if not any("--json" in option.opts for option in one.params)}
    assert without == SERVERS | {"node install"}  # that one prints a unit, with --print


def test_commands_that_make_tasks_say_which_files_have_how_many(tmp_path: Path):
    counts = [flag for count in ("sft=0", "rl=4", "held_out=0", "harder=0") for flag in ("-s", count)]
    made = said("tasks", "synth", "composed", "t", *counts, cwd=tmp_path)
    assert made["files"]["t/rl.jsonl"] == 4
    split = said("tasks", "split", "t/rl.jsonl", "a.jsonl", "b.jsonl", "--share", "0.25", cwd=tmp_path)
    assert split == {"files": {"a.jsonl": 3, "b.jsonl": 1}}
    kept = said("tasks", "filter", "t/rl.jsonl", "c.jsonl", "--gradable", cwd=tmp_path)
    assert kept == {"files": {"c.jsonl": 4}, "of": 4}
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    brought = said("tasks", "import", "rows.jsonl", "d.jsonl", cwd=tmp_path)
    assert brought["files"] == {"d.jsonl": 1} and brought["untested"] == 1 and brought["left_out"] == 0
    ids = said("tasks", "export", "d.jsonl", "--format", "ids", cwd=tmp_path)
    assert ids == {"files": {"instance_ids.txt": 1}}
    model = said("train", "new", "--tasks", "t/rl.jsonl", "--out", "m", cwd=tmp_path)
    assert model == {"model": "m"} and (tmp_path / "m" / "config.json").is_file()


def test_training_says_where_its_weights_are(tmp_path: Path):
    model, run = write_toy_model(tmp_path / "v0"), write_toy_run(tmp_path / "run")
    wanted = ["--model", model, "--data", run, "-s", "verifier.batch_tokens=4000", "--run", "verifier"]
    found = said("train", "verifier", *wanted, "-s", "verifier.prompt.max_tokens=400", cwd=tmp_path)
    assert found["run"] == "verifier" and found["version"] == 1
    assert (tmp_path / found["weights"] / "config.json").is_file()
    assert found["rows"] > 0 and "auc" in found["held_out"]


@pytest.mark.parametrize(
    ("words", "users"),
    [
        (["rl", "--preset", "swe-rl-8b-prm-5n"], {"judge 0", "engine 0", "rank 15"}),
        (["sft", "--preset", "swe-gym-32b-sft"], {"rank 0", "rank 7"}),
    ],
)
def test_a_dry_run_is_the_plan(tmp_path: Path, words: list[str], users: set[str]):
    plan = said("train", *words, "--dry-run", cwd=tmp_path)
    assert users <= {user for node in plan["placement"] for user in node["users"]}
    assert plan["model"]["parameters"] > 1e9 and plan["memory_gb"]["trainer"]["logits"] > 0
    assert (plan["memory_gb"]["engine"] is None) == (plan["boxes"] is None) == ("sft" in words)
    assert plan["step"]["computed"] > 0 and plan["step"]["context"] > 0
    assert any(line.startswith("model: none was given") for line in plan["missing"])
    assert not list(tmp_path.iterdir())


def test_an_export_says_what_it_wrote_and_what_it_left_out(tmp_path: Path):
    run = make_run(tmp_path / "run", messages=True)
    rows = said("export", "sft", run, "-o", "a.jsonl", "--benchmark", "", cwd=tmp_path)
    assert rows["path"] == "a.jsonl" and rows["rows"] == rows["attempts"] == 18
    assert sum(rows["left_out"].values()) == 6
    folders = said("export", "artifacts", run, "-o", "folders", cwd=tmp_path)
    assert folders == {"path": "folders", "attempts": 24}
    card = said("export", "hub", run, "-o", "set", "--kind", "slime", cwd=tmp_path)
    assert card["path"] == "set" and card["rows"] == 24 and card["url"] is None
    again = said("import-trajectories", "a.jsonl", "--run", "again", "--resolved", cwd=tmp_path)
    assert again == {"run": "again", "attempts": 18}
