"""What the trainer is told and what it tells: configuration, learning-rate schedule, metrics. No torch, so
that recipes and the command line can name them without loading it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from patchwright.config import Config
from patchwright.train.batch import Normalisation

__all__ = [
    "LoraConfig",
    "LossName",
    "ModelConfig",
    "Shape",
    "StepMetrics",
    "TrainConfig",
    "planned",
    "schedule",
]

Shape = Literal["trapezoid", "cosine", "linear", "constant"]
"""The learning rate after its warm-up: flat, then down in the second half; a half cosine; a line; flat."""

LossName = Literal["sft", "policy"]
"""`sft`: cross-entropy. `policy`: `PolicyLoss()`, GRPO's, with the trainer's own normalisation."""


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


class LoraConfig(Config):
    """Train small matrices beside the frozen ones (LoRA, arXiv 2106.09685); needs `peft`."""

    rank: int = Field(default=16, ge=1)
    """Width of the small matrices."""
    alpha: float = 32.0
    """What they give is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names (or ends of names) of the linear layers that get them; all but the head when empty."""
    seed: int = 0
    """Seed of their initial weights."""


class TrainConfig(Config):
    """How weights are updated."""

    lr: float = 1e-5
    """Learning rate at its peak. 1e-5 suits a pretrained model that is tuned whole on what it should say
    (LIMA, arXiv 2305.11206), 1e-6 one that is reinforced (GRPO, arXiv 2402.03300; DAPO, arXiv 2503.14476);
    LoRA wants about ten times as much, a small model from scratch about a hundred times."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the gradient's mean and square."""
    weight_decay: float = 0.0
    """AdamW's decoupled decay of matrices; embeddings, heads and vectors never decay."""
    clip_norm: float = 1.0
    """The gradient is scaled down to this norm."""
    micro_batch_tokens: int = 1000
    """Tokens computed at once, padding included; changes speed and memory, not results. About 1,000 stays in
    a CPU's cache (6,000 is a third slower there); a GPU wants 16,000 or more."""
    share_prefixes: bool = True
    """Compute what rows have in common from their start once (turns of an attempt, attempts of a group), and
    pack rows of unlike length instead of padding them. Changes speed, not results (but for rounding); false
    for models that do their own attention."""
    minibatches: int = 1
    """Optimizer steps made of the samples of one `step`."""
    normalise: Normalisation = "sequence"
    """What counts the same in the loss: every trajectory (`sequence`) or every token (`token`). RL has its
    own, `rl.algorithm.normalise`."""
    temperature: float = 1.0
    """Sampling temperature of the rows: log-probs are taken of the distribution they were drawn from."""
    threads: int = 1
    """CPU threads of torch, for the whole process: on shared cores one is often fastest for small models."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of forward and backward passes; parameters and optimizer stay float32. Ranks send each other
    the layers' parameters in it, and add up gradients in float32."""
    device: str = "cpu"
    """Where the model trains: `cpu`, `cuda`, `cuda:1`."""
    ranks: int = Field(default=1, ge=1)
    """Processes of this machine that the model, its gradient and the optimizer are spread over (FSDP2): with
    `cuda` a GPU each, with `cpu` `threads` threads each. Changes speed and memory, not results."""
    offload: bool = False
    """Keep a rank's part of parameters, gradients and optimizer in host memory (FSDP2's CPU offload), and
    with `recompute` the layers' inputs too: a layer is on the GPU while it is computed, AdamW runs on the
    CPU. Much less GPU memory, slower; `cuda` only."""
    lora: LoraConfig | None = None
    """Train an adapter instead of all parameters: `-s sft.train.lora.rank=16`."""
    recompute: bool = False
    """Activation checkpointing: keep each layer's input only and compute the rest again on the way back. Less
    memory, about a third more time, the same result."""
    seed: int = 0
    """Seed of the deal into minibatches."""

    @model_validator(mode="after")
    def _offloads_from_a_gpu(self) -> Self:
        if self.offload and self.device == "cpu":
            raise ValueError('with `device = "cpu"` all is in host memory already; leave `offload` out')
        return self


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


def planned(shape: Shape, step: int, total: int, *, warmup: int, floor: float) -> float:
    """Factor on the learning rate at `step` (from 0) of `total`: linear warm-up, then the shape's way down.

    `trapezoid` is `schedule`; the others count their way from the end of the warm-up, as the schedules of
    that name in transformers and torchtune do, but for the warm-up's first step, which is not wasted at 0.
    """
    if shape == "trapezoid":
        return schedule(step, step / total, warmup=warmup, floor=floor)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, total - warmup)
    left = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[shape]
    return floor + (1 - floor) * left


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
    computed: int
    """Tokens the model computed: with padding, and shared prefixes once."""
    trained: int
    """Tokens that carried weight."""
    updates: int
    """Optimizer steps applied."""
    skipped: int
    """Optimizer steps left out because the gradient was not finite."""
    entropy: float
    """Of the model's distribution, nats."""
    clip_fraction: float
    """Policy loss: share of tokens whose gradient the clip stopped, or cut."""
    kl: float
    """Policy loss: estimated KL from the sampling policy to the model, nats."""
    reference_kl: float
    """Policy loss with a KL term: its estimate, nats; else 0."""
    masked: float
    """Policy loss with a correction: share of tokens it masked or truncated; else 0."""
    drift: float
    """Policy loss: mean |log-prob of the trainer - of the engine| before the first update, nats."""
    drift_max: float
    """Largest such difference."""
    drift_kl: float
    """Estimated KL from engine to trainer before the first update, nats."""
    lr: float
    seconds: float
    """Wall time."""
