"""Log-probs -> loss: pure functions over tensors. The trainer calls them once per micro-batch.

Shapes: N = trained tokens of a micro-batch (weight > 0), V = vocabulary.

Losses are plain sums: the weights already carry the one normalisation (`batch.normalise`), so gradients
added up over micro-batches, or over ranks, are those of the whole. `docs/algorithms.md` has the formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from patchwright.train.algorithm import Kl, PolicyLoss
from patchwright.train.ratio import MAX_LOG_RATIO

__all__ = ["kl_loss", "policy_loss", "sft_loss", "token_logprobs"]


def token_logprobs(
    logits_NV: Tensor, ids_N: Tensor, *, temperature: float = 1.0, train_entropy: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each id and entropy of each distribution (nats), both of shape N, float32.

    With `temperature` they are those of the distribution sampling drew from. The entropy has a gradient only
    with `train_entropy`.
    """
    logprobs_NV = (logits_NV.float() / temperature).log_softmax(-1)
    with torch.set_grad_enabled(train_entropy and torch.is_grad_enabled()):
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
    how: PolicyLoss | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """-sum(weight * objective), with r = new / old probability, A the advantage, and the objective

    - `ppo`: min(r * A, clamp(r, 1 - clip_low, 1 + clip_high) * A), arXiv 1707.06347;
    - `cispo`: sg(clamp(r, 1 - clip_low, 1 + clip_high)) * A * log p, arXiv 2506.13585, where sg takes no
      gradient;
    - `reinforce`: A * log p, and `gspo`, whose ratio and clip are in A already (`ratio.sequence_clipped`).

    The last two are computed as A * p / sg(p), whose gradient is that of A * log p and whose value is A.

    Also returns sums over tokens, without gradient: `clip_fraction` (1 where the bound took the gradient, or
    a part of it, away) and `kl` (r - 1 - log r: an unbiased, never negative estimate of KL(old || new)).
    """
    how = how or PolicyLoss()
    log_ratio_N = (logprobs_N - old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio_N = log_ratio_N.exp()
    bound_N = ratio_N.clamp(1 - how.clip_low, 1 + how.clip_high)
    if how.surrogate == "ppo":
        free_N, bounded_N = ratio_N * advantages_N, bound_N * advantages_N
        objective_N, stopped_N = torch.minimum(free_N, bounded_N), bounded_N < free_N
    elif how.surrogate == "cispo":
        objective_N = bound_N.detach() * advantages_N * logprobs_N
        stopped_N = bound_N != ratio_N
    else:
        objective_N = advantages_N * (logprobs_N - logprobs_N.detach()).exp()
        stopped_N = torch.zeros_like(ratio_N)
    loss = -(weights_N * objective_N).sum()
    with torch.no_grad():
        stats = {"clip_fraction": stopped_N.float().sum(), "kl": (ratio_N - 1 - log_ratio_N).sum()}
    return loss, stats


def kl_loss(logprobs_N: Tensor, reference_N: Tensor, weights_N: Tensor, kind: Kl) -> Tensor:
    """sum(weight * estimate) of KL(model || reference) on tokens the model sampled, with d = log p - log
    p_ref:

    - `k1` = d: unbiased in value; differentiated, its gradient has mean 0, so that it is a reading and
      hardly a penalty;
    - `k2` = d^2 / 2: its gradient is that of the divergence (REINFORCE++ with baseline, arXiv 2501.03262);
    - `k3` = exp(-d) - 1 + d: unbiased and never negative (GRPO, arXiv 2402.03300).

    From John Schulman, "Approximating KL Divergence" (2020).
    """
    gap_N = (logprobs_N - reference_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if kind == "k1":
        estimate_N = gap_N
    elif kind == "k2":
        estimate_N = gap_N.square() / 2
    else:
        estimate_N = (-gap_N).exp() - 1 + gap_N
    return (weights_N * estimate_N).sum()
