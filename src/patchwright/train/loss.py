"""Log-probs -> loss: pure functions over tensors. The trainer calls them once per micro-batch.

Shapes: N = trained tokens of a micro-batch (weight > 0), V = vocabulary.

Losses are plain sums: the weights already carry the one normalisation (`batch.normalise`).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["policy_loss", "sft_loss", "token_logprobs"]

MAX_LOG_RATIO = 20.0
"""Bound on |log ratio| before the exponential: beyond it a token is noise, and float32 overflows at 88."""


def token_logprobs(logits_NV: Tensor, ids_N: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-prob of each id and entropy of each distribution (nats, no gradient), both of shape N, float32.

    With `temperature` they are those of the distribution sampling drew from.
    """
    logprobs_NV = (logits_NV.float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return logprobs_NV.gather(-1, ids_N[:, None])[:, 0], entropy_N


def sft_loss(logprobs_N: Tensor, weights_N: Tensor) -> Tensor:
    """Cross-entropy: -sum(weight * logprob)."""
    return -(weights_N * logprobs_N).sum()


def policy_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    weights_N: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate of PPO (arXiv 1707.06347) with the wider upper bound of DAPO (arXiv 2503.14476).

    -sum(weight * min(ratio * A, clamp(ratio, 1 - clip_low, 1 + clip_high) * A)) with ratio = new / old
    probability.

    Also returns sums over tokens, without gradient: `clip_fraction` (1 where the bound took the gradient
    away) and `kl` (ratio - 1 - log ratio: an unbiased, never negative estimate of KL(old || new)).
    """
    log_ratio_N = (logprobs_N - old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio_N = log_ratio_N.exp()
    free_N = ratio_N * advantages_N
    bound_N = ratio_N.clamp(1 - clip_low, 1 + clip_high) * advantages_N
    loss = -(weights_N * torch.minimum(free_N, bound_N)).sum()
    with torch.no_grad():
        stats = {
            "clip_fraction": (bound_N < free_N).float().sum(),
            "kl": (ratio_N - 1 - log_ratio_N).sum(),
        }
    return loss, stats
