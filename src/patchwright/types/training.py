"""What the trainer takes and gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One training row; every field after `trajectory_id` has one entry per token (length T).

    Token t is predicted from the tokens before it, so entry 0 never trains.

    Example: `Sample(token_ids=(5, 6, 7), mask=(0, 0, 1), logprobs=(0.0, 0.0, -0.2),
    advantages=(0.0, 0.0, 1.3), weights=(0.0, 0.0, 1.0))`
    """

    trajectory_id: str = ""
    token_ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1 where the model sampled the token."""
    logprobs: tuple[float, ...]
    """Behaviour log-probs where mask is 1, else 0."""
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    """Loss weight of the token; 0 leaves it out."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A version of a model's weights: a complete Hugging Face folder (safetensors, config,
    tokenizer), absent or complete, never half.

    Example: `Weights(version=3, path="runs/demo/weights/v3")`
    """

    version: int
    path: str
