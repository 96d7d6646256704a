"""A verifier from rows to rerank: learns a separable toy, scores what it was trained on, chooses by it."""

import asyncio
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.recipes.toy_attempts import attempt, write_toy_model, write_toy_run

from patchwright.errors import ConfigError
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.progress import View
from patchwright.recipes.rerank import RerankRequest, run_rerank, run_trained
from patchwright.recipes.verifier import Row, VerifierConfig, balanced, rows_of, run_verifier, sample_of
from patchwright.recipes.verifier_model import ScoringConfig, verifier_score
from patchwright.recipes.verifier_prompt import OPEN, PromptConfig, Prompter, answers, read_about
from patchwright.render import Renderer
from patchwright.store import Run
from patchwright.train.config import TrainConfig
from patchwright.train.model import load_model
from patchwright.train.scorer import Scorer
from patchwright.types import Failure, Outcome

CONFIG = VerifierConfig(
    prompt=PromptConfig(view="chat", patch=False),
    epochs=8,
    batch_tokens=1000,
    warmup_steps=5,
    holdout=0.2,
    train=TrainConfig(lr=4e-3, normalise="token"),
)


def train(config: VerifierConfig, model: Path, data: Path, folder: Path, stage: str = "rl"):
    return asyncio.run(run_verifier(config, LineConfig(), model, [data], stage, folder, View()))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_model(tmp_path_factory.mktemp("toy") / "v0")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_toy_run(tmp_path / "run")


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("trained")
    weights, summary = train(CONFIG, model, write_toy_run(folder / "run"), folder / "verifier")
    return Path(weights.path), summary


# --- prompts and rows -------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["log", "chat"])
def test_a_prompt_holds_the_whole_attempt_and_ends_before_the_answer(model: Path, view: str):
    renderer = Renderer.load(str(model))
    ids = Prompter(renderer, PromptConfig(view=view)).attempt(attempt(3, 1, True))
    text = renderer.decode(ids)
    parts = ["Fix f3.", "look", "def f", "edit 1", "2 passed", "diff --git", OPEN]
    assert [text.count(part) > 0 for part in parts] == [True] * len(parts)
    assert sorted(parts, key=text.rfind) == parts and text.endswith(OPEN)
    assert len(set(answers(renderer))) == 2


def test_a_long_prompt_keeps_its_beginning_its_end_and_its_bound(model: Path):
    renderer = Renderer.load(str(model))
    wide = PromptConfig(message_chars=10**6)
    bound = wide.model_copy(update={"max_tokens": 100})
    long = replace(attempt(3, 1, True), patch="x = 1\n" * 5000)
    whole, cut = (Prompter(renderer, config).attempt(long) for config in (wide, bound))
    assert len(whole) > 5000 and len(cut) == 100
    assert cut[:30] == whole[:30] and cut[30:] == whole[-70:]


def test_turns_are_rows_of_their_own_and_see_nothing_that_came_later(model: Path):
    renderer = Renderer.load(str(model))
    prompter = Prompter(renderer, PromptConfig(unit="turn"))
    texts = {turn: renderer.decode(ids) for turn, ids in prompter.prompts(attempt(3, 1, True)).items()}
    assert list(texts) == [0, 1]
    assert "def f" in texts[0] and "edit 1" not in texts[0] and "2 passed" in texts[1]
    by_score = rows_of(attempt(3, 1, False), prompter, "scores")  # turn 0 has no score
    assert [row.good for row in by_score] == [False]
    assert [row.good for row in rows_of(attempt(3, 1, True), prompter)] == [True, True]
    gone = replace(attempt(3, 1, True), failure=Failure(kind="SandboxError", message="x", stage="agent"))
    assert rows_of(gone, prompter) == []


def test_only_the_answer_trains_and_labels_are_balanced():
    row = sample_of(Row(task_id="a", prompt_ids=(5, 6, 7), good=True), 9)
    assert row.token_ids == (5, 6, 7, 9) and row.weights == (0, 0, 0, 1)
    rows = [Row(task_id=str(n), prompt_ids=(n,), good=n < 3) for n in range(20)]
    chosen = balanced(rows, seed=1)
    assert sum(r.good for r in chosen) == 3 and len(set(chosen)) == 6 and balanced(rows, seed=1) == chosen


# --- scoring ----------------------------------------------------------------------------------


def test_the_score_is_the_softmax_of_the_two_answers_whatever_the_batch(model: Path):
    yes, no = answers(Renderer.load(str(model)))
    prompts = [[5, 6, 7], [9] * 30, [11, 12], [13] * 7, [14]]
    plain = load_model(model).requires_grad_(False)
    expected = []
    for prompt in prompts:
        logits = plain(input_ids=torch.tensor([prompt])).logits[0, -1]
        expected.append(float(torch.exp(logits[yes]) / (torch.exp(logits[yes]) + torch.exp(logits[no]))))
    for batch_tokens in (1, 40, 1000):
        found = Scorer(model, yes=yes, no=no, batch_tokens=batch_tokens).score(prompts)
        assert found == pytest.approx(expected, abs=1e-6)


# --- end to end -------------------------------------------------------------------------------


def test_it_learns_a_separable_toy(trained: tuple[Path, dict]):
    folder, summary = trained
    assert summary["held_out"]["auc"] == 1.0 and summary["held_out"]["rows"] == 12
    about = read_about(folder)
    assert len(about.tasks) == 13 and about.share_yes == 0.5 and about.prompt.max_tokens == 511


def rerank(trained: tuple[Path, dict], run: Path, **options):
    request = RerankRequest(runs=(run,), verifier=trained[0], **{"stage": "eval", **options})
    return asyncio.run(run_rerank(request, View()))


def test_rerank_chooses_what_is_resolved_and_counts_what_is_missing(trained: tuple[Path, dict], data: Path):
    found = rerank(trained, data)
    assert (found.tasks, found.runs, found.missing, found.auc) == (6, 4, 2, 1.0)
    one, four = found.points[0], found.points[3]
    assert one.chance.mean == pytest.approx(5 / 24)
    assert four.best.mean == four.chance.mean == pytest.approx(5 / 6)  # task 20 lost its resolved attempt
    assert four.lift.low > 0
    report = json.loads((data / "rerank" / "rerank.json").read_text())
    assert report["points"][3]["best"]["mean"] == pytest.approx(5 / 6) and len(report["points"]) == 4
    ElementTree.parse(data / "rerank" / "rerank.svg")
    best = [json.loads(line) for line in (data / "rerank" / "best.jsonl").read_text().splitlines()]
    chosen = {row["instance_id"]: row["attempt"] for row in best}
    assert len(best) == 6 and all(chosen[f"toy-{t}"] == f"eval-{t}-{t % 4}" for t in range(21, 25))


def test_scores_live_in_the_run_and_are_made_once(trained: tuple[Path, dict], data: Path):
    with Run.open(data) as run:
        before = {t.id: t for t in run.trajectories()}
    rerank(trained, data)
    part = data / "trajectories" / "eval-000000.parquet"
    written = part.stat().st_mtime_ns
    rerank(trained, data)
    assert part.stat().st_mtime_ns == written
    with Run.open(data) as run:
        for trajectory in run.trajectories():
            scored = trajectory.id.startswith("eval") and trajectory.outcome is not Outcome.VOID
            assert (verifier_score(trajectory) is not None) is scored
            kept = trajectory.grade and replace(trajectory.grade, scores={})
            assert replace(trajectory, grade=kept) == before[trajectory.id]
        assert {entry.version for entry in run.entries(stage="eval")} == {3}


def test_tasks_that_were_trained_on_and_an_open_choice_of_stages_are_refused(
    trained: tuple[Path, dict], data: Path
):
    with pytest.raises(ConfigError, match="trained on 13 of the 16 tasks"):
        rerank(trained, data, stage="rl")
    assert rerank(trained, data, stage="rl", allow_overlap=True).tasks == 16
    with pytest.raises(ConfigError, match="stages eval, rl; choose with --stage"):
        rerank(trained, data, stage="")
    with pytest.raises(ConfigError, match="no verifier"):
        asyncio.run(run_rerank(RerankRequest(runs=(data,), verifier=data, stage="eval"), View()))


def test_the_same_recipe_trains_a_process_reward_model(model: Path, data: Path, tmp_path: Path):
    of_turns = CONFIG.prompt.model_copy(update={"unit": "turn"})
    config = CONFIG.model_copy(update={"prompt": of_turns, "labels": "scores", "holdout": 0})
    weights, summary = train(config, model, data, tmp_path / "prm")
    assert summary["held_out"]["auc"] is None and summary["rows"] > 0
    assert asyncio.run(run_trained(Path(weights.path), ScoringConfig(), data, "eval", View())) == 23
    with Run.open(data) as run:
        for trajectory in run.trajectories(stage="eval", outcome=Outcome.RESOLVED):
            first, last = trajectory.grade.turn_scores
            assert -1 <= first <= 1 and last > 0
    with pytest.raises(ConfigError, match="judges turns"):
        rerank((Path(weights.path), {}), data)


def test_data_of_one_kind_teaches_nothing(model: Path, data: Path, tmp_path: Path):
    with Run.create_or_open(tmp_path / "good", {}) as run:
        run.put_many([attempt(task, 0, True) for task in range(3)], stage="rl", step=1, version=0)
    with pytest.raises(ConfigError, match="resolved and unresolved"):
        train(CONFIG, model, tmp_path / "good", tmp_path / "v")
    with pytest.raises(ConfigError, match="no attempt of a stage 'rl2'; did you mean 'rl'"):
        train(CONFIG, model, data, tmp_path / "v", stage="rl2")
