"""What computing shared prefixes once saves: the same attempts as one row per turn, as merged rows, and as
forests, in the same process, with the same loss."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchwright.train.bench_data import KINDS, Talks, attempts_of, merged, per_turn
from patchwright.train.checkpoint import write_new_model
from patchwright.train.clock import seconds_of
from patchwright.train.config import ModelConfig, TrainConfig
from patchwright.train.model import new_model
from patchwright.train.tokenizer import train_tokenizer
from patchwright.train.trainer import Trainer
from patchwright.types import Sample

__all__ = ["ShareBench", "bench_sharing"]

DEFAULT = Talks(opening=200, turns=10, observation=50, reply=30)
FOREST_TOKENS = 4000
"""A forest's micro-batch: larger than that of plain rows, so that a group stays together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareBench:
    """One kind of data. Tokens computed are per token trained; times are of one trainer step, CPU seconds.

    Example: `ShareBench(kind="group", trained=2400, turns=17.3, rows=3.3, shared=2.7, ...)`
    """

    kind: str
    trained: int
    """Tokens that train."""
    turns: float
    """Tokens computed with one row per turn."""
    rows: float
    """With rows of turns that extend each other."""
    shared: float
    """With shared prefixes once."""
    turns_seconds: float
    rows_seconds: float
    shared_seconds: float

    @property
    def speedup(self) -> float:
        """Against one row per turn."""
        return self.turns_seconds / self.shared_seconds


def bench_sharing(
    *, rounds: int = 3, talks: Talks = DEFAULT, model: ModelConfig | None = None
) -> list[ShareBench]:
    """Train the default small model on each kind of data, every contestant with its best micro-batch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        tokenizer = train_tokenizer([], vocab_size=260)
        write_new_model(path, new_model(model or ModelConfig(), tokenizer), tokenizer, chat_template="")
        plain = Trainer(path, TrainConfig(share_prefixes=False, lr=1e-5))
        forest = Trainer(path, TrainConfig(micro_batch_tokens=FOREST_TOKENS, lr=1e-5))
    return [_compare(kind, talks, plain, forest, rounds) for kind in KINDS]


def _compare(kind: str, talks: Talks, plain: Trainer, forest: Trainer, rounds: int) -> ShareBench:
    attempts = attempts_of(kind, talks)
    rows = merged(attempts)
    contestants = ((plain, per_turn(attempts)), (plain, rows), (forest, rows))
    results = [[_step(trainer, data) for trainer, data in contestants] for _ in range(rounds)]
    trained = sum(weight > 0 for row in rows for weight in row.weights)
    computed = [tokens / trained for tokens, _ in results[0]]
    times = [statistics.median(seconds for _, seconds in runs) for runs in zip(*results, strict=True)]
    return ShareBench(
        kind=kind,
        trained=trained,
        turns=computed[0],
        rows=computed[1],
        shared=computed[2],
        turns_seconds=times[0],
        rows_seconds=times[1],
        shared_seconds=times[2],
    )


def _step(trainer: Trainer, rows: Sequence[Sample]) -> tuple[int, float]:
    """Tokens computed and CPU seconds of one step."""
    stats, seconds = seconds_of(lambda: trainer.step(rows, loss="policy"), "cpu")
    return stats.computed, seconds
