"""What the trainer is told and what it tells: configuration, learning-rate schedule, metrics. No torch, so
that recipes and the command line can name them without loading it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from patchwright.config import Config
from patchwright.train.batch import Normalisation

__all__ = ["LossName", "ModelConfig", "StepMetrics", "TrainConfig", "schedule"]

LossName = Literal["sft", "policy"]
"""`sft`: cross-entropy. `policy`: the clipped surrogate of the GRPO family."""


class ModelConfig(Config):
    """Shape of a new Qwen3 model; the defaults make 0.8 M parameters and learn on one CPU core."""

    hidden_size: int = 128
    """Width of the residual stream."""
    layers: int = 4
    """Decoder layers."""
    heads: int = 4
    """Query heads."""
    kv_heads: int = 2
    """Key and value heads, shared by groups of query heads."""
    head_dim: int = 32
    """Width of a head."""
    intermediate_size: int = 352
    """Width of the gated feed-forward layer."""
    max_positions: int = 2048
    """Longest context, in tokens."""
    rope_theta: float = 10_000.0
    """Base of the rotary position embedding."""
    seed: int = 0
    """Seed of the initial weights."""


class TrainConfig(Config):
    """How weights are updated."""

    lr: float = 4e-4
    """Learning rate at its peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the gradient's mean and square."""
    weight_decay: float = 0.0
    """AdamW's decoupled decay of matrices; embeddings, heads and vectors never decay."""
    clip_norm: float = 1.0
    """The gradient is scaled down to this norm."""
    micro_batch_tokens: int = 1000
    """Tokens computed at once, padding included; changes speed and memory, not results. About 1,000 stays in
    a CPU's cache (6,000 is a third slower there); a GPU wants 16,000 or more."""
    minibatches: int = 1
    """Optimizer steps made of the samples of one `step`."""
    normalise: Normalisation = "sequence"
    """What counts the same in the loss: every trajectory (`sequence`) or every token (`token`)."""
    temperature: float = 1.0
    """Sampling temperature of the rows: log-probs are taken of the distribution they were drawn from."""
    clip_low: float = 0.2
    """Policy loss: a probability may fall to 1 - clip_low of its sampled value before gradients stop."""
    clip_high: float = 0.28
    """Policy loss: a probability may rise to 1 + clip_high of its sampled value before gradients stop."""
    threads: int = 1
    """CPU threads of torch, for the whole process: on shared cores one is often fastest for small models."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of forward and backward passes; parameters and optimizer stay float32."""
    device: str = "cpu"
    """Where the model trains: `cpu`, `cuda`, `cuda:1`."""
    seed: int = 0
    """Seed of the deal into minibatches."""


def schedule(
    step: int, progress: float, *, warmup: int = 60, hold: float = 0.5, floor: float = 0.02
) -> float:
    """Factor on the learning rate: linear warm-up over `warmup` steps, then 1, then linear down to `floor`.

    `step` counts from 0; `progress` is the share of the run that is over (0 to 1), of steps or of time; the
    way down starts at `hold`. With `hold=1` the rate stays.
    """
    rise = min(1.0, (step + 1) / max(1, warmup))
    left = (1 - progress) / (1 - hold) if hold < 1 else 1.0
    return rise * max(floor, min(1.0, left))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetrics:
    """What one `Trainer.step` did; means are over trained tokens.

    Example: `StepMetrics(loss=0.1, grad_norm=0.5, tokens=900, trained=400, updates=2, ...)`
    """

    loss: float
    """Mean of the updates' losses."""
    grad_norm: float
    """Largest gradient norm before clipping."""
    tokens: int
    """Tokens of all rows, without padding."""
    trained: int
    """Tokens that carried weight."""
    updates: int
    """Optimizer steps applied."""
    skipped: int
    """Optimizer steps left out because the gradient was not finite."""
    entropy: float
    """Of the model's distribution, nats."""
    clip_fraction: float
    """Policy loss: share of tokens whose gradient the clip stopped."""
    kl: float
    """Policy loss: estimated KL from the sampling policy to the model, nats."""
    lr: float
    seconds: float
    """Wall time."""
