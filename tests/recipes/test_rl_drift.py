"""Engine and trainer must agree: held to in every round, with tokens of older weights among them too."""

import asyncio
import io
import math
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.recipes.rl_parts import SETTINGS, small_tasks, write_model

from patchwright.agent.bash import BashAgent
from patchwright.engine.process import ProcessEngine
from patchwright.errors import ConfigError, EngineError
from patchwright.metrics import Metrics
from patchwright.recipes.assembly import SamplingConfig, open_line
from patchwright.recipes.parity import check_drift, probe_prompt, refuse_unlike, stale
from patchwright.recipes.progress import View
from patchwright.recipes.rl import train_rl
from patchwright.recipes.settings import Settings
from patchwright.render import Renderer
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.store import Run
from patchwright.train.worker import TrainerProcess
from patchwright.types import Completion, Failure, Grade, GradeState, Trajectory, Turn, Weights


class Scored:
    """A trainer that gives every token log-prob -1."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    async def score(self, token_ids):
        self.asked.append(tuple(token_ids))
        return [-1.0] * (len(token_ids) - 1)


def attempt(name: str, *turns: tuple[int | tuple[int, ...], float], void: bool = False) -> Trajectory:
    """Each turn says two tokens: under which weights, and with what log-prob the engine says."""
    made = tuple(
        Turn(
            id=k,
            parent=k - 1 if k else None,
            prompt_ids=(1, 2),
            completion_ids=(3, 4),
            logprobs=(told, told),
            version=version if isinstance(version, int) else max(version),
            versions=() if isinstance(version, int) else version,
        )
        for k, (version, told) in enumerate(turns)
    )
    failure = Failure(kind="SandboxError", message="gone", stage="agent") if void else None
    return Trajectory(
        id=name, task_id="t", turns=made, grade=Grade(state=GradeState.RESOLVED), failure=failure
    )


def drift(rollouts: list[Trajectory], bound: float = 0.2) -> tuple[float | None, list[tuple[int, ...]]]:
    trainer = Scored()
    return asyncio.run(check_drift(trainer, rollouts, 5, bound)), trainer.asked  # type: ignore[arg-type]


def test_drift_is_that_of_the_tokens_the_trained_weights_sampled():
    """However far off the others are: those are of older weights."""
    rollouts = [
        attempt("a", (4, -9.0), (5, -1.1)),
        attempt("b", (5, -0.9), ((4, 5), -9.0)),
        attempt("c", (4, -9.0)),
        attempt("d", (5, -9.0), void=True),
    ]
    found, asked = drift(rollouts)
    assert found == pytest.approx(0.1) and len(asked) == 2
    assert [stale(t, 5) for t in rollouts] == [True, True, True, False]


def test_without_tokens_of_the_trained_weights_nothing_is_said():
    assert drift([attempt("a", (4, -9.0)), attempt("b", (3, -9.0))]) == (None, [])


@pytest.mark.parametrize("told", [-1.3, -0.7, math.nan])
def test_past_its_bound_the_drift_stops_the_run(told: float):
    with pytest.raises(EngineError, match=r"disagree by .* weights 5 sampled, more than rl.max_drift"):
        drift([attempt("a", (4, -1.0), (5, told))])


def test_no_more_than_a_few_attempts_are_scored_again():
    _, asked = drift([attempt(str(k), (4, -1.0), (5, -1.0)) for k in range(40)])
    assert len(asked) == 16


def test_the_probe_is_a_prompt_of_the_round_when_there_is_a_short_one():
    void, good = attempt("a", (5, -1.0), void=True), attempt("b", (5, -1.0))
    assert probe_prompt([void, replace(good, turns=(replace(good.turns[0], prompt_ids=(9, 9)),))], 100) == (
        9,
        9,
    )
    assert len(probe_prompt([void], 100)) > 2 and probe_prompt([good], 20) == probe_prompt([], 20)


def test_sampling_that_is_not_what_is_trained_is_refused():
    with pytest.raises(ConfigError, match=r"temperature` 0.7 and trained at `rl.train.temperature` 1"):
        refuse_unlike(SamplingConfig(temperature=0.7), 1.0)
    with pytest.raises(ConfigError, match="greedy"):
        refuse_unlike(SamplingConfig(temperature=0.0), 0.0)
    refuse_unlike(SamplingConfig(temperature=0.7), 0.7)


# --- a whole run ------------------------------------------------------------------------------


class Liar(ProcessEngine):
    """From weights 2 on it tells log-probs that are off by half a nat."""

    async def generate(self, prompt_ids, sampling, **options) -> Completion:
        done = await super().generate(prompt_ids, sampling, **options)
        off = 0.5 if done.version >= 2 else 0.0
        return replace(done, logprobs=tuple(value - off for value in done.logprobs))


async def reinforce(folder: Path, model: Path, given: Settings) -> None:
    boxes, agent, engine = NamespaceBackend(), BashAgent(given.line.agent), Liar(model)
    async with AsyncExitStack() as stack:
        for part in (boxes, agent, engine):
            stack.push_async_callback(part.close)
        run = stack.enter_context(Run.create_or_open(folder, {}))
        opened = open_line(boxes, agent, engine, Renderer.load(str(model)))
        line = await stack.enter_async_context(opened)
        trainer = await stack.enter_async_context(TrainerProcess(model, given.rl.train))
        start, view = Weights(version=0, path=str(model)), View(Console(file=io.StringIO()))
        tasks, parts = small_tasks(), (given.rl, given.line)
        await train_rl(line, engine, trainer, run, tasks, *parts, start=start, view=view)


def test_a_run_stops_when_its_engine_lies_also_where_tokens_are_stale(tmp_path: Path):
    """Every round but the first has groups that older weights began; the second is honest."""
    model = write_model(tmp_path / "v0")
    more = {"max_logprob_gap": 9.0, "algorithm": {"entropy_coef": 0.01}, "steps": 3}
    more |= {"max_staleness": 1, "over_sample": 1}
    given = Settings.model_validate({**SETTINGS, "rl": {**SETTINGS["rl"], **more}})
    with pytest.raises(EngineError, match=r"weights 2 sampled, .* rl.max_drift .*nothing was trained"):
        asyncio.run(reinforce(tmp_path / "run", model, given))
    first, second = Metrics(tmp_path / "run" / "metrics.jsonl").read("rl")
    assert first["stale"] == 0 and first["drift_fresh"] == first["drift"] < 1e-3
    assert second["stale"] > 0 and second["drift_fresh"] < 1e-3 < second["drift"]
    assert first["logprob_gap"] < 1e-3 and second["logprob_gap"] == pytest.approx(0.5, abs=1e-3)
    assert not (tmp_path / "run" / "checkpoints" / "3").exists()
