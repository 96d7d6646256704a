"""Memory for time: layers that keep their input only, and compute the rest again on the way back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from patchwright.errors import ConfigError

__all__ = ["recompute_layers"]


def recompute_layers(model: nn.Module, *, to_host: bool = False) -> None:
    """Turn activation checkpointing on for every decoder layer; `to_host` keeps the layers' inputs in the
    host's memory meanwhile.

    Only the layers themselves are told that they train: what is inside stays as it is, dropout off. No random
    number is drawn in them, so none is kept. Raises ConfigError when the architecture has no such layers.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError("`train.recompute` does not work with this architecture; set it to false")
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = _kept_by_host if to_host else _checkpoint  # type: ignore[assignment]
        layer.training = True


_checkpoint: Callable[..., Any] = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def _kept_by_host(function: Callable[..., Any], *args: Any) -> Any:
    """What a layer keeps itself is its input alone; `checkpoint` saves that under the hooks of its caller."""
    with save_on_cpu(pin_memory=True):
        return _checkpoint(function, *args)
