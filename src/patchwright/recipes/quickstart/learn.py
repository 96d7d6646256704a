"""From nothing to a policy that edits code: a tokenizer and a model made on the spot, then SFT on expert
trajectories while the next of them are still being rolled out."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path

from patchwright.metrics import Metrics
from patchwright.metrics.trace import step_span
from patchwright.recipes.experts import Experts
from patchwright.recipes.progress import Stage, View
from patchwright.recipes.quickstart.config import QuickstartConfig
from patchwright.recipes.sft import sft_samples
from patchwright.render import CHATML, Renderer
from patchwright.rollout.rollout import Line
from patchwright.store import Run
from patchwright.train.batch import epoch
from patchwright.train.config import schedule
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.train.worker import TrainerProcess
from patchwright.types import Outcome, Sample, Task, Trajectory

EASY = (1.0, 0.0, 0.0)
"""Direct fixes only."""

_CALL = 25
"""Optimizer steps per call of the trainer's process: the view moves, the pipe does not matter."""

# Written out by the agent's templates and the expert on every turn: worth a token each.
PHRASES = (
    "<returncode>0</returncode>\n<output>\n",
    "<returncode>1</returncode>\n<output>\n",
    "</output>",
    "THOUGHT: ",
    "\n```bash\n",
    "\n```",
    " mod.py",
    "sed -i '",
    "c\\",
    "FAILED test_mod.py::",
)


async def make_tokenizer(
    scripted: Callable[[Renderer], AbstractAsyncContextManager[Line]],
    run: Run,
    tasks: Sequence[Task],
    config: QuickstartConfig,
    folder: Path,
    view: View,
) -> None:
    """Train the tokenizer on the text of expert attempts, and save it to `folder`.

    Those attempts are recorded with bytes for tokens (there is no other tokenizer yet) and train nothing
    else.
    """
    with tempfile.TemporaryDirectory() as spelled, view.stage("tokenizer", total=len(tasks)) as stage:
        save_tokenizer(train_tokenizer([], vocab_size=260), Path(spelled), chat_template=CHATML)
        renderer = Renderer.load(spelled)
        async with scripted(renderer) as line:
            experts = Experts(line, renderer, run, stage="tokenizer", seed=config.line.seed)
            attempts = await experts.roll(tasks, 0, config.experts.mix, stage)
    texts = [_text(attempt) for attempt in attempts]
    tokenizer = train_tokenizer(texts, vocab_size=config.tokenizer.vocab_size, phrases=PHRASES)
    save_tokenizer(tokenizer, folder, chat_template=CHATML)


def _text(trajectory: Trajectory) -> str:
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in trajectory.messages)


async def learn_from_experts(
    experts: Experts,
    trainer: TrainerProcess,
    run: Run,
    tasks: Sequence[Task],
    config: QuickstartConfig,
    view: View,
) -> None:
    """SFT over the portions of expert trajectories, rolled out while those before are trained on.

    A portion ends with a checkpoint of its number; a resumed call goes on after the last one.
    """
    done = max((mark.step for mark in run.marks("sft")), default=0)
    if done:
        await trainer.load_checkpoint(run.folder("checkpoints", done))
    seen = [row for wave in range(1, done + 1) for row in _samples(run.get(experts.stage, wave), config)]
    per_wave = round(config.sft.epochs * config.experts.per_wave)
    with view.stage("sft", total=per_wave * config.experts.waves, done=per_wave * done) as stage:
        rolls = _start_rolls(experts, tasks, range(done + 1, config.experts.waves + 1), config)
        try:
            for wave, roll in rolls.items():
                fresh = await roll
                await _train_wave(trainer, run, fresh, seen, wave, config, stage)
                seen += fresh
        finally:
            for roll in rolls.values():
                roll.cancel()
            await asyncio.gather(*rolls.values(), return_exceptions=True)


def _start_rolls(
    experts: Experts, tasks: Sequence[Task], waves: Iterable[int], config: QuickstartConfig
) -> dict[int, asyncio.Task[list[Sample]]]:
    """Roll out one portion after another, as fast as the machine goes beside the training."""

    async def roll(wave: int, before: asyncio.Task[list[Sample]] | None) -> list[Sample]:
        if before is not None:
            await before
        return await _roll_wave(experts, tasks, wave, config)

    rolls: dict[int, asyncio.Task[list[Sample]]] = {}
    for wave in waves:
        rolls[wave] = asyncio.create_task(roll(wave, rolls.get(wave - 1)))
    return rolls


async def _roll_wave(
    experts: Experts, tasks: Sequence[Task], wave: int, config: QuickstartConfig
) -> list[Sample]:
    """Roll out portion `wave` (from 1) of the tasks."""
    counts = config.experts
    portion = tasks[(wave - 1) * counts.per_wave : wave * counts.per_wave]
    return _samples(
        await experts.roll(portion, wave, EASY if wave <= counts.easy_waves else counts.mix), config
    )


def _samples(attempts: Sequence[Trajectory], config: QuickstartConfig) -> list[Sample]:
    return sft_samples([t for t in attempts if t.outcome is Outcome.RESOLVED], config.sft)


async def _train_wave(
    trainer: TrainerProcess,
    run: Run,
    fresh: Sequence[Sample],
    seen: Sequence[Sample],
    wave: int,
    config: QuickstartConfig,
    stage: Stage,
) -> None:
    """Train on a portion and on a replay of earlier rows, then commit the checkpoint."""
    rng = random.Random(f"{config.line.seed}/{wave}")
    rows = round(config.sft.epochs * config.experts.per_wave)
    older = [*seen, *fresh]
    replay = rng.sample(older, min(len(older), max(0, rows - len(fresh))))
    batches = epoch([*fresh, *replay], config.sft.batch_tokens, seed=rng.randrange(2**31))
    metrics = Metrics(run.path / "metrics.jsonl")
    for start in range(0, len(batches), _CALL):
        part = batches[start : start + _CALL]
        share = (wave - 1 + start / len(batches)) / config.experts.waves
        first = (wave - 1) * len(batches) + start
        scales = [schedule(first + i, share, warmup=config.sft.warmup_steps) for i in range(len(part))]
        with step_span("sft", first):
            stats = await trainer.steps(part, loss="sft", lr_scales=scales)
        stage.advance(sum(map(len, part)))
        stage.note(f"loss {stats.loss:.3f}")
        metrics.write("sft", first, **asdict(stats))
    await trainer.save_checkpoint(run.folder("checkpoints", wave))
    run.mark("sft", wave, rows=len(fresh) + len(replay), batches=len(batches))
