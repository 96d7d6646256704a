"""Tokens per second and model FLOP utilisation of a trainer step: known shapes, random weights.

FLOPs of forward and backward pass, the usual count (PaLM, arXiv 2204.02311, appendix B, with causal attention
counted by what is seen): 6 per parameter and token computed, and 12 * layers * heads * head size for every
pair of a token and one it sees. What is computed again (activation checkpointing) counts once.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from patchwright.config import pick
from patchwright.train.batch import plan
from patchwright.train.bench_data import Talks, attempts_of, merged
from patchwright.train.clock import peak_flops, seconds_of
from patchwright.train.config import TrainConfig
from patchwright.train.trainer import Trainer
from patchwright.types import Sample

__all__ = ["SHAPES", "ShapeBench", "bench_shape", "flops_of"]

SHAPES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "tiny": {
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 352,
            "vocab_size": 640,
        },
        "0.6B": {
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "vocab_size": 151_936,
        },
        "4B": {
            "hidden_size": 2560,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 9728,
            "vocab_size": 151_936,
        },
    }
)
"""The quickstart's model, and Qwen3's of that many parameters; embeddings tied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeBench:
    """A trainer step on one kind of data. On CUDA seconds are wall seconds, on a CPU they are CPU seconds.

    Example: `ShapeBench(shape="0.6B", kind="group", length=16384, rows=4, tokens=65536, computed=54000, ...)`
    """

    shape: str
    kind: str
    device: str
    dtype: str
    length: int
    parameters: int
    rows: int
    tokens: int
    """Of all rows."""
    computed: int
    """What the model computed, shared prefixes once."""
    seconds: float
    tokens_per_second: float
    """Tokens computed."""
    effective_tokens_per_second: float
    """Tokens of the rows, as if none were shared."""
    mfu: float
    """Share of `peak` that the FLOPs of the tokens computed came to."""
    peak: float
    """FLOP/s of the device."""
    peak_source: str
    """`published` or `measured`."""
    memory_gb: float
    """Most device memory held, 10^9 bytes; 0 on a CPU."""


def bench_shape(
    shape: str, *, length: int, attempts: int = 4, rounds: int = 3, device: str | None = None
) -> list[ShapeBench]:
    """One policy step on attempts of `length` tokens, alone and as a group, after one to warm up.

    bfloat16 with activation checkpointing on CUDA, float32 on a CPU. Raises ConfigError for an unknown shape.
    """
    sizes = pick(shape, SHAPES, key="shape")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_cuda = torch.device(device).type == "cuda"
    config = TrainConfig(
        device=device,
        dtype="bfloat16" if on_cuda else "float32",
        recompute=on_cuda,
        lr=1e-6,
        micro_batch_tokens=attempts * length,
    )
    talks = Talks.of_length(length, attempts)
    with tempfile.TemporaryDirectory() as folder:
        _write_random(Path(folder), sizes, length)
        trainer = Trainer(folder, config)
        return [_measure(shape, kind, talks, trainer, rounds) for kind in ("linear", "group")]


def _write_random(folder: Path, sizes: Mapping[str, int], length: int) -> None:
    options: dict[str, Any] = dict(sizes)
    shape = Qwen3Config(max_position_embeddings=length + 64, tie_word_embeddings=True, **options)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    Qwen3ForCausalLM(shape).bfloat16().save_pretrained(folder)


def _measure(shape: str, kind: str, talks: Talks, trainer: Trainer, rounds: int) -> ShapeBench:
    config, rows = trainer.config, merged(attempts_of(kind, talks))
    times = []
    for _ in range(rounds + 1):
        stats, seconds = seconds_of(lambda: trainer.step(rows, loss="policy"), config.device)
        times.append(seconds)
    taken = statistics.median(times[1:])
    peak, source = peak_flops(config.device, getattr(torch, config.dtype))
    on_cuda = torch.device(config.device).type == "cuda"
    return ShapeBench(
        shape=shape,
        kind=kind,
        device=torch.cuda.get_device_name(config.device) if on_cuda else "cpu",
        dtype=config.dtype,
        length=max(map(len, rows)),
        parameters=trainer.model.num_parameters(),
        rows=len(rows),
        tokens=stats.tokens,
        computed=stats.computed,
        seconds=taken,
        tokens_per_second=stats.computed / taken,
        effective_tokens_per_second=stats.tokens / taken,
        mfu=flops_of(rows, config, trainer.model.num_parameters(), SHAPES[shape]) / taken / peak,
        peak=peak,
        peak_source=source,
        memory_gb=torch.cuda.max_memory_allocated(config.device) / 1e9 if on_cuda else 0.0,
    )


def flops_of(rows: Sequence[Sample], config: TrainConfig, parameters: int, sizes: Mapping[str, int]) -> float:
    """FLOPs of a step on `rows`; padding is not work."""
    tokens, pairs = 0, 0
    for micro in plan(rows, config.micro_batch_tokens, share=config.share_prefixes):
        depths = micro.forest.depths if micro.forest else [t for row in micro.rows for t in range(len(row))]
        tokens += len(depths)
        pairs += sum(depths) + len(depths)
    width = sizes["num_attention_heads"] * sizes["head_dim"]
    return 6.0 * parameters * tokens + 12.0 * sizes["num_hidden_layers"] * width * pairs
