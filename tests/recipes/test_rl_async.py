"""Attempts that go on while the trainer works: how stale, how fast, and what is trained of it."""

import asyncio
import io
import json
import math
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.recipes.rl_parts import SETTINGS, small_tasks, write_model
from typer.testing import CliRunner

from patchwright.agent.bash import BashAgent
from patchwright.cli.app import app
from patchwright.engine.process import ProcessEngine
from patchwright.errors import EngineError
from patchwright.metrics import Metrics
from patchwright.recipes.assembly import open_line
from patchwright.recipes.bench_rl import compare_schedules, lengths_of
from patchwright.recipes.idle import Idle
from patchwright.recipes.progress import View
from patchwright.recipes.rl import RlConfig, _resume, policy_samples, train_rl
from patchwright.recipes.rl_record import staleness
from patchwright.recipes.rl_simulation import Plant, long_tail, simulate
from patchwright.recipes.schedule import Pace
from patchwright.recipes.settings import Settings
from patchwright.render import Renderer
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.store import Run
from patchwright.train.algorithm import AlgorithmConfig
from patchwright.train.samples import samples
from patchwright.train.worker import TrainerProcess
from patchwright.types import Completion, Failure, Grade, GradeState, Trajectory, Turn, Weights

# --- simulated --------------------------------------------------------------------------------


def test_twice_the_steps_an_hour_on_a_long_tail_at_staleness_one():
    """And twice the tokens that train, too."""
    sync, waits, late, cuts, *_ = compare_schedules(lengths_of(None), Plant(pace=Pace(steps=60, size=16)))
    assert sync["staleness_max"] == 0
    assert waits["staleness_max"] == late["staleness_max"] == cuts["staleness_max"] == 1
    assert 1.9 < waits["gain"] < 2.05 and waits["too_old"] == 0, "twice is all that waiting can give"
    assert late["gain"] >= 2.2 and late["token_gain"] >= 2 and 0 < late["too_old"] < 0.1
    assert cuts["gain"] >= 2.5 and cuts["token_gain"] >= 2
    assert cuts["trainer_idle"] < late["trainer_idle"] < waits["trainer_idle"] < sync["trainer_idle"]
    assert cuts["engine_idle"] < late["engine_idle"] < waits["engine_idle"] < sync["engine_idle"]


def test_the_page_shows_what_the_command_prints():
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    done = CliRunner().invoke(app, ["bench", "rl", "--json"])
    assert done.exit_code == 0, done.output
    for row in json.loads(done.stdout):
        gains = f"| {row['steps_per_hour']:.2f} | {row['gain']:.2f}x | {row['token_gain']:.2f}x |"
        shares = (f"{100 * row[key]:.0f} %" for key in ("too_old", "trainer_idle", "engine_idle"))
        assert f"{gains} {row['staleness_mean']:.2f} | {' | '.join(shares)} |" in page
    assert CliRunner().invoke(app, ["bench", "rl", "--steps", "2"]).output.count("always") == 4
    own = CliRunner().invoke(app, ["bench", "rl", "--steps", "2", "--straggler-seconds", "7", "--json"])
    assert [row["straggler_seconds"] for row in json.loads(own.stdout)] == [None, None, 7, None, None]


def speed(lengths, staleness, **plant):
    pace = Pace(steps=plant.pop("steps", 10), size=2, staleness=staleness)
    plant = {"samples": 2, "train_seconds": 30.0, "load_seconds": 10.0, "capacity": 100.0, **plant}
    return simulate(lengths, Plant(pace=pace, **plant))


def test_the_simulation_is_what_a_pencil_says_where_a_pencil_can():
    assert speed([60.0], 0).steps_per_hour == pytest.approx(3600 / (60 + 30 + 10))
    assert speed([60.0], 0).trainer_idle == pytest.approx(0.7)
    assert speed([60.0], 0, capacity=2.0).steps_per_hour == pytest.approx(3600 / (120 + 40)), "half as fast"
    assert speed([60.0], 0, concurrency=2).steps_per_hour == pytest.approx(3600 / (120 + 40)), "two by two"
    assert speed([20.0], 1, steps=200).trainer_idle == pytest.approx(10 / 40, abs=0.01), "but for loading"
    assert speed([1.0, 1.0, 1.0, 100.0], 1).staleness_max == 1
    assert math.isclose(speed([60.0], 0).engine_idle, 1 - 4 * 60 / (100 * 100))


def test_more_staleness_is_never_slower_and_never_beyond_its_bound():
    trace = long_tail(500, seed=3)
    found = [speed(trace, bound, steps=30) for bound in range(4)]
    assert [one.staleness_max for one in found] == [0, 1, 2, 3]
    rates = [one.steps_per_hour for one in found]
    assert rates == sorted(rates) and all(one.too_old == 0 for one in found)


# --- what is trained --------------------------------------------------------------------------


def test_correction_is_on_where_tokens_may_be_stale():
    assert RlConfig().method.loss.correction == "none"
    assert RlConfig(max_staleness=1).method.loss.correction == "tis"
    for name in ("icepop", "none"):
        told = AlgorithmConfig(correction=name)
        assert RlConfig(max_staleness=1, algorithm=told).method.loss.correction == name


def test_more_ahead_than_staleness_allows_is_refused():
    with pytest.raises(ValueError, match="more would grow older than max_staleness"):
        RlConfig(max_staleness=1, tasks_per_step=4, over_sample=5)


def attempt(name, *turns, state=GradeState.RESOLVED, **fields):
    """Each turn is the versions that sampled its tokens."""
    made = tuple(
        Turn(
            id=k,
            parent=k - 1 if k else None,
            prompt_ids=(1,),
            completion_ids=(3,) * len(versions),
            logprobs=(-0.5,) * len(versions),
            version=versions[-1],
            versions=versions if len(set(versions)) > 1 else (),
        )
        for k, versions in enumerate(turns)
    )
    return Trajectory(id=name, task_id="t", group="g", turns=made, grade=Grade(state=state), **fields)


def test_tokens_that_are_too_old_pull_on_nothing_and_still_count():
    mixed = attempt("a", (2, 2), (2, 3, 4))
    (row,) = samples(mixed, advantage=1.5, oldest=3)
    assert row.advantages == (0, 0, 0, 0, 0, 1.5, 1.5) and sum(row.weights) == sum(row.mask) == 5
    assert samples(mixed, advantage=1.5) == samples(mixed, advantage=1.5, oldest=2)
    pair = [mixed, attempt("b", (4, 4), state=GradeState.TESTS_FAILED)]
    whole, cut = policy_samples(pair, RlConfig()), policy_samples(pair, RlConfig(), oldest=3)
    assert [row.weights for row in whole] == [row.weights for row in cut]
    assert sum(map(bool, whole[0].advantages)) == 5 and sum(map(bool, cut[0].advantages)) == 2
    assert whole[1] == cut[1]


def test_staleness_is_that_of_the_tokens_that_train():
    void = replace(attempt("v", (0,)), failure=Failure(kind="E", message="", stage="open"))
    rows = [attempt("a", (2, 3, 4)), attempt("b", (4,)), void]
    found = staleness(rows, 4, oldest=0)
    assert (found.mean, found.most, found.too_old) == (3 / 4, 2, 0)
    found = staleness(rows, 4, oldest=3)
    assert (found.mean, found.most, found.too_old) == (1 / 3, 1, 1 / 4)


def test_idle_is_the_share_of_time_in_which_nothing_was_under_way():
    now = 0.0
    idle = Idle(lambda: now)
    now = 1.0
    with idle.busy():
        now = 2.0
        with idle.busy():
            now = 3.0
        now = 4.0
    now = 5.0
    assert idle.share() == pytest.approx(2 / 5)
    with idle.busy():
        now = 7.0
        assert idle.share() == 0.0
    assert idle.share() == 0.0, "no time has passed"


# --- a whole run ------------------------------------------------------------------------------


class Straggler(ProcessEngine):
    """The first attempt to come to its second turn waits there for new weights."""

    held, until = False, 1

    async def generate(self, prompt_ids, sampling, **options) -> Completion:
        if len(prompt_ids) > 100 and not self.held:
            self.held, self.loaded = True, asyncio.Event()
            await self.loaded.wait()
        return await super().generate(prompt_ids, sampling, **options)

    async def load(self, weights: Weights) -> None:
        await super().load(weights)
        if self.held and self.version >= self.until:
            self.loaded.set()


class LongStraggler(Straggler):
    """It waits past the step that should have had it."""

    until = 2


class Stuck(ProcessEngine):
    """Its loads never end, but for the first, which is of the weights it has."""

    loads = 0

    async def load(self, weights: Weights) -> None:
        self.loads += 1
        if self.loads > 1:
            await asyncio.sleep(3600)


async def reinforce(folder: Path, model: Path, engine_class: type[ProcessEngine], **rl: object) -> None:
    given = Settings.model_validate({**SETTINGS, "rl": {**SETTINGS["rl"], **rl}})
    boxes, agent, engine = NamespaceBackend(), BashAgent(given.line.agent), engine_class(model)
    async with AsyncExitStack() as stack:
        for part in (boxes, agent, engine):
            stack.push_async_callback(part.close)
        run = stack.enter_context(Run.create_or_open(folder, {}))
        line = await stack.enter_async_context(open_line(boxes, agent, engine, Renderer.load(str(model))))
        trainer = await stack.enter_async_context(TrainerProcess(model, given.rl.train))
        start, view = Weights(version=0, path=str(model)), View(Console(file=io.StringIO()))
        await train_rl(
            line, engine, trainer, run, small_tasks(), given.rl, given.line, start=start, view=view
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "v0")


ALGORITHM = {"length_coef": 1.0, "entropy_coef": 0.01}
"""A gradient though nothing is ever resolved."""


def test_an_attempt_goes_on_under_new_weights_and_is_trained_once(tmp_path: Path, model: Path):
    folder = tmp_path / "run"
    asyncio.run(reinforce(folder, model, Straggler, steps=3, max_staleness=1, algorithm=ALGORITHM))
    rows = list(Metrics(folder / "metrics.jsonl").read("rl"))
    with Run.open(folder) as run:
        batches = {mark.step: mark.info["groups"] for mark in run.marks("rl-batch")}
        found = {t.group: t for t in run.trajectories(stage="rl") if len({x.version for x in t.turns}) > 1}
        stored = {entry.group for entry in run.entries(stage="rl")}
    assert sorted(name for names in batches.values() for name in names) == sorted(stored) and len(stored) == 6
    spans = {name: [turn.version for turn in t.turns] for name, t in found.items()}
    assert all(after - before == 1 for before, after in spans.values())
    assert [0, 1] in [spans.get(name) for name in batches[2]], "the one that was held is trained then"
    assert [row["staleness_max"] for row in rows][:2] == [0, 1] and max(r["staleness_max"] for r in rows) == 1
    assert 0 < rows[1]["staleness_mean"] < 1 and all(row["too_old"] == 0 for row in rows)
    assert rows[0]["in_flight"] > 0, "attempts go on when a step has enough"
    for row in rows:
        assert 0 <= row["engine_idle"] <= 1 and 0 <= row["trainer_idle"] <= 1 and row["load_seconds"] >= 0
    assert rows[1]["drift_fresh"] is None or rows[1]["drift_fresh"] < 1e-3


def test_a_straggler_is_cut_off_and_of_its_group_what_is_too_old_trains_nothing(tmp_path: Path, model: Path):
    folder = tmp_path / "run"
    options = {"steps": 3, "max_staleness": 1, "straggler_seconds": 0, "algorithm": ALGORITHM}
    asyncio.run(reinforce(folder, model, LongStraggler, **options))
    rows = list(Metrics(folder / "metrics.jsonl").read("rl"))
    with Run.open(folder) as run:
        last = run.marks("rl-batch")[-1].info["groups"]
        late = [t for t in run.trajectories(stage="rl") if [turn.version for turn in t.turns] == [0, 2]]
        groups = {entry.group for entry in run.entries(stage="rl")}
    assert late and all(t.group in last for t in late), "trained when it came"
    assert len(groups) == 6 and rows[2]["too_old"] > 0 == rows[1]["too_old"]
    assert [row["staleness_max"] for row in rows] == [0, 1, 1]


def test_a_load_that_does_not_end_stops_the_run_and_says_so(tmp_path: Path, model: Path):
    work = reinforce(tmp_path / "run", model, Stuck, max_load_seconds=0.2, algorithm=ALGORITHM)
    with pytest.raises(EngineError, match=r"weights 1 within 0.2 s \(rl.max_load_seconds\)"):
        asyncio.run(work)
    assert (tmp_path / "run" / "checkpoints" / "1").exists()


def test_the_load_a_resumed_run_begins_with_is_bounded_too(tmp_path: Path):
    class Deaf:
        async def load(self, weights: Weights) -> None:
            await asyncio.sleep(3600)

    async def resume() -> None:
        with Run.create_or_open(tmp_path / "run", {}) as run:
            start, config = Weights(version=0, path="v0"), RlConfig(max_load_seconds=0.2)
            await _resume(Deaf(), None, run, config, start, 3)

    with pytest.raises(EngineError, match=r"weights 3 within 0.2 s \(rl.max_load_seconds\)"):
        asyncio.run(asyncio.wait_for(resume(), 60))


def test_the_lengths_of_a_run_are_those_of_its_attempts(tmp_path: Path):
    with Run.create_or_open(tmp_path / "run", {}) as run:
        for k, seconds in enumerate((30.0, 10.0)):
            run.put(replace(attempt(f"a{k}", (0,)), seconds=seconds), stage="rl", step=1, version=0)
    assert lengths_of(tmp_path / "run") == [30.0, 10.0]
    assert json.dumps(compare_schedules([30.0, 10.0], Plant(pace=Pace(steps=4, size=2))))
