"""Where the trainer's model lives: here whole, in one process, on one device. `shards` has the other place,
several processes with a part each; the trainer is written against this page and does not see the difference.

A rank is a process that trains. Several of them run the same trainer on the same samples and call what is
below in the same order; what differs is which micro-batches each computes (`batch.dealt`).
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from patchwright.errors import ConfigError
from patchwright.train.model import MAX_LOGITS, Batch, logprobs

__all__ = ["Computed", "Ranks"]

T = TypeVar("T")


class Computed:
    """A model in the place where it computes. Example: `Ranks("cpu").computed(model).logprobs(batch)`"""

    max_logits = MAX_LOGITS
    """Logits held at once, as for `model.logprobs`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def logprobs(
        self, batch: Batch, *, temperature: float = 1.0, train_entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """`model.logprobs`."""
        return logprobs(
            self._model,
            batch,
            temperature=temperature,
            train_entropy=train_entropy,
            max_logits=self.max_logits,
        )

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the loss's gradient to the model's; with the `last` of an update it is the sum over all
        ranks."""
        torch.autograd.backward(loss)


class Ranks:
    """One rank, which is all there are."""

    rank = 0
    count = 1
    whole = True
    """Whether each rank has every parameter as it is, not a part of it."""
    apart = False
    """Whether ranks write to disks of their own, and others put together what they wrote."""

    def __init__(self, device: str) -> None:
        self.device = device
        """Where this rank's tensors are."""

    def place(self, model: PreTrainedModel) -> None:
        """Bring a loaded model to the device. Raises ConfigError when the device cannot be used."""
        try:
            model.to(self.device)  # type: ignore[arg-type]
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"the trainer's device {self.device!r} cannot be used: {error}") from error

    def computed(self, model: PreTrainedModel) -> Computed:
        """Make the placed model ready; its layers are final. Its parameters may be others afterwards."""
        return Computed(model)

    def gathered(self, value: T) -> list[T]:
        """The value that each rank gave, in their order; must be one that pickles."""
        return [value]

    def number(self, value: Tensor) -> float:
        """A tensor of one element that was computed from parameters or their gradients."""
        return value.item()

    def model_state(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """The model's tensors, as `collected`."""
        return model.state_dict()

    def whole_tensor(self, value: Tensor) -> Tensor:
        """One tensor, no part of one, on every rank."""
        return value

    def collected(self, tree: Any) -> Any:
        """Dictionaries and lists with whole tensors in place of parts: on the first rank, to be written; the
        others get empty ones."""
        return tree
