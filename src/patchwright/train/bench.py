"""How fast the trainer is, against a plain transformers loop over the same rows in the same process.

Counted in tokens without padding per second of CPU time, so that other work on the machine matters little.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

from patchwright.train.batch import epoch
from patchwright.train.checkpoint import write_new_model
from patchwright.train.config import ModelConfig, TrainConfig
from patchwright.train.model import load_model, new_model
from patchwright.train.tokenizer import train_tokenizer
from patchwright.train.trainer import Trainer
from patchwright.types import Sample

__all__ = ["TrainBench", "bench_train"]

STEP_TOKENS = 1000
IGNORED = -100
"""The label transformers leaves out of its loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainBench:
    """Tokens per CPU-second, one thread, median over rounds.

    Example: `TrainBench(sft=10_100, policy=10_900, plain=6_900)`
    """

    sft: float
    """`Trainer.step` with cross-entropy on steps of about 1,000 tokens."""
    policy: float
    """`Trainer.step` with the clipped policy loss on all rows at once."""
    plain: float
    """Model call with labels and attention mask, rows batched in the order they come."""


def bench_train(*, rows: int = 64, rounds: int = 5, model: ModelConfig | None = None) -> TrainBench:
    """Train the default small model for `rounds` passes over made-up rows of 60 to 1,000 tokens (mean 200).

    The three contestants take turns, so that all meet the same machine.
    """
    samples = _rows(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        tokenizer = train_tokenizer([], vocab_size=260)
        write_new_model(path, new_model(model or ModelConfig(), tokenizer), tokenizer, chat_template="")
        sft, policy, plain = Trainer(path, TrainConfig()), Trainer(path, TrainConfig()), _Plain(path)
    contestants: list[Callable[[], None]] = [
        lambda: _supervised(sft, samples),
        lambda: _policy(policy, samples),
        lambda: plain.train(samples),
    ]
    seconds = [sorted(times) for times in zip(*(_race(contestants) for _ in range(rounds)), strict=True)]
    tokens = sum(len(sample) for sample in samples)
    rates = [tokens / times[rounds // 2] for times in seconds]
    return TrainBench(sft=rates[0], policy=rates[1], plain=rates[2])


def _race(contestants: Sequence[Callable[[], None]]) -> list[float]:
    """CPU seconds of each."""
    times = []
    for run in contestants:
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return times


def _rows(count: int) -> list[Sample]:
    """Half of every row sampled, in turns of 40 tokens, as agents' transcripts are."""
    draw = random.Random(0)
    rows = []
    for index in range(count):
        length = min(1000, int(60 + draw.expovariate(1 / 140)))
        mask = tuple(int(t // 40 % 2) for t in range(length))
        zeros = (0.0,) * length
        rows.append(
            Sample(
                trajectory_id=str(index),
                token_ids=tuple(draw.randrange(3, 259) for _ in range(length)),
                mask=mask,
                logprobs=tuple(-5.0 * m for m in mask),
                advantages=tuple(draw.choice((-1.0, 1.0)) * m for m in mask) if any(mask) else zeros,
                weights=tuple(map(float, mask)),
            )
        )
    return rows


def _supervised(trainer: Trainer, samples: Sequence[Sample]) -> None:
    for step in epoch(samples, STEP_TOKENS, seed=trainer.steps):
        trainer.step(step, loss="sft")


def _policy(trainer: Trainer, samples: Sequence[Sample]) -> None:
    trainer.step(samples, loss="policy")


class _Plain:
    """What a first script would do."""

    def __init__(self, path: Path) -> None:
        self.model = load_model(path)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=4e-4)

    def train(self, samples: Sequence[Sample]) -> None:
        for start in range(0, len(samples), 5):  # about 1,000 tokens
            self._step(samples[start : start + 5])

    def _step(self, rows: Sequence[Sample]) -> None:
        ids_BT = pad_sequence([torch.tensor(row.token_ids) for row in rows], batch_first=True)
        labels = [[t if m else IGNORED for t, m in zip(r.token_ids, r.mask, strict=True)] for r in rows]
        mask = [torch.ones(len(row), dtype=torch.long) for row in rows]
        loss: Tensor = self.model(
            input_ids=ids_BT,
            attention_mask=pad_sequence(mask, batch_first=True),
            labels=pad_sequence(list(map(torch.tensor, labels)), batch_first=True, padding_value=IGNORED),
            use_cache=False,
        ).loss
        torch.autograd.backward(loss)
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
