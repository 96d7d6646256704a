"""Reinforcement learning from test results: roll out groups, grade, train, load the weights back.

One step is synchronous, unless groups may be started ahead or carried over (`recipes/rounds.py`): every
rollout it trains on was sampled by the weights it updates. Its artefacts are committed in one order,
checkpoint first, so a killed run trains no rollout twice and loses none that was graded:

    rollouts stored one by one -> trainer step -> checkpoint (the commit) -> weights -> mark -> engine.load
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Self

from pydantic import Field, model_validator

from patchwright.config import Config
from patchwright.engine.base import Engine
from patchwright.metrics import Metrics
from patchwright.recipes.agents import open_agent
from patchwright.recipes.artefacts import keep_files, safe_name
from patchwright.recipes.assembly import LineConfig, open_boxes, open_engine, open_line
from patchwright.recipes.cheats import OnCheat, attempted_cheats
from patchwright.recipes.parity import (
    check_drift,
    check_parity,
    probe_prompt,
    refuse_truncation,
    refuse_unlike,
    stale,
)
from patchwright.recipes.policy import Rewards, rewards
from patchwright.recipes.policy import samples as samples_of
from patchwright.recipes.progress import Stage, View
from patchwright.recipes.rounds import Rounds
from patchwright.recipes.scores import Scores, ScoresConfig, open_scores
from patchwright.recipes.task_import import benchmark_tasks
from patchwright.recipes.verifier_prompt import read_about
from patchwright.render import Renderer
from patchwright.rollout.driver import group_jobs, insist
from patchwright.rollout.rollout import Job, Line
from patchwright.store import Run
from patchwright.tasks.files import load_tasks
from patchwright.tasks.select import refuse_overlap
from patchwright.tasks.trust import trusted
from patchwright.train.advantage import STEP
from patchwright.train.algorithm import AlgorithmConfig
from patchwright.train.config import TrainConfig
from patchwright.train.worker import TrainerProcess
from patchwright.types import Outcome, Sample, Task, Trajectory, Weights

_JUDGE = ("base_url", "api_key_env", "concurrency", "request_timeout", "patience")
MAY_CHANGE = ("rl.steps", "line.concurrency", *(f"rl.scores.judge.{name}" for name in _JUDGE))
"""What a resumed run may be given anew."""


class RlConfig(Config):
    """Group-relative policy optimisation on rewards from real test runs."""

    steps: int = 20
    """Optimizer rounds."""
    tasks_per_step: int = 16
    """Tasks (groups) per round."""
    samples_per_task: int = 8
    """Attempts per task: the group an advantage is relative to."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The algorithm."""
    reward_resolved: float = 1.0
    """Reward of a resolved attempt."""
    reward_unresolved: float = -1.0
    """Reward of an unresolved attempt (0 for rewards of 0 and 1). Void attempts have none."""
    on_cheat: OnCheat = "unresolved"
    """What an attempt with an integrity finding earns: `unresolved`, whatever its tests say, or `keep`, the
    reward of its verdict."""
    scores: ScoresConfig = ScoresConfig()
    """Scores beside the outcome: a judge of turns, trained verifiers."""
    over_sample: int = Field(default=0, ge=0)
    """Groups of the next round that may start while the last attempts of this one finish. They are trained in
    the next round, on tokens sampled one version of the weights earlier; 0: none."""
    carry_over: int = Field(default=0, ge=0)
    """Unfinished groups that do not hold a round up: they go on, and the next round trains on them; 0:
    none. With `over_sample` too, a group may be started ahead and carried over: two versions earlier."""
    keep_hackable: bool = True
    """Train on tasks that `patchwright tasks validate` found hackable too; flaky and broken ones are never
    trained on."""
    max_logprob_gap: float = 0.05
    """Largest difference between the engine's and the trainer's log-prob of a probe's tokens that is
    tolerated after a weight update; float32 on one machine differs by about 1e-5."""
    max_drift: float = Field(default=0.2, gt=0)
    """Largest mean difference between the log-prob the engine recorded of a token and the trainer's before
    its first update, over all tokens of a round that were sampled with the weights to be updated (of up to 16
    attempts, where the round has tokens of older weights too); past it the run stops, untrained. float32 on
    one machine differs by about 1e-6, bfloat16 engines by about 0.01."""
    train: TrainConfig = TrainConfig()
    """Optimizer."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.train.normalise != TrainConfig().normalise:
            raise ValueError("train.normalise is for supervised training; use algorithm.normalise")
        if self.carry_over >= self.tasks_per_step:
            raise ValueError("carry_over leaves a round nothing to train on; give less than tasks_per_step")
        algorithm, scores = self.algorithm.algorithm(), self.scores
        if algorithm.verifier_coef and not scores.verifiers:
            raise ValueError("verifier_coef rewards a verifier's score; give one in rl.scores.verifiers")
        scored = scores.judge.base_url or scores.verifiers or algorithm.advantage == STEP
        if algorithm.prm_coef and not scored:
            raise ValueError(
                "prm_coef rewards scores of turns; give who makes them: rl.scores.judge.base_url, or "
                "rl.scores.verifiers"
            )
        return self


async def train_rl(
    line: Line,
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
    if await _resume(engine, trainer, run, start, done):
        await check_parity(engine, trainer, config.max_logprob_gap, temperature=config.train.temperature)
    with view.stage("rl", total=config.steps, done=done) as progress:
        async with (
            open_scores(config.scores) as scores,
            _rounds(line, scores, engine, run, tasks, config, pace, progress) as rounds,
        ):
            await scores.check()
            for step in range(done + 1, config.steps + 1):
                started = time.monotonic()
                rollouts = await _roll_out(rounds, run, config, step)
                weights, trained = await _update(trainer, run, rollouts, config, first + step)
                await engine.load(weights)
                gap = await _compare(engine, trainer, rollouts, config)
                record = _record(rollouts, first + step - 1, config)
                record |= trained | scores.record(rollouts) | {"logprob_gap": gap}
                record["seconds"] = round(time.monotonic() - started, 2)
                metrics.write("rl", step, **record)
                run.mark("rl", step, **record)
                run.seal("rl", step)
                _forget(run, first + step - 2)
                progress.advance()
                progress.note(_note(record))
    return Weights(version=first + config.steps, path=str(run.folder("weights", first + config.steps)))


async def _resume(engine: Engine, trainer: TrainerProcess, run: Run, start: Weights, done: int) -> bool:
    """Bring trainer and engine to the last finished round; returns whether both are there.

    A checkpoint past it was trained but not yet loaded: the trainer goes on from it, and that round is not
    trained again."""
    number, latest = start.version + done, run.latest("checkpoints")
    if latest and latest[0] > start.version:
        await trainer.load_checkpoint(latest[1])
    path = str(run.folder("weights", number)) if done else start.path
    await engine.load(Weights(version=number, path=path))
    return latest is None or latest[0] <= number


async def _compare(
    engine: Engine, trainer: TrainerProcess, rollouts: Sequence[Trajectory], config: RlConfig
) -> float:
    """The largest gap of the two after an update, on a prompt of the round."""
    prompt = probe_prompt(rollouts, engine.max_context)
    bound, temperature = config.max_logprob_gap, config.train.temperature
    return await check_parity(engine, trainer, bound, temperature=temperature, prompt=prompt)


def choose(tasks: Sequence[Task], step: int, count: int, seed: int) -> list[Task]:
    """The tasks of a round: passes over all tasks, each pass in its own order. Depends on nothing else, so
    a resumed run goes on with the tasks an unbroken one would have had."""
    count = min(count, len(tasks))
    per_pass = len(tasks) // count
    turn, place = divmod(step - 1, per_pass)
    order = list(range(len(tasks)))
    random.Random(f"{seed}/{turn}").shuffle(order)
    return [tasks[i] for i in order[place * count : (place + 1) * count]]


def policy_samples(rollouts: Sequence[Trajectory], config: RlConfig) -> list[Sample]:
    """Samples of the attempts that carry a gradient: void ones and, as a rule, flat groups carry none."""
    return samples_of(_groups(rollouts), _worth(config), config.algorithm.algorithm(), config.on_cheat)


def policy_rewards(rollouts: Sequence[Trajectory], config: RlConfig) -> list[float]:
    """Rewards of the attempts that were not void, group after group."""
    algorithm, worth = config.algorithm.algorithm(), _worth(config)
    given = [rewards(group, worth, algorithm, config.on_cheat) for group in _groups(rollouts)]
    return [reward for group in given for reward in group if reward is not None]


def _groups(rollouts: Sequence[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in rollouts:
        groups[trajectory.group].append(trajectory)
    return [group for _, group in sorted(groups.items())]


def _worth(config: RlConfig) -> Rewards:
    return {Outcome.RESOLVED: config.reward_resolved, Outcome.UNRESOLVED: config.reward_unresolved}


def _jobs(tasks: Sequence[Task], config: RlConfig, pace: LineConfig, step: int) -> list[Job]:
    chosen = choose(tasks, step, config.tasks_per_step, pace.seed)
    seed = hash((pace.seed, step))
    sampling = pace.sampling.sampling()
    return group_jobs(
        chosen, name=f"rl-{step}", samples=config.samples_per_task, sampling=sampling, seed=seed
    )


def _rounds(
    line: Line,
    scores: Scores,
    engine: Engine,
    run: Run,
    tasks: Sequence[Task],
    config: RlConfig,
    pace: LineConfig,
    progress: Stage,
) -> Rounds:
    """The run's rounds: attempts already graded are taken from the store, the others are made."""
    watched = scores.over(line)
    total = min(config.tasks_per_step, len(tasks)) * config.samples_per_task

    def jobs(step: int) -> list[Job]:
        return _jobs(tasks, config, pace, step)

    def have(step: int) -> set[str]:
        stored = (t for t in run.trajectories(stage="rl", step=step) if t.outcome is not Outcome.VOID)
        return {t.id for t in stored if not scores.lacking(t)}

    async def make(job: Job, step: int) -> None:
        entry = run.entry(job.id)
        if entry is not None and entry.outcome is not Outcome.VOID:  # stopped before it was scored
            trajectory, version = run.trajectory(job.id), entry.version
        else:
            version = engine.version
            trajectory = await insist(watched, job, pace.retries)
            run.put(trajectory, stage="rl", step=step, version=version)
        scored = await scores.finish(trajectory, job.task.prompt)
        if scored is not trajectory:  # a score that never came costs no graded attempt
            run.put(scored, stage="rl", step=step, version=version)
        progress.note(f"round {step}: {len(run.keys('rl', step))}/{total} attempts")

    return Rounds(
        jobs=jobs,
        make=make,
        have=have,
        last=config.steps,
        concurrency=pace.concurrency,
        ahead=config.over_sample,
        carry=config.carry_over,
    )


_LATE = "rl-late"
"""Journal: the groups a round was closed without. Written before it is trained, so that a resumed run trains
the same."""


async def _roll_out(rounds: Rounds, run: Run, config: RlConfig, step: int) -> list[Trajectory]:
    """The attempts round `step` trains on."""
    late: dict[int, Collection[str]] = {mark.step: mark.info["groups"] for mark in run.marks(_LATE)}
    before = late.get(step - 1, ())
    now = await rounds.play(step, before, late.get(step))
    if config.carry_over and step not in late:
        run.mark(_LATE, step, groups=sorted(now))
    rollouts = [t for t in run.get("rl", step) if t.group not in now]
    if before:
        rollouts += [t for t in run.get("rl", step - 1) if t.group in before]
        run.seal("rl", step - 1)
    return rollouts


Figures = dict[str, float | int | None]
"""What `metrics.jsonl` is told."""


async def _update(
    trainer: TrainerProcess, run: Run, rollouts: Sequence[Trajectory], config: RlConfig, number: int
) -> tuple[Weights, Figures]:
    """Train unless the checkpoint says it was done, then make sure the weights are there."""
    figures: Figures = {}
    if not run.folder("checkpoints", number).exists():
        samples = policy_samples(rollouts, config)
        if samples:
            figures = await _train(trainer, rollouts, samples, config, number - 1)
        await trainer.save_checkpoint(run.folder("checkpoints", number))
    folder = run.folder("weights", number)
    if not folder.exists():
        await trainer.save_weights(folder, number)
    return Weights(version=number, path=str(folder)), figures


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
    loss, bound = config.algorithm.algorithm().loss, config.max_drift
    mixed = any(stale(t, version) for t in rollouts)
    fresh = await check_drift(trainer, rollouts, version, bound) if mixed else None
    stats = await trainer.step(samples, loss=replace(loss, max_drift=float("inf") if mixed else bound))
    return asdict(stats) | {"drift_fresh": fresh if mixed else stats.drift}


def _record(rollouts: Sequence[Trajectory], version: int, config: RlConfig) -> Figures:
    graded = [t for t in rollouts if t.outcome is not Outcome.VOID]
    resolved = sum(t.outcome is Outcome.RESOLVED for t in graded)
    given = policy_rewards(rollouts, config)
    return {
        "attempts": len(rollouts),
        "void": len(rollouts) - len(graded),
        "resolve_rate": resolved / len(graded) if graded else 0.0,
        "reward": fmean(given) if given else None,
        "cheat_rate": attempted_cheats(graded),
        "stale": sum(stale(t, version) for t in rollouts) / max(1, len(rollouts)),
        "turns": sum(len(t.turns) for t in rollouts) / max(1, len(rollouts)),
        "submitted": sum(t.exit == "submitted" for t in rollouts) / max(1, len(rollouts)),
    }


def _note(record: Mapping[str, float | int | None]) -> str:
    flagged = f", flagged {record['cheat_rate']:.2f}" if record["cheat_rate"] else ""
    failed = f", votes failed {record['votes_failed']}" if record.get("votes_failed") else ""
    return f"resolved {record['resolve_rate']:.2f}, void {record['void']}{flagged}{failed}"


def _forget(run: Run, number: int) -> None:
    """Drop the checkpoint before the last: one is enough to resume, two survive a torn disk."""
    old: Path = run.folder("checkpoints", number)
    if number > 0 and old.exists():
        run.drop_folder(old)


def _keeper(folder: Path) -> Callable[[str, Mapping[str, bytes]], None]:
    """Keeps what agents leave besides a patch, by attempt, as `rollout` and `eval` do."""
    return lambda name, left: keep_files(folder / "artefacts" / safe_name(name), left)


async def run_rl(
    config: RlConfig, line_config: LineConfig, tasks: Path, model: Path, folder: Path, view: View
) -> Weights:
    """`patchwright train rl`: train the model in `model` on the tasks of a file; returns the last weights."""
    refuse_unlike(line_config.sampling, config.train.temperature)
    for verifier in config.scores.verifiers:
        read_about(Path(verifier))  # says what is missing before a run is begun
    chosen = trusted(load_tasks(tasks), keep_hackable=config.keep_hackable)
    refuse_overlap(chosen, benchmark_tasks(line_config.benchmark), allow=line_config.allow_overlap)
    stored = {
        "rl": config.model_dump(mode="json"),
        "line": line_config.model_dump(mode="json"),
        "tasks": str(tasks),
        "model": str(model),
    }
    async with AsyncExitStack() as stack:
        run = stack.enter_context(Run.create_or_open(folder, stored, may_change=MAY_CHANGE))
        agent = await stack.enter_async_context(open_agent(line_config.agent))
        backend = await stack.enter_async_context(open_boxes(line_config.sandbox))
        engine = await stack.enter_async_context(open_engine(model, line_config.engine))
        refuse_truncation(engine, line_config.sampling)
        renderer = Renderer.load(str(model))
        opened = open_line(backend, agent, engine, renderer, history=line_config.history)
        line = replace(await stack.enter_async_context(opened), keep=_keeper(folder))
        trainer = await stack.enter_async_context(TrainerProcess(model, config.train))
        start = Weights(version=0, path=str(model))
        return await train_rl(line, engine, trainer, run, chosen, config, line_config, start=start, view=view)
