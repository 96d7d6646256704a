"""Supervised fine-tuning: cross-entropy on what was sampled in resolved trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from patchwright.config import Config
from patchwright.errors import ConfigError
from patchwright.metrics import Metrics
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.cheats import OnCheat, earned
from patchwright.recipes.progress import View
from patchwright.recipes.task_import import benchmark_tasks
from patchwright.store import Run
from patchwright.tasks.select import refuse_ids
from patchwright.train.batch import epoch
from patchwright.train.config import TrainConfig, schedule
from patchwright.train.samples import samples as samples_of
from patchwright.train.worker import TrainerProcess
from patchwright.types import Outcome, Sample, Trajectory, Weights


class SftConfig(Config):
    """Supervised fine-tuning."""

    epochs: float = 2.0
    """How often a trajectory is seen, on average."""
    batch_tokens: int = 1000
    """Tokens per optimizer step, padding included."""
    context_weight: float = 0.0
    """Loss weight of tokens the model did not sample (prompts, observations); sampled ones have 1."""
    on_cheat: OnCheat = "unresolved"
    """What becomes of resolved trajectories with an integrity finding: left out (`unresolved`), or trained on
    like all others (`keep`)."""
    warmup_steps: int = 60
    """Optimizer steps until the full learning rate; it falls linearly over the second half."""
    train: TrainConfig = TrainConfig(normalise="token")
    """Optimizer."""


def sft_samples(trajectories: Iterable[Trajectory], config: SftConfig) -> list[Sample]:
    """Samples of resolved trajectories; others teach nothing here."""
    resolved = (t for t in trajectories if earned(t, config.on_cheat) is Outcome.RESOLVED)
    return [row for t in resolved for row in samples_of(t, context_weight=config.context_weight)]


async def run_sft(
    config: SftConfig, line: LineConfig, model: Path, data: Path, folder: Path, view: View
) -> Weights:
    """`patchwright train sft`: train `model` on the resolved trajectories of the run `data`.

    Weights 1 of the run in `folder` are the result. Raises ConfigError when there is nothing to train on, or
    when it is the benchmark's.
    """
    bench = benchmark_tasks(line.benchmark)
    with Run.open(data) as source:
        resolved = list(source.trajectories(outcome=Outcome.RESOLVED))
    refuse_ids((t.task_id for t in resolved), bench, allow=line.allow_overlap)
    samples = sft_samples(resolved, config)
    if not samples:
        raise ConfigError(_nothing(data, resolved))
    stored = {"sft": config.model_dump(mode="json"), "model": str(model), "data": str(data)}
    with Run.create_or_open(folder, stored) as run:
        async with TrainerProcess(model, config.train) as trainer:
            await train_sft(trainer, run, samples, config, view)
            return await trainer.save_weights(run.folder("weights", 1), 1)


def _nothing(data: Path, resolved: Sequence[Trajectory]) -> str:
    """Why a run has nothing to train on."""
    if any(turn.usage for trajectory in resolved for turn in trajectory.turns):
        why = "was made with an API, which gives text and no tokens: nothing can be trained on it"
    else:
        why = "has no resolved trajectory with recorded tokens to train on"
    return f"run {data} {why}; roll out with a local model or an expert first"


async def train_sft(
    trainer: TrainerProcess, run: Run, samples: Sequence[Sample], config: SftConfig, view: View
) -> None:
    """Run the epochs that are not done; each ends with a checkpoint of its number."""
    done = max((mark.step for mark in run.marks("sft")), default=0)
    if done:
        await trainer.load_checkpoint(run.folder("checkpoints", done))
    passes = _passes(samples, config)
    total = sum(map(len, passes))
    with view.stage("sft", total=total, done=sum(map(len, passes[:done]))) as stage:
        metrics = Metrics(run.path / "metrics.jsonl")
        for number, batches in enumerate(passes[done:], start=done + 1):
            for batch in batches:
                scale = schedule(stage.done, stage.done / total, warmup=config.warmup_steps)
                stats = await trainer.step(batch, loss="sft", lr_scale=scale)
                metrics.write("sft", stage.done, **asdict(stats))
                stage.advance()
                stage.note(f"loss {stats.loss:.3f}")
            await trainer.save_checkpoint(run.folder("checkpoints", number))
            run.mark("sft", number)


def _passes(samples: Sequence[Sample], config: SftConfig) -> list[list[list[Sample]]]:
    """The optimizer steps of every epoch; the last may be a part of one."""
    whole, part = divmod(config.epochs, 1)
    passes = [epoch(samples, config.batch_tokens, seed=number) for number in range(int(whole))]
    if part:
        last = epoch(samples, config.batch_tokens, seed=int(whole))
        passes.append(last[: max(1, round(part * len(last)))])
    return passes
