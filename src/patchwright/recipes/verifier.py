"""Train a verifier: a language model that answers, of an attempt or of a step in it, one token: yes or no.

The loss is that of the language model on that one token; there is no other head and no other trainer. With
`verifier.prompt.unit = "turn"` the same recipe makes a process reward model.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from patchwright.config import Config
from patchwright.errors import ConfigError
from patchwright.metrics import Metrics
from patchwright.metrics.trace import step_span
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.best_of import auc, calibration_error
from patchwright.recipes.held_out import refuse_held_out_ids
from patchwright.recipes.progress import Stage, View
from patchwright.recipes.stages import stages_like
from patchwright.recipes.verifier_prompt import About, PromptConfig, Prompter, answers, write_about
from patchwright.render import Renderer
from patchwright.store import Run
from patchwright.train.batch import epoch
from patchwright.train.config import TrainConfig, schedule
from patchwright.train.scoring import ScorerConfig, ScorerProcess
from patchwright.train.worker import TrainerProcess
from patchwright.types import Outcome, Sample, Trajectory, Weights

__all__ = ["Row", "VerifierConfig", "balanced", "labelled", "rows_of", "run_verifier", "sample_of"]

_CALL = 25
"""Optimizer steps per call of the trainer's process."""


class VerifierConfig(Config):
    """Training of a verifier, or of a process reward model."""

    prompt: PromptConfig = PromptConfig()
    """What it reads."""
    labels: Literal["outcome", "scores"] = "outcome"
    """What a turn is labelled with, where turns are judged: how its attempt ended, or the sign of the score
    it was given (`patchwright judge`). Whole attempts are always labelled with how they ended."""
    balance: bool = True
    """As many rows of one label as of the other, chosen at random. Without it the scores keep to the base
    rate of the data, which calibrates them for data like it."""
    holdout: float = Field(default=0.1, ge=0, lt=1)
    """Share of the tasks kept out of training, to measure the verifier on."""
    epochs: float = Field(default=2.0, gt=0)
    """How often a row is seen, on average."""
    batch_tokens: int = Field(default=8000, ge=1)
    """Tokens per optimizer step, padding included."""
    warmup_steps: int = Field(default=20, ge=0)
    """Optimizer steps until the full learning rate; it falls linearly over the second half."""
    seed: int = 0
    """Chooses rows and held-out tasks, and shuffles."""
    train: TrainConfig = TrainConfig(normalise="token")
    """Optimizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One thing to judge. Example: `Row(task_id="toy-1", prompt_ids=(5, 6, 7), good=True)`"""

    task_id: str
    prompt_ids: tuple[int, ...]
    good: bool


async def run_verifier(
    config: VerifierConfig,
    line: LineConfig,
    model: Path,
    data: Sequence[Path],
    stage: str,
    folder: Path,
    view: View,
) -> tuple[Weights, dict[str, Any]]:
    """`patchwright train verifier`: begin from `model`, train on the graded attempts of the runs `data` whose
    stage matches the pattern `stage`; weights 1 of the run in `folder` are the verifier.

    Returns them with what `summary.json` says of it. Raises ConfigError when there is nothing to learn from,
    or when it is the benchmark's.
    """
    renderer, prompt = Renderer.load(str(model)), within(config.prompt, model)
    yes, no = answers(renderer)
    config = config.model_copy(update={"prompt": prompt})
    learn, held = _split(list(_rows(config, line, data, stage, Prompter(renderer, prompt), view)), config)
    stored = {"verifier": config.model_dump(mode="json"), "model": str(model), "stage": stage}
    with Run.create_or_open(folder, {**stored, "data": [str(path) for path in data]}) as run:
        samples = [sample_of(row, yes if row.good else no) for row in learn]
        async with TrainerProcess(model, config.train) as trainer:
            await _train(trainer, run, samples, config, view)
            final = run.folder("weights", 1)
            if not final.exists():
                await trainer.save_weights(final, 1)
        write_about(final, _about(prompt, learn))
        found = await _measure(final, held, ScorerConfig(yes=yes, no=no, threads=config.train.threads))
        summary = {"rows": len(learn), "tasks": len({row.task_id for row in learn}), "held_out": found}
        run.write_summary({"stages": [], "verifier": summary})
        return Weights(version=1, path=str(final)), summary


def _about(prompt: PromptConfig, learn: Sequence[Row]) -> About:
    share = sum(row.good for row in learn) / len(learn)
    return About(prompt=prompt, tasks=tuple(sorted({row.task_id for row in learn})), share_yes=share)


def within(prompt: PromptConfig, model: Path) -> PromptConfig:
    """The settings with prompts that fit the model's context, an answer of one token included."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    most = config.get("max_position_embeddings")
    if not isinstance(most, int) or prompt.max_tokens < most:
        return prompt
    return prompt.model_copy(update={"max_tokens": most - 1})


# --- rows -------------------------------------------------------------------------------------


def rows_of(trajectory: Trajectory, prompter: Prompter, labels: str = "outcome") -> list[Row]:
    """The rows of one attempt; none when it is void or, for labels that are scores, was not scored."""
    if trajectory.outcome is Outcome.VOID:
        return []
    rows = []
    for turn, ids in prompter.prompts(trajectory).items():
        good = labelled(trajectory, turn, labels)
        if good is not None:
            rows.append(Row(task_id=trajectory.task_id, prompt_ids=tuple(ids), good=good))
    return rows


def labelled(trajectory: Trajectory, turn: int | None, labels: str) -> bool | None:
    """Whether a turn (None: the attempt) is good; None when nobody knows."""
    if turn is None or labels == "outcome":
        return trajectory.outcome is Outcome.RESOLVED
    scores = trajectory.grade.turn_scores if trajectory.grade else ()
    score = scores[turn] if turn < len(scores) else None
    return score > 0 if score else None  # as many votes for it as against it say nothing


def sample_of(row: Row, answer: int) -> Sample:
    """A training row: the prompt, and the answer as the only token that trains."""
    ids = (*row.prompt_ids, answer)
    zeros = (0.0,) * len(row.prompt_ids)
    return Sample(
        token_ids=ids,
        mask=(0,) * len(row.prompt_ids) + (1,),
        logprobs=(0.0,) * len(ids),
        advantages=(0.0,) * len(ids),
        weights=(*zeros, 1.0),
    )


def balanced(rows: Sequence[Row], seed: int) -> list[Row]:
    """As many good rows as bad ones, chosen at random; the same seed chooses the same."""
    good, bad = ([row for row in rows if row.good is label] for label in (True, False))
    count, rng = min(len(good), len(bad)), random.Random(seed)
    return rng.sample(good, count) + rng.sample(bad, count)


def _rows(
    config: VerifierConfig,
    line: LineConfig,
    data: Sequence[Path],
    stage: str,
    prompter: Prompter,
    view: View,
) -> Iterator[Row]:
    """Of every run; refuses tasks that are held out."""
    for path in data:
        with Run.open(path) as source:
            wanted = stages_like(stage, (entry.stage for entry in source.entries()), f"run {path}")
            names = [entry for entry in source.entries() if entry.stage in wanted]
            refuse_held_out_ids((entry.task_id for entry in names), line, [path])
            with view.stage("rows", total=len(names)) as progress:
                for step in sorted({(entry.stage, entry.step) for entry in names}):
                    yield from _counted(
                        source.trajectories(stage=step[0], step=step[1]), progress, prompter, config
                    )


def _counted(
    trajectories: Iterable[Trajectory], progress: Stage, prompter: Prompter, config: VerifierConfig
) -> Iterator[Row]:
    for trajectory in trajectories:
        yield from rows_of(trajectory, prompter, config.labels)
        progress.advance()


def _split(rows: Sequence[Row], config: VerifierConfig) -> tuple[list[Row], list[Row]]:
    """(training rows, held-out rows): no task is in both. Raises ConfigError when one label is missing."""
    tasks = sorted({row.task_id for row in rows})
    random.Random(config.seed).shuffle(tasks)
    kept = set(tasks[: int(config.holdout * len(tasks))])
    learn = [row for row in rows if row.task_id not in kept]
    learn = balanced(learn, config.seed) if config.balance else learn
    if len({row.good for row in learn}) < 2:
        raise ConfigError(
            "a verifier needs resolved and unresolved attempts to learn from, and the data has not both; "
            "give more runs with --data, or another --stage"
        )
    return learn, [row for row in rows if row.task_id in kept]


# --- training ---------------------------------------------------------------------------------


async def _train(
    trainer: TrainerProcess, run: Run, samples: Sequence[Sample], config: VerifierConfig, view: View
) -> None:
    """The epochs that are not done; each ends with a checkpoint of its number."""
    done = max((mark.step for mark in run.marks("verifier")), default=0)
    if done:
        await trainer.load_checkpoint(run.folder("checkpoints", done))
    passes = _passes(samples, config)
    total, metrics = sum(map(len, passes)), Metrics(run.path / "metrics.jsonl")
    with view.stage("verifier", total=total, done=sum(map(len, passes[:done]))) as stage:
        for number, batches in enumerate(passes[done:], start=done + 1):
            for start in range(0, len(batches), _CALL):
                part = batches[start : start + _CALL]
                steps = range(stage.done, stage.done + len(part))
                scales = [schedule(step, step / total, warmup=config.warmup_steps) for step in steps]
                with step_span("verifier", stage.done):
                    stats = await trainer.steps(part, loss="sft", lr_scales=scales)
                stage.advance(len(part))
                stage.note(f"loss {stats.loss:.3f}")
                metrics.write("verifier", stage.done, **asdict(stats))
            await trainer.save_checkpoint(run.folder("checkpoints", number))
            run.mark("verifier", number)


def _passes(samples: Sequence[Sample], config: VerifierConfig) -> list[list[list[Sample]]]:
    """The optimizer steps of every epoch; the last may be a part of one."""
    whole, part = divmod(config.epochs, 1)
    count = int(whole) + (part > 0)
    passes = [epoch(samples, config.batch_tokens, seed=config.seed + number) for number in range(count)]
    if part:
        passes[-1] = passes[-1][: max(1, round(part * len(passes[-1])))]
    return passes


async def _measure(folder: Path, held: Sequence[Row], config: ScorerConfig) -> dict[str, Any]:
    """AUC and calibration on rows of tasks that were not trained on."""
    if not held:
        return {"rows": 0, "auc": None, "calibration_error": None}
    async with ScorerProcess(folder, config) as scorer:
        scores = await scorer.score([row.prompt_ids for row in held])
    pairs = [(score, row.good) for score, row in zip(scores, held, strict=True)]
    return {"rows": len(held), "auc": auc(pairs), "calibration_error": calibration_error(pairs)}
