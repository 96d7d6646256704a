"""`train rl` with a judge and with a verifier, from the command to the advantages: what they say is in the
reward, and what they fail to say is in nothing."""

import asyncio
import io
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest
from pydantic import ValidationError
from rich.console import Console
from starlette.responses import JSONResponse
from tests.recipes.judge_endpoint import DOWN, UP, judging
from tests.recipes.rl_parts import SETTINGS, small_tasks, toml, write_model, write_small_tasks

from patchwright.errors import ConfigError
from patchwright.metrics import Metrics
from patchwright.recipes.policy import turn_scores
from patchwright.recipes.progress import View
from patchwright.recipes.rl import RlConfig, choose, policy_rewards, policy_samples, run_rl
from patchwright.recipes.settings import Settings
from patchwright.recipes.verifier_model import verifier_score
from patchwright.recipes.verifier_prompt import About, PromptConfig, write_about
from patchwright.store import Run
from patchwright.types import Grade, GradeState, Trajectory, Turn


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "v0")


def about(body: dict) -> str:
    """The reply that is judged, in the judge's question."""
    step = body["messages"][1]["content"].rsplit("the current one:", 1)[1].split("gave:")[0]
    return step.split("\n", 2)[2].rsplit("\nEND", 1)[0]


def opinion(text: str) -> float | None:
    """What the judge thinks of a reply; of some it cannot say."""
    return {0: None, 1: 1.0}.get(len(text.encode("utf-8", "replace")) % 3, -1.0)


def rule(body: dict):
    vote = opinion(about(body))
    return JSONResponse({"error": "I am broken"}, 422) if vote is None else UP if vote > 0 else DOWN


def settings(**rl: object) -> Settings:
    return Settings.model_validate({**SETTINGS, "rl": {**SETTINGS["rl"], **rl}})


async def reinforce(folder: Path, model: Path, given: Settings) -> str:
    """Run it; what it showed."""
    shown = io.StringIO()
    tasks = write_small_tasks(folder.with_suffix(".jsonl"))
    view = View(Console(file=shown))
    await run_rl(given.rl, given.line, tasks, model, folder, view)
    return shown.getvalue()


def rounds(folder: Path) -> list[list[Trajectory]]:
    with Run.open(folder) as run:
        return [run.get("rl", step) for step in (1, 2)]


def expected_rewards(rollouts: list[Trajectory], coef: float) -> dict[str, float]:
    """Outcome (here always -1) + coef * mean score; who has none gets the mean of the group's others."""
    groups = defaultdict(list)
    for trajectory in rollouts:
        groups[trajectory.group].append(trajectory)
    found = {}
    for members in groups.values():
        own = {t.id: fmean(s) if (s := turn_scores(t).values()) else None for t in members}
        known = [score for score in own.values() if score is not None]
        usual = fmean(known) if known else 0.0
        found |= {name: -1 + coef * (usual if score is None else score) for name, score in own.items()}
    return found


async def command(folder: Path, model: Path, rl: dict) -> list[dict]:
    """`train rl` into `folder` with the judge; what that was asked."""
    async with judging(rule) as endpoint:
        rl["scores"]["judge"]["base_url"] = endpoint.url
        given = {"rl": {**SETTINGS["rl"], **rl}, "line": SETTINGS["line"]}
        file, tasks = folder.with_suffix(".toml"), write_small_tasks(folder.with_suffix(".jsonl"))
        file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in given.items()))
        words = ["train", "rl", "--model", model, "--run", folder, "--tasks", tasks, "--config", file]
        process = [sys.executable, "-m", "patchwright.cli", *map(str, words)]
        done = await asyncio.to_thread(subprocess.run, process, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return endpoint.bodies


def test_a_judges_votes_are_in_reward_and_advantages_and_its_faults_are_in_none(tmp_path: Path, model: Path):
    """The whole command, with a judge that breaks at every third reply."""
    algorithm = {"prm_coef": 0.5}
    rl = {"scores": {"judge": {"votes": 2, "patience": 0.1}}, "algorithm": algorithm}
    asked = asyncio.run(command(tmp_path / "run", model, rl))
    records = list(Metrics(tmp_path / "run" / "metrics.jsonl").read("rl"))
    coef, silent, spoken = 0.5, 0, 0
    for rollouts, record in zip(rounds(tmp_path / "run"), records, strict=True):
        for trajectory in rollouts:
            told = [opinion(turn.text) for turn in trajectory.turns]
            assert list(trajectory.grade.turn_scores) == told
            silent, spoken = silent + told.count(None), spoken + len(told) - told.count(None)
        wanted = expected_rewards(rollouts, coef)
        given = RlConfig.model_validate(rl)
        assert sorted(policy_rewards(rollouts, given)) == pytest.approx(sorted(wanted.values()))
        assert record["reward"] == pytest.approx(fmean(wanted.values()))
        assert min(wanted.values()) >= -1.5, "a fault is no -1 of the judge's"
        for row in policy_samples(rollouts, given):
            group = [value for name, value in wanted.items() if name[:-1] == row.trajectory_id[:-1]]
            value = (wanted[row.trajectory_id] - fmean(group)) / (stdev(group) + 1e-4)
            (advantage,) = {a for a, w in zip(row.advantages, row.weights, strict=True) if w}
            assert advantage == pytest.approx(value)
        scores = [fmean(s) for t in rollouts if (s := turn_scores(t).values())]
        assert record["turn_score"] == pytest.approx(fmean(scores))
        assert record["turn_scored"] == len(scores) / len(rollouts)
    assert silent > 2 and spoken > 2, "both kinds were seen"
    assert records[-1]["votes_valid"] == 2 * spoken and records[-1]["votes_failed"] == 2 * silent
    assert records[-1]["updates"] == 1 and len(asked) == 1 + 2 * (silent + spoken)


def test_step_wise_with_a_judge_and_a_verifier(tmp_path: Path, model: Path):
    """Turns have the judge's word, attempts the verifier's; an attempt that was graded when the run was
    stopped, and not yet scored, gets its scores when the run goes on."""
    verifier = tmp_path / "verifier"
    shutil.copytree(model, verifier)
    write_about(verifier, About(prompt=PromptConfig(view="chat", max_tokens=400), tasks=(), share_yes=0.5))

    async def main() -> None:
        async with judging(rule) as endpoint:
            scores = {"judge": {"base_url": endpoint.url, "votes": 1}, "verifiers": [str(verifier)]}
            given = settings(steps=1, algorithm={"name": "step", "verifier_coef": 0.5}, scores=scores)
            begin(tmp_path / "run", model, given)
            await reinforce(tmp_path / "run", model, given)

    asyncio.run(main())
    (record,) = Metrics(tmp_path / "run" / "metrics.jsonl").read("rl")
    rollouts, _ = rounds(tmp_path / "run")
    found = [verifier_score(t) for t in rollouts]
    assert None not in found and record["verifier_score"] == pytest.approx(fmean(found))
    for trajectory in rollouts:
        assert list(trajectory.grade.turn_scores) == [opinion(turn.text) for turn in trajectory.turns]
    assert [t.exit for t in rollouts].count("stored before") == 1 and len(rollouts) == 6
    given = RlConfig.model_validate(
        {"algorithm": {"name": "step", "verifier_coef": 0.5}, "scores": {"verifiers": ("v",)}}
    )
    assert sorted(policy_rewards(rollouts, given)) == pytest.approx(sorted(-1 + 0.5 * s for s in found))
    moved = [set(row.advantages) - {0.0} for row in policy_samples(rollouts, given)]
    assert any(len(values) == 2 for values in moved), "both turns of an attempt, each its own"
    assert record["updates"] == 1


def begin(folder: Path, model: Path, given: Settings) -> None:
    """A run that was killed right after its first attempt was graded."""
    said = ("so", "and so on!")
    talk = [{"role": "user", "content": "0"}]
    for text in said:
        talk += [{"role": "assistant", "content": text}, {"role": "user", "content": "no"}]
    turns = tuple(
        Turn(
            id=k,
            prompt_ids=(4, 5),
            completion_ids=(6,),
            logprobs=(-5.6,),
            text=text,
            parent=k - 1 if k else None,
        )
        for k, text in enumerate(said)
    )
    stored = {name: getattr(given, name).model_dump(mode="json") for name in ("rl", "line")}
    stored |= {"tasks": str(folder.with_suffix(".jsonl")), "model": str(model)}
    name = choose(small_tasks(), 1, 2, given.line.seed)[0].id
    with Run.create_or_open(folder, stored) as run:
        made = Trajectory(id=f"rl-1-{name}-0", task_id=name, group=f"rl-1-{name}", turns=turns)
        grade = Grade(state=GradeState.TESTS_FAILED)
        made = replace(made, messages=tuple(talk), exit="stored before", grade=grade)
        run.put(made, stage="rl", step=1, version=0)


def test_a_judge_that_cannot_be_asked_is_said_before_anything_starts(tmp_path: Path, model: Path):
    async def main() -> None:
        async with judging(lambda _: JSONResponse({"error": "no such key"}, 401)) as endpoint:
            given = settings(scores={"judge": {"base_url": endpoint.url}})
            await reinforce(tmp_path / "run", model, given)

    with pytest.raises(ConfigError, match=r"the judge at http://127.* cannot be used.* 401"):
        asyncio.run(main())
    for algorithm, why in (({"prm_coef": 1.0}, "judge.base_url"), ({"verifier_coef": 1.0}, "verifiers")):
        with pytest.raises(ValidationError, match=why):
            RlConfig.model_validate({"algorithm": algorithm})
    assert rounds(tmp_path / "run") == [[], []]
