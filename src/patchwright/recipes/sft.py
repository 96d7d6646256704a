"""Supervised fine-tuning: cross-entropy on what was said in resolved attempts, or in rows of messages.

    data -> samples -> (held out | epochs of optimizer steps) -> checkpoint every so many -> weights 1

Which rows share a step depends on the seed and the place of the step alone, and a checkpoint is marked when
it is whole: a run killed at any moment goes on with the step it would have taken next, to the bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from patchwright.config import Config
from patchwright.errors import AgentError, ConfigError
from patchwright.metrics import Metrics
from patchwright.metrics.trace import step_span
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.cheats import OnCheat, earned
from patchwright.recipes.data.conversation import Unfit, plain
from patchwright.recipes.data.trajectories import conversations, tools_of, verdict
from patchwright.recipes.held_out import refuse_held_out_ids
from patchwright.recipes.legible import legible
from patchwright.recipes.progress import Stage, View
from patchwright.render import Renderer
from patchwright.store import Run
from patchwright.train.batch import epoch
from patchwright.train.config import Shape, TrainConfig, planned
from patchwright.train.messages import message_samples
from patchwright.train.samples import samples as samples_of
from patchwright.train.worker import TrainerProcess
from patchwright.types import Outcome, Sample, Trajectory, Weights

MAY_CHANGE = ("sft.checkpoint_every",)
"""What a resumed run may be given anew."""


class SftConfig(Config):
    """Supervised fine-tuning."""

    epochs: float = 2.0
    """How often a trajectory is seen, on average."""
    batch_tokens: int = 65_536
    """Tokens per optimizer step, padding included. 65,536 is LIMA's 32 rows of 2,048 (arXiv 2305.11206); a
    small model from scratch learns faster with about 1,000."""
    context_weight: float = 0.0
    """Loss weight of tokens the model did not sample (prompts, observations); sampled ones have 1."""
    on_cheat: OnCheat = "unresolved"
    """What becomes of resolved trajectories with an integrity finding: left out (`unresolved`), or trained on
    like all others (`keep`)."""
    schedule: Shape = "trapezoid"
    """How the learning rate goes after the warm-up: `trapezoid` (flat, then down over the second half),
    `cosine`, `linear` or `constant`."""
    warmup_steps: int = 10
    """Optimizer steps until the full learning rate."""
    floor: float = Field(default=0.02, ge=0, le=1)
    """Share of the learning rate that is left at the end."""
    max_length: int = Field(default=0, ge=0)
    """Rows of more tokens are left out; 0 keeps all."""
    held_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the tasks whose rows are not trained on: their loss is measured."""
    evaluate_every: int = Field(default=0, ge=0)
    """Optimizer steps between two measurements; 0: at the end of each epoch."""
    checkpoint_every: int = Field(default=0, ge=0)
    """Optimizer steps between two checkpoints; 0: at the end of each epoch."""
    train: TrainConfig = TrainConfig(normalise="token")
    """Optimizer."""


@dataclass(frozen=True, slots=True)
class Data:
    """Rows to train on, and rows of other tasks to measure the loss on."""

    train: list[Sample]
    held_out: list[Sample]


# --- data -------------------------------------------------------------------------------------


def sft_samples(trajectories: Iterable[Trajectory], config: SftConfig) -> list[Sample]:
    """Samples of resolved trajectories; others teach nothing here."""
    resolved = (t for t in trajectories if earned(t, config.on_cheat) is Outcome.RESOLVED)
    return [row for t in resolved for row in samples_of(t, context_weight=config.context_weight)]


def load_data(config: SftConfig, line: LineConfig, model: Path, data: Path, view: View) -> Data:
    """The rows of a run, or of a file of messages (`.jsonl`, `.json`, `.parquet`, or a hub's OWNER/NAME).

    Raises ConfigError when there is nothing to train on, or when it is the benchmark's.
    """
    stored = (data / "run.db").is_file()
    found = list(_of_run(config, model, data) if stored else _of_rows(config, model, data))
    refuse_held_out_ids((task for task, _ in found), line, [data] if stored else [])
    rows = [(task, row) for task, said in found for row in said]
    if not rows:
        raise ConfigError(_nothing(data, stored))
    short = [(task, row) for task, row in rows if config.max_length <= 0 or len(row) <= config.max_length]
    if not short:
        raise ConfigError(f"all rows of {data} are longer than sft.max_length = {config.max_length} tokens")
    if len(short) < len(rows):
        view.say(f"{len(rows) - len(short)} rows longer than {config.max_length} tokens are left out")
    return _split(short, config.held_out)


def _nothing(data: Path, stored: bool) -> str:
    """Why there is nothing to train on."""
    why = "has no resolved trajectory with recorded tokens to train on"
    if stored:
        with Run.open(data) as source:
            if any(turn.usage for found in source.trajectories() for turn in found.turns):
                why = "was made with an API, which gives text and no tokens: nothing can be trained on it"
    return f"run {data} {why}; roll out with a local model or an expert first, or give a file of messages"


def _of_run(config: SftConfig, model: Path, data: Path) -> Iterator[tuple[str, list[Sample]]]:
    """Task -> rows of recorded tokens; attempts of which only messages were kept are tokenised."""
    renderer: Renderer | None = None
    with Run.open(data) as source:
        for trajectory in source.trajectories(outcome=Outcome.RESOLVED):
            rows = sft_samples([trajectory], config)
            if not trajectory.turns and trajectory.messages:
                renderer = renderer or Renderer.load(str(model))
                rows = _said(trajectory.messages, None, trajectory.id, config, renderer)
            yield trajectory.task_id, rows


def _of_rows(config: SftConfig, model: Path, data: Path) -> Iterator[tuple[str, list[Sample]]]:
    """Every row that is not said to be unresolved, as it stands: policies' rows, and verifiers'."""
    if data.is_dir():
        Run.open(data)  # says what is missing
    renderer = Renderer.load(str(model))
    for number, (item, messages) in enumerate(conversations(str(data))):
        if verdict(item) is not False:
            task = str(item.row.get("task_id") or item.row.get("instance_id") or f"row-{number}")
            yield task, _said(messages, tools_of(item), f"{task}/{number}", config, renderer)


def _said(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    name: str,
    config: SftConfig,
    renderer: Renderer,
) -> list[Sample]:
    weight = config.context_weight
    try:
        found = message_samples(plain(messages), renderer, name=name, tools=tools, context_weight=weight)
    except (AgentError, Unfit) as error:
        why = legible(str(error))
        raise ConfigError(f"conversation {name} cannot be tokenised: {why}; leave it out") from None
    return [row for row in found if any(row.weights)]


def _split(rows: Sequence[tuple[str, Sample]], share: float) -> Data:
    """By task, so that no task is on both sides; which ones depends on their names alone.

    Raises ConfigError when one side would be empty.
    """
    names = sorted({task for task, _ in rows}, key=lambda task: hashlib.sha256(task.encode()).digest())
    out = set(names[: round(share * len(names))])
    if share and not 0 < len(out) < len(names):
        raise ConfigError(
            f"sft.held_out = {share:g} of {len(names)} tasks leaves one side empty; give another share"
        )
    return Data([row for task, row in rows if task not in out], [row for task, row in rows if task in out])


# --- training ---------------------------------------------------------------------------------


async def run_sft(
    config: SftConfig, line: LineConfig, model: Path, data: Path, folder: Path, view: View
) -> Weights:
    """`patchwright train sft`: train `model` on the resolved trajectories of the run `data`, or on the
    messages of the file `data`.

    Weights 1 of the run in `folder` are the result. Raises ConfigError when there is nothing to train on, or
    when it is the benchmark's.
    """
    rows = load_data(config, line, model, data, view)
    stored = {"sft": config.model_dump(mode="json"), "model": str(model), "data": str(data)}
    with Run.create_or_open(folder, stored, may_change=MAY_CHANGE) as run:
        async with TrainerProcess(model, config.train) as trainer:
            await train_sft(trainer, run, rows, config, view)
            return await trainer.save_weights(run.folder("weights", 1), 1)


async def train_sft(trainer: TrainerProcess, run: Run, data: Data, config: SftConfig, view: View) -> None:
    """Take the optimizer steps that were not taken yet. The two last checkpoints stay."""
    done = max((mark.step for mark in run.marks("sft")), default=0)
    if done:
        await trainer.load_checkpoint(run.folder("checkpoints", done))
    steps, ends = plan_steps(data.train, config)
    metrics = Metrics(run.path / "metrics.jsonl")
    with view.stage("sft", total=len(steps), done=done) as stage:
        for step, batch in enumerate(steps[done:], start=done):
            scale = planned(config.schedule, step, len(steps), warmup=config.warmup_steps, floor=config.floor)
            with step_span("sft", step):
                stats = await trainer.step(batch, loss="sft", lr_scale=scale)
            metrics.write("sft", step, **asdict(stats))
            stage.advance()
            stage.note(f"loss {stats.loss:.3f}")
            if data.held_out and _due(step + 1, config.evaluate_every, ends):
                await _measure(trainer, data.held_out, metrics, step + 1, stage)
            if _due(step + 1, config.checkpoint_every, ends):
                await _commit(trainer, run, step + 1)


def plan_steps(samples: Sequence[Sample], config: SftConfig) -> tuple[list[list[Sample]], set[int]]:
    """The optimizer steps of all epochs, and how many are done at the end of each; the last epoch may be a
    part of one."""
    whole, part = divmod(config.epochs, 1)
    passes = [epoch(samples, config.batch_tokens, seed=number) for number in range(int(whole))]
    if part:
        last = epoch(samples, config.batch_tokens, seed=int(whole))
        passes.append(last[: max(1, round(part * len(last)))])
    ends = {sum(map(len, passes[:number])) for number in range(1, len(passes) + 1)}
    return [step for steps in passes for step in steps], ends


def _due(done: int, every: int, ends: set[int]) -> bool:
    return done in ends or (every > 0 and done % every == 0)


async def _measure(
    trainer: TrainerProcess, rows: Sequence[Sample], metrics: Metrics, done: int, stage: Stage
) -> None:
    loss = await trainer.evaluate(rows)
    metrics.write("sft-held-out", done, loss=loss)
    stage.note(f"held-out loss {loss:.3f}")


async def _commit(trainer: TrainerProcess, run: Run, done: int) -> None:
    """A whole checkpoint, then its mark; what lies before the last mark is needed no more."""
    before = sorted(mark.step for mark in run.marks("sft"))
    await trainer.save_checkpoint(run.folder("checkpoints", done))
    run.mark("sft", done)
    for old in before[:-1]:
        if run.folder("checkpoints", old).exists():
            run.drop_folder(run.folder("checkpoints", old))
