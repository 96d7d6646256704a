"""Terms of an attempt's reward beside its outcome: pure functions, no torch.

reward = outcome + overlong + length_coef * length - integrity_penalty * (has a finding)
             + prm_coef * score of its turns + verifier_coef * score of a verifier
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["length_rewards", "overlong"]


def overlong(tokens: int, *, limit: int, buffer: int) -> float:
    """Soft overlong punishment of DAPO (arXiv 2503.14476, equation 13), from 0 down to -1.

    0 up to `limit - buffer` sampled tokens, then falling in a straight line to -1 at `limit` and beyond.

    Example: `overlong(18_432, limit=20_480, buffer=4_096) == -0.5`
    """
    if tokens <= limit - buffer:
        return 0.0
    return -1.0 if tokens >= limit else (limit - buffer - tokens) / buffer


def length_rewards(tokens: Sequence[int], resolved: Sequence[bool]) -> list[float]:
    """Length reward of Kimi k1.5 (arXiv 2501.12599, section 2.3.3) over a group's valid attempts.

    L = 0.5 - (tokens - least) / (most - least), from 0.5 for the shortest attempt to -0.5 for the longest; an
    attempt that is not resolved gets min(0, L): being short is no merit by itself. All 0 when they are
    equally long.
    """
    if len(set(tokens)) < 2:
        return [0.0] * len(tokens)
    least, most = min(tokens), max(tokens)
    lengths = [0.5 - (count - least) / (most - least) for count in tokens]
    return [value if good else min(0.0, value) for value, good in zip(lengths, resolved, strict=True)]
