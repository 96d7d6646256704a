"""Sampling for the local engine: one call for every row of a step.

A row's randomness is a hash of its seed, its prompt and its step, so that a seeded request draws the same
numbers whatever else runs beside it.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Draw", "sample", "stream"]


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row is drawn. Example: `Draw(temperature=1.0, top_k=0, top_p=1.0, stream=stream(7, ids))`"""

    temperature: float
    top_k: int
    top_p: float
    stream: int
    """The row's random stream, 64 bits."""


def stream(seed: int, prompt_ids: Sequence[int]) -> int:
    """The 64-bit random stream of a seed and a prompt: turns with one seed draw different numbers."""
    text = str(seed).encode() + b":" + array("q", prompt_ids).tobytes()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def sample(logits_RV: Tensor, draws: Sequence[Draw], steps: Sequence[int]) -> tuple[list[int], list[float]]:
    """Draw one id a row; `steps` counts what each row drew before.

    Returns ids and the log-prob of each under the distribution it was drawn from: after temperature,
    top-k and top-p; at temperature 0 the argmax and its untempered log-prob. A row whose logits are not
    numbers has a log-prob that is not a number.
    """
    logprobs_RV = torch.log_softmax(_tempered(logits_RV, draws), -1)
    if any(draw.temperature > 0 and (draw.top_k or draw.top_p < 1) for draw in draws):
        logprobs_RV = torch.log_softmax(_truncated(logprobs_RV, draws), -1)
    ids_R = logits_RV.argmax(-1)
    if any(draw.temperature > 0 for draw in draws):
        greedy_R = torch.tensor([draw.temperature <= 0 for draw in draws], device=ids_R.device)
        uniform_R = _uniform([draw.stream for draw in draws], steps)
        drawn_R = _inverse(logprobs_RV.exp(), torch.from_numpy(uniform_R).to(ids_R.device))
        ids_R = torch.where(greedy_R, ids_R, drawn_R)
    chosen_R = logprobs_RV.gather(1, ids_R[:, None])[:, 0]
    return ids_R.tolist(), chosen_R.tolist()


def _tempered(logits_RV: Tensor, draws: Sequence[Draw]) -> Tensor:
    if all(draw.temperature in (0.0, 1.0) for draw in draws):
        return logits_RV
    scale = torch.tensor([draw.temperature or 1.0 for draw in draws], device=logits_RV.device)
    return logits_RV / scale[:, None]


def _truncated(logprobs_RV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Minus infinity outside top-k and outside the nucleus (Holtzman et al. 2019), taken in that order.

    The nucleus is the smallest set of likeliest tokens whose mass, among the k kept, reaches `top_p`.
    Greedy rows are left whole.
    """
    vocab, device = logprobs_RV.shape[1], logprobs_RV.device
    top_k = [draw.top_k if draw.top_k and draw.temperature > 0 else vocab for draw in draws]
    top_p = [draw.top_p if draw.temperature > 0 else 1.0 for draw in draws]
    ordered, order = logprobs_RV.sort(-1, descending=True)
    dropped = torch.arange(vocab, device=device)[None] >= torch.tensor(top_k, device=device)[:, None]
    mass = ordered.masked_fill(dropped, -torch.inf).softmax(-1)
    nucleus = torch.tensor(top_p, device=device)[:, None]
    outside = mass.cumsum(-1) - mass >= nucleus
    outside &= nucleus < 1
    outside[:, 0] = False
    return logprobs_RV.masked_fill(torch.zeros_like(dropped).scatter(1, order, dropped | outside), -torch.inf)


def _inverse(probs_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Inverse-CDF draws; never a token of probability 0."""
    cdf_RV = probs_RV.cumsum(-1)
    total_R = cdf_RV[:, -1]
    below_R = torch.nextafter(total_R, torch.zeros_like(total_R))
    targets_R = torch.minimum(uniform_R * total_R, below_R)
    found_R = torch.searchsorted(cdf_RV, targets_R[:, None], right=True)[:, 0]
    return found_R.clamp_(max=probs_RV.shape[1] - 1)


def _uniform(streams: Sequence[int], steps: Sequence[int]) -> npt.NDArray[np.float32]:
    """Uniforms in [0, 1) with 24 bits: output `step` of SplitMix64 (Steele et al. 2014) on each stream."""
    state = np.array(streams, np.uint64) + np.array(steps, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    uniform: npt.NDArray[np.float32] = (state >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return uniform
