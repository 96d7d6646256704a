"""Samples -> a better model. Blind to algorithms: masks, advantages and weights ride on the samples; and to
where the model is, whole on one device or spread over several (`ranks`). Sits below the recipes, which decide
what to train on and when to save.

    trainer = Trainer("runs/demo/weights/v0", TrainConfig(lr=4e-4))
    metrics = trainer.step(rows, loss="policy")
    weights = trainer.save_weights(Path("runs/demo/weights/v1"), version=1)

Nothing here draws random numbers but the deal of minibatches, which depends on `seed` and the step count
alone: a resumed run repeats the uninterrupted one to the bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from patchwright.errors import ConfigError
from patchwright.train.algorithm import PolicyLoss
from patchwright.train.attention import enable_trees
from patchwright.train.batch import MicroBatch, attempts, dealt, minibatches, normalise
from patchwright.train.broadcast import Broadcast, outgoing
from patchwright.train.checkpoint import complete_folder, write_model
from patchwright.train.config import LossName, StepMetrics, TrainConfig
from patchwright.train.lora import Adapter
from patchwright.train.loss import sft_loss
from patchwright.train.memory import recompute_layers
from patchwright.train.model import Batch, collate, load_model
from patchwright.train.objective import Figures, PolicyStep
from patchwright.train.parts import check_parts, load_parts, save_parts, saved_shapes
from patchwright.train.ranks import Computed, Ranks
from patchwright.types import Sample, Weights

__all__ = ["Trainer"]

STEPS = "trainer.steps"
"""Name of the step count in a checkpoint; the optimizer's tensors are called after their weights."""
_MEAN = ".exp_avg"


@dataclass(slots=True)
class _Tally:
    """Sums over the micro-batches of one step."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    computed: int = 0
    trained: int = 0
    entropy: float = 0.0


class Trainer:
    """Owns the model and its optimizer; used from one thread.

    One rank unless it is given another place among several; then all must make the same calls at the same
    time, and folders are written by the first.
    """

    def __init__(self, model: str | Path, config: TrainConfig, ranks: Ranks | None = None) -> None:
        """Load the Hugging Face folder `model`. Raises ConfigError when it or the device cannot be used."""
        self._ranks = ranks or Ranks(config.device)
        if self._ranks.count != config.ranks or (config.offload and self._ranks.whole):
            raise ConfigError(
                "a `Trainer` alone is one rank with all in one place, which is not what `train.ranks` and "
                "`train.offload` ask for; use `TrainerProcess`"
            )
        torch.set_num_threads(config.threads)
        self.config = config
        self.origin = Path(model)
        self.steps = 0
        """Calls of `step` so far, those before a resume included."""
        self._reference: Computed | None = None
        self.model = self._loaded()
        self._adapter = Adapter(self.model, config.lora) if config.lora else None
        if config.recompute:
            recompute_layers(self.model, to_host=config.offload)
        self._computed = self._ranks.computed(self.model)
        self._optimizer = torch.optim.AdamW(
            self._groups(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )

    def _loaded(self) -> PreTrainedModel:
        """The model the trainer starts from."""
        model = load_model(self.origin)
        self._ranks.place(model)
        if self.config.share_prefixes:
            enable_trees(model)
        return model

    def _groups(self) -> list[dict[str, Any]]:
        """Matrices decay; embeddings, the head and vectors do not."""
        heads = (self.model.get_input_embeddings(), self.model.get_output_embeddings())  # type: ignore[no-untyped-call]
        outside = {id(layer.weight) for layer in heads}
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        decayed = [w for w in weights if w.dim() >= 2 and id(w) not in outside]
        kept = [w for w in weights if w.dim() < 2 or id(w) in outside]
        return [{"params": decayed}, {"params": kept, "weight_decay": 0.0}]

    # --- training -----------------------------------------------------------------------------

    def step(
        self, samples: Sequence[Sample], *, loss: LossName | PolicyLoss, lr_scale: float = 1.0
    ) -> StepMetrics:
        """Train on `samples` once, in `config.minibatches` optimizer steps at `config.lr * lr_scale`.

        Rows without any weight train nothing (normalised by `constant`, their trajectories count); with no
        other rows, no update is made. An update whose gradient is not finite is left out and counted in
        `skipped`. Raises EngineError past `PolicyLoss.max_drift`, before the first update.
        """
        started = time.monotonic()
        lr = self.config.lr * lr_scale
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        rows = [sample for sample in samples if any(weight > 0 for weight in sample.weights)]
        tally = _Tally()
        policy = self._policy(loss)
        ready = policy.started(rows) if policy else rows
        parts = minibatches(ready, self.config.minibatches, self.config.seed * 1_000_003 + self.steps)
        share = attempts(samples) / max(1, len(parts))
        for part in parts:
            self._update(part, policy, tally, share)
        self.steps += 1
        return self._metrics(tally, policy, rows, lr, time.monotonic() - started)

    def _policy(self, loss: LossName | PolicyLoss) -> PolicyStep | None:
        """The policy loss of a step; None for supervised ones."""
        if loss == "sft":
            return None
        how = PolicyLoss(normalise=self.config.normalise) if loss == "policy" else loss
        reference = self._reference_logprobs if how.kl != "none" else None
        return PolicyStep(how, self._scores, reference, self._ranks.gathered)

    def _normalised(self, part: Sequence[Sample], policy: PolicyStep | None, share: float) -> list[Sample]:
        """The rows of an optimizer step, weights scaled; `share` is its part of the step's trajectories."""
        if policy is None:
            return normalise(part, self.config.normalise)
        how = policy.how
        return policy.updated(normalise(part, how.normalise, constant=how.constant_tokens * share))

    def _update(self, part: Sequence[Sample], policy: PolicyStep | None, tally: _Tally, share: float) -> None:
        total = 0.0
        micros = self._micro_batches(self._normalised(part, policy, share))
        for number, micro in enumerate(micros, start=1):
            tally.computed += micro.computed
            total += self._accumulate(self._collate(micro), policy, tally, last=number == len(micros))
        try:
            self._apply(sum(self._ranks.gathered(total)), policy, tally)
        finally:
            self._optimizer.zero_grad(set_to_none=True)

    def _apply(self, total: float, policy: PolicyStep | None, tally: _Tally) -> None:
        """Take the optimizer step, unless the gradient is not finite, or not to be believed."""
        if policy:
            policy.check()
        clipped = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        norm = self._ranks.number(clipped)
        tally.grad_norms.append(norm)
        tally.losses.append(total)
        if math.isfinite(norm) and math.isfinite(total):
            self._optimizer.step()
        else:
            tally.skipped += 1

    def _micro_batches(self, rows: Sequence[Sample], *, share: bool | None = None) -> list[MicroBatch]:
        """Those this rank computes; with shared prefixes as configured, unless told otherwise."""
        config, ranks = self.config, self._ranks
        share = config.share_prefixes if share is None else share
        return dealt(rows, config.micro_batch_tokens, share=share, rank=ranks.rank, ranks=ranks.count)

    def _collate(self, micro: MicroBatch) -> Batch:
        return collate(micro.rows, self._ranks.device, micro.forest)

    def _accumulate(self, batch: Batch, policy: PolicyStep | None, tally: _Tally, *, last: bool) -> float:
        entropy = policy is not None and policy.how.entropy_coef != 0
        logprobs_N, entropy_N = self._logprobs(self._computed, batch, train_entropy=entropy)
        if policy is None:
            value = sft_loss(logprobs_N, batch.weights_N)
        else:
            value = policy.loss(batch, logprobs_N, entropy_N)
        self._computed.backward(value, last=last)
        tally.trained += len(batch.target_N)
        tally.entropy += entropy_N.detach().sum().item()
        return value.item()

    def _logprobs(
        self, model: Computed, batch: Batch, *, train_entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        kind, temperature = torch.device(self._ranks.device).type, self.config.temperature
        whole = self._ranks.whole  # else what autocast would keep until the end is a whole model
        with torch.autocast(
            kind, torch.bfloat16, enabled=self.config.dtype == "bfloat16", cache_enabled=whole
        ):
            return model.logprobs(batch, temperature=temperature, train_entropy=train_entropy)

    @torch.no_grad()
    def _scores(self, rows: Sequence[Sample]) -> list[list[float]]:
        """Log-probs, as the model is now, of every row's tokens that train."""
        found = dict[int, list[float]]()
        for micro in self._micro_batches(rows):
            values = iter(self._logprobs(self._computed, self._collate(micro))[0].tolist())
            for row in micro.rows:
                found[id(row)] = list(islice(values, sum(weight > 0 for weight in row.weights[1:])))
        mine = {place: found[id(row)] for place, row in enumerate(rows) if id(row) in found}
        every = {place: scores for part in self._ranks.gathered(mine) for place, scores in part.items()}
        return [every[place] for place in range(len(rows))]

    @torch.no_grad()
    def _reference_logprobs(self, batch: Batch) -> Tensor:
        """Those of the model the trainer started from, loaded when first asked for."""
        if self._reference is None:
            self._reference = self._ranks.computed(self._loaded())
        return self._logprobs(self._reference, batch)[0]

    def _metrics(
        self, tally: _Tally, policy: PolicyStep | None, rows: Sequence[Sample], lr: float, seconds: float
    ) -> StepMetrics:
        sums = self._ranks.gathered((tally.computed, tally.trained, tally.entropy))
        computed, of_all, entropy = map(sum, zip(*sums, strict=True))
        trained = max(1, of_all)
        figures = policy.figures() if policy else Figures()
        return StepMetrics(
            loss=sum(tally.losses) / max(1, len(tally.losses)),
            grad_norm=max(tally.grad_norms, default=0.0),
            tokens=sum(len(row) for row in rows),
            computed=computed,
            trained=of_all,
            updates=len(tally.losses) - tally.skipped,
            skipped=tally.skipped,
            entropy=entropy / trained,
            clip_fraction=figures.clipped / trained,
            kl=figures.kl / trained,
            reference_kl=figures.reference_kl / trained,
            masked=figures.masked / trained,
            drift=figures.drift.mean,
            drift_max=figures.drift.largest,
            drift_kl=figures.drift.kl,
            lr=lr,
            seconds=seconds,
        )

    @torch.no_grad()
    def evaluate(self, samples: Sequence[Sample]) -> float:
        """Mean cross-entropy of the tokens that carry weight, nats; trains nothing. 0 without any."""
        rows = [sample for sample in samples if any(weight > 0 for weight in sample.weights)]
        total = 0.0
        for micro in self._micro_batches(normalise(rows, "token"), share=False):
            batch = self._collate(micro)
            total += sft_loss(self._logprobs(self._computed, batch)[0], batch.weights_N).item()
        return sum(self._ranks.gathered(total))

    @torch.no_grad()
    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-prob of every id but the first, given those before it: what an engine with these weights must
        also report for a probe prompt."""
        ids, zeros = tuple(token_ids), (0.0,) * len(token_ids)
        weights = (0.0,) + (1.0,) * (len(ids) - 1)
        row = Sample(token_ids=ids, mask=(0,) * len(ids), logprobs=zeros, advantages=zeros, weights=weights)
        logprobs_N, _ = self._logprobs(self._computed, collate([row], self._ranks.device))
        return [float(value) for value in logprobs_N.tolist()]

    # --- saving -------------------------------------------------------------------------------

    def save_weights(self, folder: Path, version: int) -> Weights:
        """Write a complete Hugging Face folder (config, safetensors, tokenizer), absent until it is whole.

        Raises StoreError when the disk refuses.
        """
        state = self._ranks.model_state(self.model)
        merged = self._adapter.merged(state, self._ranks.collected) if self._adapter else state
        with self._written(folder) as beside:
            if beside:
                write_model(beside, self.model, self.origin, merged)
            if beside and self._adapter:
                self._adapter.save(beside / "adapter", state)
        return Weights(version=version, path=str(folder))

    def sending(self) -> Broadcast:
        """What broadcasts the weights that `save_weights` would write. Raises ConfigError when they are of
        another form there."""
        return Broadcast(outgoing(self.model, self._adapter, self._ranks), self._ranks)

    def save_checkpoint(self, folder: Path) -> None:
        """Write the model, the optimizer and the step count, every rank its part; the folder is absent until
        it is whole. With LoRA the adapter is all there is of the model: the rest did not change. Any number
        of ranks can go on from it.

        Raises StoreError when the disk refuses, or is not the same for all ranks.
        """
        state = {STEPS: torch.tensor([self.steps])} | self._weights() | self._averages(self._optimizer.state)
        with self._written(folder) as beside:
            self._ranks.gathered(None)  # the folder is there
            save_parts(folder, state, ranks=self._ranks.count)
            if beside and not self._ranks.apart:
                check_parts(folder, state)
        self._ranks.gathered(None)  # and in its place

    def _written(self, folder: Path) -> AbstractContextManager[Path | None]:
        """`complete_folder` on the first rank, nothing on the others."""
        return complete_folder(folder) if self._ranks.rank == 0 else nullcontext()

    def load_checkpoint(self, folder: Path) -> None:
        """Go on exactly where `save_checkpoint` was called. Raises ConfigError when it is no checkpoint of
        this model."""
        saved = saved_shapes(folder)
        if STEPS not in saved:
            raise ConfigError(f"{folder} is no checkpoint; give a folder under checkpoints/")
        steps, weights = {STEPS: torch.zeros(1, dtype=torch.long)}, self._weights()
        fresh = {weight: _fresh(weight) for name, weight in weights.items() if f"{name}{_MEAN}" in saved}
        state = steps | weights | self._averages(fresh)
        if odd := sorted(_shapes(state).items() ^ saved.items()):
            raise ConfigError(f"{folder} is a checkpoint of another model: it differs in {odd[0][0]}")
        load_parts(folder, state, ranks=self._ranks.count)
        self._optimizer.state.update(fresh)
        self.steps = int(steps[STEPS].item())

    def _weights(self) -> dict[str, Tensor]:
        """What was trained, in parts as it is here; tensors of several names once."""
        if self._adapter:
            return self._adapter.state()
        first_names = dict[Tensor, str]()
        for name, value in self.model.state_dict(keep_vars=True).items():
            first_names.setdefault(value, name)
        return {name: value for value, name in first_names.items()}

    def _averages(self, of: Mapping[Tensor, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The optimizer's tensors by name, as views: they can be read and filled."""
        named = {weight: name for name, weight in self._weights().items()}
        return {
            f"{named[weight]}.{kind}": value.view(1) if value.dim() == 0 else value
            for weight, values in of.items()
            for kind, value in values.items()
        }


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}


@torch.no_grad()
def _fresh(weight: Tensor) -> dict[str, Tensor]:
    """AdamW's state of a parameter before its first update, to be filled."""
    step = torch.zeros((), dtype=torch.float32, device=weight.device)
    return {"step": step, "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
