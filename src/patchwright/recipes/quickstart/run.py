"""The quickstart: make tasks, roll experts, SFT, RL, and evaluate after each, all on this machine.

Each stage leaves something complete in the run's folder, and begins by looking for it: the same command
after Ctrl-C, a crash or `kill -9` goes on where it stopped.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from patchwright.agent.base import Agent
from patchwright.engine.base import Engine
from patchwright.recipes.agents import open_agent
from patchwright.recipes.assembly import open_boxes, open_expert_line, open_line
from patchwright.recipes.engines import open_engine
from patchwright.recipes.evaluate import evaluate
from patchwright.recipes.experts import Experts
from patchwright.recipes.progress import View
from patchwright.recipes.quickstart.config import QuickstartConfig
from patchwright.recipes.quickstart.learn import learn_from_experts, make_tokenizer
from patchwright.recipes.quickstart.report import show_results, summarise
from patchwright.recipes.quickstart.tasks import TaskSets, task_sets
from patchwright.recipes.rl import train_rl
from patchwright.render import Renderer
from patchwright.rollout.events import FILE as EVENTS
from patchwright.rollout.events import Events
from patchwright.rollout.rollout import Line
from patchwright.sandbox.base import SandboxBackend
from patchwright.store import Run
from patchwright.train.worker import TrainerProcess, create_model
from patchwright.types import Weights


async def quickstart(config: QuickstartConfig, folder: Path, view: View) -> dict[str, Any]:
    """Run what is not done yet in the run's folder; returns what its `summary.json` holds."""
    stored = config.model_dump(mode="json", exclude={"metrics"})  # where figures go besides may change
    with Run.create_or_open(folder, stored) as run:
        boxes, agents = open_boxes(config.line.sandbox), open_agent(config.line.agent)
        async with boxes as backend, agents as agent:
            return await Quickstart(config, run, backend, agent, view).go()


class Quickstart:
    """One quickstart in one run's folder."""

    def __init__(
        self, config: QuickstartConfig, run: Run, backend: SandboxBackend, agent: Agent, view: View
    ) -> None:
        self._config, self._run, self._view = config, run, view
        self._backend, self._agent = backend, agent

    async def go(self) -> dict[str, Any]:
        """Every stage in order."""
        counts = self._config.evaluation
        waves, rounds = self._config.experts.waves, self._config.rl.steps
        with self._stage("tasks"):
            sets = await task_sets(self._config, self._run, self._backend, self._view)
        with self._stage("initialise"):
            await self._initialise(sets)
        await self._assess("init", 0, sets, counts.init_samples)
        with self._stage("sft"):
            await self._fine_tune(sets)
        await self._assess("sft", waves, sets, counts.samples)
        with self._stage("rl"):
            await self._reinforce(sets)
        await self._assess("rl", waves + rounds, sets, counts.samples)
        summary = summarise(self._run, self._config)
        self._run.write_summary(summary)
        show_results(self._view, self._run, summary)
        return summary

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Mark a stage that came to its end, with the seconds the finishing call spent on it."""
        started = time.monotonic()
        yield
        if not self._run.marks(f"{name}-done"):
            self._run.mark(f"{name}-done", 0, seconds=round(time.monotonic() - started, 1))

    def _weights(self, version: int) -> Path:
        return self._run.folder("weights", version)

    @asynccontextmanager
    async def _policy(self, version: int) -> AsyncIterator[tuple[Line, Engine]]:
        """The line over the weights of a version."""
        folder = self._weights(version)
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(open_engine(folder, self._config.line.engine))
            renderer, history = Renderer.load(str(folder)), self._config.line.history
            line = open_line(self._backend, self._agent, engine, renderer, history=history)
            yield await stack.enter_async_context(line), engine

    def _experts(self, renderer: Renderer) -> AbstractAsyncContextManager[Line]:
        return open_expert_line(self._backend, self._agent, renderer)

    # --- stages -------------------------------------------------------------------------------

    async def _initialise(self, sets: TaskSets) -> None:
        """Weights 0: a tokenizer from the text of expert attempts, and a random model."""
        if self._weights(0).exists():
            return
        tasks = sets.sft[: self._config.tokenizer.attempts]
        with tempfile.TemporaryDirectory() as folder:
            await make_tokenizer(self._experts, self._run, tasks, self._config, Path(folder), self._view)
            await create_model(self._weights(0), self._config.model, Path(folder))

    async def _fine_tune(self, sets: TaskSets) -> None:
        """Weights W (the number of portions): the model after SFT."""
        last = self._config.experts.waves
        if self._weights(last).exists():
            return
        renderer = Renderer.load(str(self._weights(0)))
        async with (
            self._experts(renderer) as line,
            TrainerProcess(self._weights(0), self._config.sft.train) as trainer,
        ):
            experts = Experts(line, renderer, self._run, seed=self._config.line.seed)
            await learn_from_experts(experts, trainer, self._run, sets.sft, self._config, self._view)
            await trainer.save_weights(self._weights(last), last)

    async def _reinforce(self, sets: TaskSets) -> None:
        """Weights W + k: the model after round k of RL."""
        first = self._config.experts.waves
        done = max((mark.step for mark in self._run.marks("rl")), default=0)
        if done >= self._config.rl.steps:
            return
        async with (
            self._policy(first + done) as (line, engine),
            TrainerProcess(self._weights(first), self._config.rl.train) as trainer,
        ):
            await train_rl(
                replace(line, events=Events(self._run.path / EVENTS)),
                engine,
                trainer,
                self._run,
                sets.rl,
                self._config.rl,
                self._config.line,
                start=Weights(version=first, path=str(self._weights(first))),
                view=self._view,
            )

    async def _assess(self, name: str, version: int, sets: TaskSets, samples: int) -> None:
        """Evaluate a version's weights on every held-out set."""
        if self._run.marks(f"eval-{name}"):
            return
        started, results = time.monotonic(), {}
        async with self._policy(version) as (line, _):
            for set_name, tasks in sets.held_out(self._config.evaluation):
                count = samples if set_name == "held_out" else self._config.evaluation.harder_samples
                result = await evaluate(
                    line,
                    self._run,
                    tasks,
                    self._config.line,
                    stage=f"eval-{name}-{set_name}",
                    samples=count,
                    view=self._view,
                    version=version,
                )
                results[set_name] = result.record()
        seconds = round(time.monotonic() - started, 1)
        self._run.mark(f"eval-{name}", 0, version=version, seconds=seconds, sets=results)
