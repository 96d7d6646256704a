"""Reinforcement learning from test results: roll out groups, grade, train, load the weights back.

With `rl.max_staleness` 0 a step is synchronous: every rollout it trains on was sampled by the weights it
updates. Above, attempts go on while it trains and while the engine loads what came of it, and a step takes
whole groups that are at most so many versions old (`recipes/schedule.py`). Its artefacts are committed in one
order, checkpoint first, so a killed run trains no rollout twice and loses none that was graded:

    rollouts stored one by one -> their groups journalled -> trainer step -> checkpoint (the commit)
      -> weights -> engine.load -> mark
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from patchwright.engine.base import Engine
from patchwright.errors import EngineError
from patchwright.metrics import Metrics
from patchwright.metrics.trace import Note, span, step_span
from patchwright.recipes.artefacts import keep_files, safe_name
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.broadcast import source
from patchwright.recipes.cheats import attempted_cheats
from patchwright.recipes.engines import PLACES
from patchwright.recipes.held_out import refuse_held_out
from patchwright.recipes.idle import Idle, WatchedEngine
from patchwright.recipes.images import refuse_missing
from patchwright.recipes.parity import (
    check_drift,
    check_parity,
    probe_prompt,
    refuse_unlike,
    stale,
)
from patchwright.recipes.policy import Rewards, rewards
from patchwright.recipes.policy import samples as samples_of
from patchwright.recipes.progress import View
from patchwright.recipes.rl_config import RlConfig
from patchwright.recipes.rl_record import Figures, note, staleness
from patchwright.recipes.rl_rollouts import Batches, Rollouts, choose
from patchwright.recipes.scores import Scores, open_scores
from patchwright.recipes.site import OpenSite, Site, Wanted, open_here
from patchwright.recipes.verifier_prompt import read_about
from patchwright.rollout.events import FILE as EVENTS
from patchwright.rollout.events import Events
from patchwright.rollout.rollout import Attempts
from patchwright.store import Run
from patchwright.tasks.files import load_tasks
from patchwright.tasks.trust import trust_counts, trusted
from patchwright.train.process import WorkerDiedError
from patchwright.train.worker import TrainerProcess
from patchwright.types import Outcome, Sample, Source, Task, Trajectory, Weights

__all__ = ["MAY_CHANGE", "RlConfig", "choose", "policy_rewards", "policy_samples", "run_rl", "train_rl"]

_JUDGE = ("base_url", "api_key_env", "concurrency", "request_timeout", "patience")
_WAITS = ("rl.straggler_seconds", "rl.max_load_seconds")
_JUDGES = tuple(f"rl.scores.judge.{name}" for name in _JUDGE)
MAY_CHANGE = ("rl.steps", "line.concurrency", *PLACES, *_WAITS, *_JUDGES)
"""What a resumed run may be given anew."""


async def train_rl(
    line: Attempts,
    engine: Engine,
    trainer: TrainerProcess,
    run: Run,
    tasks: Sequence[Task],
    config: RlConfig,
    pace: LineConfig,
    *,
    start: Weights,
    view: View,
) -> Weights:
    """Run the rounds that are not done yet and return the last weights.

    The trainer must hold the weights `start`; round k makes version `start.version + k`. A resumed run brings
    trainer and engine to the last finished round first.
    """
    metrics = Metrics(run.path / "metrics.jsonl")
    first, done = start.version, max((mark.step for mark in run.marks("rl")), default=0)
    if await _resume(engine, trainer, run, config, start, done):
        await check_parity(engine, trainer, config.max_logprob_gap, temperature=config.train.temperature)
    with view.stage("rl", total=config.steps, done=done) as progress:
        async with open_scores(config.scores) as scores:
            await scores.check()
            steps = _Steps(
                engine=engine,
                trainer=trainer,
                run=run,
                config=config,
                scores=scores,
                first=first,
                send=partial(source, trainer, pace.engine),
            )
            rollouts = Rollouts(
                line=scores.over(line),
                scores=scores,
                engine=WatchedEngine(engine, steps.engine_idle),
                run=run,
                tasks=tasks,
                config=config,
                pace=pace,
                first=first,
                progress=progress,
            )
            async with rollouts.open(done) as batches:
                for step in range(done + 1, config.steps + 1):
                    record = await steps.make(step, batches)
                    metrics.write("rl", step, **record)
                    run.mark("rl", step, **record)
                    batches.seal()
                    _forget(run, first + step - 2)
                    progress.advance()
                    progress.note(note(record))
                    batches.loaded()
    return Weights(version=first + config.steps, path=str(run.folder("weights", first + config.steps)))


@dataclass(kw_only=True)
class _Steps:
    """Makes one step after the other of what the attempts bring."""

    engine: Engine
    trainer: TrainerProcess
    run: Run
    config: RlConfig
    scores: Scores
    first: int
    """Version of the weights the run began with."""
    send: Callable[[], Source | None]
    """Where engines have new weights from, if not from their folder."""
    engine_idle: Idle = field(default_factory=Idle)
    trainer_idle: Idle = field(default_factory=Idle)

    async def make(self, step: int, batches: Batches) -> Figures:
        """Train a step and load the weights; returns its figures."""
        with step_span("rl", step) as about:
            return await self._make(step, batches, about)

    async def _make(self, step: int, batches: Batches, about: Note) -> Figures:
        started, version = time.monotonic(), self.first + step - 1
        with span("collect"):
            rollouts = await batches.take(step)
        about("patchwright.groups", tuple(sorted({t.group for t in rollouts})))
        record = _record(rollouts, version, self.config) | batches.backlog()
        with self.trainer_idle.busy(), span("train"):
            weights, trained = await _update(self.trainer, self.run, rollouts, self.config, version + 1)
        record["load_seconds"] = await self._load(weights)
        with span("compare"):
            gap = await _compare(self.engine, self.trainer, rollouts, self.config)
        record |= trained | self.scores.record(rollouts) | {"logprob_gap": gap}
        record |= {"trainer_idle": self.trainer_idle.share(), "engine_idle": self._engine_idle()}
        return record | {"seconds": round(time.monotonic() - started, 2)}

    def _engine_idle(self) -> float | None:
        """None where others ask the engine, whom nobody watches."""
        return self.engine_idle.share() if self.engine_idle.used else None

    async def _load(self, weights: Weights) -> float:
        """Load weights while attempts go on; returns the seconds it took."""
        started = time.monotonic()
        with span("load"):
            await _load(self.engine, replace(weights, source=self.send()), self.config)
        return round(time.monotonic() - started, 3)


async def _load(engine: Engine, weights: Weights, config: RlConfig) -> None:
    """Load weights. Raises EngineError past the bound."""
    bound = config.max_load_seconds
    try:
        async with asyncio.timeout(bound):
            await engine.load(weights)
    except TimeoutError:
        raise EngineError(
            f"the engine has not loaded weights {weights.version} within {bound:g} s "
            "(rl.max_load_seconds); see what holds it up, then run the same command again"
        ) from None


async def _resume(
    engine: Engine, trainer: TrainerProcess, run: Run, config: RlConfig, start: Weights, done: int
) -> bool:
    """Bring trainer and engine to the last finished round; returns whether both are there.

    A checkpoint past it was trained but not yet loaded: the trainer goes on from it, and that round is not
    trained again."""
    number, latest = start.version + done, run.latest("checkpoints")
    if latest and latest[0] > start.version:
        await trainer.load_checkpoint(latest[1])
    path = str(run.folder("weights", number)) if done else start.path
    await _load(engine, Weights(version=number, path=path), config)
    return latest is None or latest[0] <= number


async def _compare(
    engine: Engine, trainer: TrainerProcess, rollouts: Sequence[Trajectory], config: RlConfig
) -> float:
    """The largest gap of the two after an update, on a prompt of the round."""
    prompt = probe_prompt(rollouts, engine.max_context)
    bound, temperature = config.max_logprob_gap, config.train.temperature
    return await check_parity(engine, trainer, bound, temperature=temperature, prompt=prompt)


def policy_samples(rollouts: Sequence[Trajectory], config: RlConfig, *, oldest: int = 0) -> list[Sample]:
    """Samples of the attempts that carry a gradient: void ones and, as a rule, flat groups carry none.

    Tokens that weights older than version `oldest` sampled have no advantage."""
    return samples_of(_groups(rollouts), _worth(config), config.method, config.on_cheat, oldest=oldest)


def policy_rewards(rollouts: Sequence[Trajectory], config: RlConfig) -> list[float]:
    """Rewards of the attempts that were not void, group after group."""
    algorithm, worth = config.method, _worth(config)
    given = [rewards(group, worth, algorithm, config.on_cheat) for group in _groups(rollouts)]
    return [reward for group in given for reward in group if reward is not None]


def _groups(rollouts: Sequence[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in rollouts:
        groups[trajectory.group].append(trajectory)
    return [group for _, group in sorted(groups.items())]


def _worth(config: RlConfig) -> Rewards:
    return {Outcome.RESOLVED: config.reward_resolved, Outcome.UNRESOLVED: config.reward_unresolved}


async def _update(
    trainer: TrainerProcess, run: Run, rollouts: Sequence[Trajectory], config: RlConfig, number: int
) -> tuple[Weights, Figures]:
    """Train unless the checkpoint says it was done, then make sure the weights are there."""
    figures: Figures = {}
    if not run.folder("checkpoints", number).exists():
        samples = policy_samples(rollouts, config, oldest=_oldest(config, number - 1))
        if samples:
            figures = await _train(trainer, rollouts, samples, config, number - 1)
        await trainer.save_checkpoint(run.folder("checkpoints", number))
    folder = run.folder("weights", number)
    if not folder.exists():
        await trainer.save_weights(folder, number)
    return Weights(version=number, path=str(folder)), figures


def _oldest(config: RlConfig, version: int) -> int:
    """The oldest version of tokens that are trained into weights `version`."""
    return version - config.max_staleness if config.max_staleness else 0


async def _train(
    trainer: TrainerProcess,
    rollouts: Sequence[Trajectory],
    samples: Sequence[Sample],
    config: RlConfig,
    version: int,
) -> Figures:
    """One step; the bound on drift holds for what the trainer's `version` sampled.

    `drift` is over all tokens, `drift_fresh` over those: the same where there are no others.
    """
    loss, bound = config.method.loss, config.max_drift
    mixed = any(stale(t, version) for t in rollouts)
    fresh = await check_drift(trainer, rollouts, version, bound) if mixed else None
    stats = await trainer.step(samples, loss=replace(loss, max_drift=float("inf") if mixed else bound))
    return asdict(stats) | {"drift_fresh": fresh if mixed else stats.drift}


def _record(rollouts: Sequence[Trajectory], version: int, config: RlConfig) -> Figures:
    graded = [t for t in rollouts if t.outcome is not Outcome.VOID]
    resolved = sum(t.outcome is Outcome.RESOLVED for t in graded)
    given, ages = policy_rewards(rollouts, config), staleness(rollouts, version, _oldest(config, version))
    return {
        "attempts": len(rollouts),
        "void": len(rollouts) - len(graded),
        "resolve_rate": resolved / len(graded) if graded else 0.0,
        "reward": fmean(given) if given else None,
        "cheat_rate": attempted_cheats(graded),
        "stale": sum(stale(t, version) for t in rollouts) / max(1, len(rollouts)),
        "staleness_mean": ages.mean,
        "staleness_max": ages.most,
        "too_old": ages.too_old,
        "turns": sum(len(t.turns) for t in rollouts) / max(1, len(rollouts)),
        "submitted": sum(t.exit == "submitted" for t in rollouts) / max(1, len(rollouts)),
    }


def _forget(run: Run, number: int) -> None:
    """Drop the checkpoint before the last: one is enough to resume, two survive a torn disk."""
    old: Path = run.folder("checkpoints", number)
    if number > 0 and old.exists():
        run.drop_folder(old)


def _keeper(folder: Path) -> Callable[[str, Mapping[str, bytes]], None]:
    """Keeps what agents leave besides a patch, by attempt, as `rollout` and `eval` do."""
    return lambda name, left: keep_files(folder / "artefacts" / safe_name(name), left)


def _chosen(file: Path, config: RlConfig, line: LineConfig, view: View) -> list[Task]:
    """The tasks of a file that may be trained on. Raises ConfigError for tasks that are held out."""
    found = load_tasks(file)
    chosen = trusted(found, keep_hackable=config.keep_hackable)
    refuse_held_out(chosen, line)
    if len(chosen) < len(found):
        kept = {task.id for task in chosen}
        counts = trust_counts(task for task in found if task.id not in kept)
        view.say(f"tasks left out: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")
    return chosen


async def run_rl(
    config: RlConfig,
    line_config: LineConfig,
    tasks: Path,
    model: Path,
    folder: Path,
    view: View,
    *,
    site: OpenSite = open_here,
) -> Weights:
    """`patchwright train rl`: train the model in `model` on the tasks of a file; returns the last weights."""
    refuse_unlike(line_config.sampling, config.train.temperature)
    for verifier in config.scores.verifiers:
        read_about(Path(verifier))  # says what is missing before a run is begun
    chosen = _chosen(tasks, config, line_config, view)
    if site is open_here:  # elsewhere the boxes are other machines'
        refuse_missing(chosen, line_config.sandbox)
    stored = {
        "rl": config.model_dump(mode="json"),
        "line": line_config.model_dump(mode="json"),
        "tasks": str(tasks),
        "model": str(model),
    }
    start = Weights(version=0, path=str(model))
    with Run.create_or_open(folder, stored, may_change=MAY_CHANGE) as run:
        wanted = Wanted(
            line=line_config,
            train=config.train,
            model=model,
            keep=_keeper(folder),
            say=view.say,
            events=Events(run.path / EVENTS),
        )
        async with site(wanted) as parts:
            return await _insist(parts, run, chosen, config, line_config, start=start, view=view)


async def _insist(
    site: Site,
    run: Run,
    tasks: Sequence[Task],
    config: RlConfig,
    pace: LineConfig,
    *,
    start: Weights,
    view: View,
) -> Weights:
    """`train_rl`, and again from the last finished round when the trainer died, as often as the site says."""
    for left in range(site.restarts, -1, -1):
        try:
            async with site.trainer() as trainer:
                return await train_rl(
                    site.line, site.engine, trainer, run, tasks, config, pace, start=start, view=view
                )
        except EngineError as error:
            if not left or not isinstance(error.__cause__, WorkerDiedError):
                raise
            view.say(f"the trainer died and is started again from its last checkpoint ({left} times at most)")
    raise AssertionError("the last try returns or raises")
