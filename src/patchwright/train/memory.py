"""Memory for time: layers that keep their input only, and compute the rest again on the way back."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from patchwright.errors import ConfigError

__all__ = ["recompute_layers"]


def recompute_layers(model: nn.Module) -> None:
    """Turn activation checkpointing on for every decoder layer.

    Only the layers themselves are told that they train: what is inside stays as it is, dropout off. No random
    number is drawn in them, so none is kept. Raises ConfigError when the architecture has no such layers.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError("`train.recompute` does not work with this architecture; set it to false")
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(  # type: ignore[assignment]
            checkpoint, use_reentrant=False, preserve_rng_state=False
        )
        layer.training = True
