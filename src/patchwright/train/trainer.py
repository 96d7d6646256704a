"""Samples -> a better model, on one device. Blind to algorithms: masks, advantages and weights ride on the
samples. Sits below the recipes, which decide what to train on and when to save.

    trainer = Trainer("runs/demo/weights/v0", TrainConfig(lr=4e-4))
    metrics = trainer.step(rows, loss="policy")
    weights = trainer.save_weights(Path("runs/demo/weights/v1"), version=1)

Nothing here draws random numbers but the deal of minibatches, which depends on `seed` and the step count
alone: a resumed run repeats the uninterrupted one to the bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchwright.errors import ConfigError
from patchwright.train.batch import micro_batches, minibatches, normalise
from patchwright.train.checkpoint import complete_folder, read_state, write_model, write_state
from patchwright.train.config import LossName, StepMetrics, TrainConfig
from patchwright.train.loss import policy_loss, sft_loss
from patchwright.train.model import Batch, collate, load_model, logprobs
from patchwright.types import Sample, Weights

__all__ = ["Trainer"]


@dataclass(slots=True)
class _Tally:
    """Sums over the micro-batches of one step."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    trained: int = 0
    entropy: float = 0.0
    clip_fraction: float = 0.0
    kl: float = 0.0


class Trainer:
    """Owns the model and its optimizer; used from one thread."""

    def __init__(self, model: str | Path, config: TrainConfig) -> None:
        """Load the Hugging Face folder `model`. Raises ConfigError when it or the device cannot be used."""
        torch.set_num_threads(config.threads)
        self.config = config
        self.origin = Path(model)
        self.steps = 0
        """Calls of `step` so far, those before a resume included."""
        self.model = load_model(self.origin)
        try:
            self.model.to(config.device)  # type: ignore[arg-type]
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"the trainer's device {config.device!r} cannot be used: {error}") from error
        self._optimizer = torch.optim.AdamW(
            self._groups(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )

    def _groups(self) -> list[dict[str, Any]]:
        """Matrices decay; embeddings, the head and vectors do not."""
        heads = (self.model.get_input_embeddings(), self.model.get_output_embeddings())  # type: ignore[no-untyped-call]
        outside = {id(layer.weight) for layer in heads}
        weights = list(self.model.parameters())
        decayed = [w for w in weights if w.dim() >= 2 and id(w) not in outside]
        kept = [w for w in weights if w.dim() < 2 or id(w) in outside]
        return [{"params": decayed}, {"params": kept, "weight_decay": 0.0}]

    # --- training -----------------------------------------------------------------------------

    def step(self, samples: Sequence[Sample], *, loss: LossName, lr_scale: float = 1.0) -> StepMetrics:
        """Train on `samples` once, in `config.minibatches` optimizer steps at `config.lr * lr_scale`.

        Rows without any weight train nothing; with no other rows, no update is made. An update whose gradient
        is not finite is left out and counted in `skipped`.
        """
        started = time.monotonic()
        lr = self.config.lr * lr_scale
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        rows = [sample for sample in samples if any(weight > 0 for weight in sample.weights)]
        tally = _Tally()
        for part in minibatches(rows, self.config.minibatches, self.config.seed * 1_000_003 + self.steps):
            self._update(part, loss, tally)
        self.steps += 1
        return self._metrics(tally, rows, lr, time.monotonic() - started)

    def _update(self, part: Sequence[Sample], loss: LossName, tally: _Tally) -> None:
        total = 0.0
        for rows in micro_batches(normalise(part, self.config.normalise), self.config.micro_batch_tokens):
            total += self._accumulate(collate(rows, self.config.device), loss, tally)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm).item()
        tally.grad_norms.append(norm)
        tally.losses.append(total)
        if math.isfinite(norm) and math.isfinite(total):
            self._optimizer.step()
        else:
            tally.skipped += 1
        self._optimizer.zero_grad(set_to_none=True)

    def _accumulate(self, batch: Batch, loss: LossName, tally: _Tally) -> float:
        logprobs_N, entropy_N = self._logprobs(batch)
        value = self._loss(batch, logprobs_N, loss, tally)
        torch.autograd.backward(value)
        tally.trained += len(batch.target_N)
        tally.entropy += entropy_N.sum().item()
        return value.item()

    def _loss(self, batch: Batch, logprobs_N: Tensor, loss: LossName, tally: _Tally) -> Tensor:
        if loss == "sft":
            return sft_loss(logprobs_N, batch.weights_N)
        value, sums = policy_loss(
            logprobs_N,
            batch.old_logprobs_N,
            batch.advantages_N,
            batch.weights_N,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        tally.clip_fraction += sums["clip_fraction"].item()
        tally.kl += sums["kl"].item()
        return value

    def _logprobs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        kind = torch.device(self.config.device).type
        with torch.autocast(kind, torch.bfloat16, enabled=self.config.dtype == "bfloat16"):
            return logprobs(self.model, batch, temperature=self.config.temperature)

    def _metrics(self, tally: _Tally, rows: Sequence[Sample], lr: float, seconds: float) -> StepMetrics:
        trained = max(1, tally.trained)
        return StepMetrics(
            loss=sum(tally.losses) / max(1, len(tally.losses)),
            grad_norm=max(tally.grad_norms, default=0.0),
            tokens=sum(len(row) for row in rows),
            trained=tally.trained,
            updates=len(tally.losses) - tally.skipped,
            skipped=tally.skipped,
            entropy=tally.entropy / trained,
            clip_fraction=tally.clip_fraction / trained,
            kl=tally.kl / trained,
            lr=lr,
            seconds=seconds,
        )

    @torch.no_grad()
    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-prob of every id but the first, given those before it: what an engine with these weights must
        also report for a probe prompt."""
        ids, zeros = tuple(token_ids), (0.0,) * len(token_ids)
        weights = (0.0,) + (1.0,) * (len(ids) - 1)
        row = Sample(token_ids=ids, mask=(0,) * len(ids), logprobs=zeros, advantages=zeros, weights=weights)
        logprobs_N, _ = self._logprobs(collate([row], self.config.device))
        return [float(value) for value in logprobs_N.tolist()]

    # --- saving -------------------------------------------------------------------------------

    def save_weights(self, folder: Path, version: int) -> Weights:
        """Write a complete Hugging Face folder (config, safetensors, tokenizer), absent until it is whole.

        Raises StoreError when the disk refuses.
        """
        with complete_folder(folder) as beside:
            write_model(beside, self.model, self.origin)
        return Weights(version=version, path=str(folder))

    def save_checkpoint(self, folder: Path) -> None:
        """Write the model, the optimizer and the step count; the folder is also a model folder.

        Raises StoreError when the disk refuses.
        """
        with complete_folder(folder) as beside:
            write_model(beside, self.model, self.origin)
            write_state(beside, {"optimizer": self._optimizer.state_dict(), "steps": self.steps})

    def load_checkpoint(self, folder: Path) -> None:
        """Go on exactly where `save_checkpoint` was called. Raises ConfigError when it is no checkpoint of
        this model."""
        state = read_state(folder)
        try:
            self.model.load_state_dict(load_model(folder).state_dict())
            self._optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"{folder} is a checkpoint of another model: {error}") from error
        self.steps = state["steps"]
