"""Tokens per CPU-second of the local engine beside `model.generate`, for `patchwright bench engine`.

Both sides sample the same number of tokens from the same prompts, one after the other in this process, so
that the ratio holds on a busy machine too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from patchwright.engine.config import LocalEngineConfig
from patchwright.engine.local import LocalEngine
from patchwright.types import Sampling

__all__ = ["EngineSpeed", "bench_engine"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpeed:
    """Sampled tokens per second of CPU time at one concurrency."""

    concurrency: int
    engine: float
    generate: float
    """`transformers`' own `generate`, the same requests as one batch."""


def bench_engine(
    path: str | Path,
    *,
    concurrencies: Iterable[int] = (1, 8, 32, 128),
    prompt_tokens: int = 200,
    new_tokens: int = 128,
    config: LocalEngineConfig | None = None,
) -> list[EngineSpeed]:
    """Measure both at each concurrency. Raises ConfigError when the engine cannot serve the folder."""
    config = config or LocalEngineConfig(dtype="float32", device="cpu")
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, config.dtype))
    model.eval()
    speeds = []
    for concurrency in concurrencies:
        prompts = _prompts(concurrency, prompt_tokens, model.config.vocab_size)
        speeds.append(
            EngineSpeed(
                concurrency=concurrency,
                engine=asyncio.run(_engine_speed(path, config, prompts, new_tokens)),
                generate=_generate_speed(model, config.threads, prompts, new_tokens),
            )
        )
    return speeds


def _prompts(count: int, tokens: int, vocab: int) -> list[list[int]]:
    source = random.Random(count)
    return [[source.randrange(vocab) for _ in range(tokens)] for _ in range(count)]


async def _engine_speed(
    path: str | Path, config: LocalEngineConfig, prompts: Sequence[list[int]], new_tokens: int
) -> float:
    engine = LocalEngine(path, config=config)
    try:
        await engine.generate(prompts[0][:8], Sampling(max_tokens=8))  # warms up
        started = time.process_time()
        await asyncio.gather(
            *(
                engine.generate(prompt, Sampling(max_tokens=new_tokens, seed=i))
                for i, prompt in enumerate(prompts)
            )
        )
        return len(prompts) * new_tokens / (time.process_time() - started)
    finally:
        await engine.close()


def _generate_speed(model: Any, threads: int, prompts: Sequence[list[int]], new_tokens: int) -> float:
    torch.set_num_threads(threads)
    ids = torch.tensor(prompts)
    options = {"do_sample": True, "top_k": 0, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    with torch.inference_mode():
        model.generate(ids[:1, :8], max_new_tokens=2, min_new_tokens=2, do_sample=True, pad_token_id=0)
        started = time.process_time()
        model.generate(ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, **options)
    return len(prompts) * new_tokens / (time.process_time() - started)
