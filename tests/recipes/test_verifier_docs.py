"""Every command of docs/verifier.md, run on a toy with the names the page uses."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from tests.recipes.judge_endpoint import DOWN, UP, judging
from tests.recipes.toy_attempts import GOOD, attempt, write_toy_model

from patchwright.config import load_config
from patchwright.recipes.settings import Settings
from patchwright.store import Run
from patchwright.types import Outcome, Trajectory

PAGE = (Path(__file__).parents[2] / "docs" / "verifier.md").read_text()
HELD = "eval-rl-held_out"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def unjudged(task: int, k: int, resolved: bool, stage: str) -> Trajectory:
    made = attempt(task, k, resolved, stage)
    assert made.grade is not None
    return replace(made, grade=replace(made.grade, turn_scores=()))


def write_run(folder: Path) -> None:
    with Run.create_or_open(folder, {}) as run:
        learn = [unjudged(task, k, (task + k) % 2 == 0, "rl") for task in range(6) for k in range(4)]
        run.put_many(learn, stage="rl", step=1, version=0)
        held = [unjudged(task, k, k == 0, HELD) for task in range(20, 23) for k in range(4)]
        run.put_many(held, stage=HELD, step=0, version=1)


async def run_page(cwd: Path) -> None:
    def rule(body: dict) -> str:
        return UP if GOOD in body["messages"][1]["content"].rsplit("gave:", 1)[1] else DOWN

    async with judging(rule) as endpoint:
        for line in "".join(blocks("bash")).splitlines():
            words = [endpoint.url if word == "URL" else word for word in shlex.split(line)[1:]]
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "patchwright.cli", *words],
                cwd=cwd,
                env=os.environ | {"COLUMNS": "120"},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_the_commands_run_in_their_order(tmp_path: Path):
    run = tmp_path / "runs" / "quickstart"
    write_run(run)
    write_toy_model(run / "weights" / "v12")
    asyncio.run(run_page(tmp_path))
    report = json.loads((run / "rerank" / "rerank.json").read_text())
    assert report["tasks"] == 3 and len(report["points"]) == 4
    with Run.open(run) as opened:
        for trajectory in opened.trajectories(stage="rl"):
            last = 1.0 if trajectory.outcome is Outcome.RESOLVED else -1.0
            assert trajectory.grade is not None and trajectory.grade.turn_scores == (-1.0, last)
        for trajectory in opened.trajectories(stage=HELD):
            assert trajectory.grade is not None and None not in trajectory.grade.turn_scores


def test_the_settings_are_those_of_train_rl(tmp_path: Path):
    file = tmp_path / "rl.toml"
    file.write_text(blocks("toml")[0])
    settings = load_config(Settings, file)
    assert tomllib.loads(file.read_text()) and settings.rl.scores.judge.votes == 3
    algorithm = settings.rl.algorithm.algorithm()
    assert (algorithm.prm_coef, algorithm.verifier_coef) == (1.0, 0.5)
