"""A model spread over several processes with FSDP2 (`fully_shard`): each keeps a part of every
parameter, its gradient and its optimizer state, and a layer is whole only while it is computed. Stands in for
`ranks.Ranks` under the trainer; `worker` starts the processes.

They find each other as `meeting` says, and talk over gloo on CPUs, and for Python objects; NCCL between GPUs.

Weights of samples are normalised over all ranks (`batch.normalise`), so gradients are summed, never averaged.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from patchwright.errors import ConfigError
from patchwright.train.config import TrainConfig
from patchwright.train.meeting import enter, is_remote
from patchwright.train.model import Batch, logprobs
from patchwright.train.ranks import Computed, Ranks

__all__ = ["Sharded", "Shards"]

T = TypeVar("T")

HELD_GRADIENT = 2**29
"""Trained parameters (2 GiB of gradient) up to which ranks keep their whole gradient until the last
micro-batch of an update; a larger one is shared out after each, which needs less memory and more talk."""


class Shards(Ranks):
    """One of several ranks, or one alone that offloads.

    Example: `Shards(TrainConfig(ranks=2), rank=0, meeting="/tmp/private")`
    """

    whole = False

    def __init__(self, config: TrainConfig, *, rank: int, meeting: str, address: str = "127.0.0.1") -> None:
        """Wait for the others in `meeting` (see `meeting.enter`); `address` is this machine's.

        Ranks that meet in a folder share out this machine's GPUs; one that meets others over TCP takes the
        first GPU its process sees. Raises ConfigError when there is no such GPU, or `device` names one.
        """
        super().__init__(_device(config, gpu=0 if is_remote(meeting) else rank))
        self.rank, self.count = rank, config.ranks
        self._config = config
        dist.init_process_group(
            "gloo" if config.device == "cpu" else "cpu:gloo,cuda:nccl",
            store=enter(meeting, rank=rank, count=self.count, address=address),
            rank=rank,
            world_size=self.count,
        )
        self._mesh = init_device_mesh(config.device, (self.count,))

    def place(self, model: PreTrainedModel) -> None:
        """Nothing yet: the model goes to the device layer by layer, in parts."""

    def computed(self, model: PreTrainedModel) -> Computed:
        """See `Ranks`. The parameters become parts (DTensors)."""
        return Sharded(model, self._mesh, self._config)

    def gathered(self, value: T) -> list[T]:
        """See `Ranks`; a collective call, as all below."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def number(self, value: Tensor) -> float:
        """See `Ranks`."""
        return cast(DTensor, value).full_tensor().item()

    def model_state(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """See `Ranks`."""
        return cast(dict[str, Tensor], self.collected(model.state_dict(keep_vars=True)))

    def whole_tensor(self, value: Tensor) -> Tensor:
        """See `Ranks`."""
        return value.full_tensor() if isinstance(value, DTensor) else value

    def collected(self, tree: Any) -> Any:
        """See `Ranks`; on the CPU. Names of one parameter stay names of one tensor."""
        return self._collect(tree, {})

    def _collect(self, tree: Any, seen: dict[int, Tensor]) -> Any:
        if isinstance(tree, dict):
            return {key: self._collect(value, seen) for key, value in tree.items()}
        if isinstance(tree, list):
            return [self._collect(value, seen) for value in tree]
        if not isinstance(tree, Tensor):
            return tree
        if id(tree) not in seen:
            seen[id(tree)] = self._whole(tree.detach())
        return seen[id(tree)]

    def _whole(self, tensor: Tensor) -> Tensor:
        whole = self.whole_tensor(tensor)
        return whole.cpu() if self.rank == 0 else torch.empty(0)


def _device(config: TrainConfig, *, gpu: int) -> str:
    """A GPU for each rank, in order. With CPUs there is nothing to share out."""
    if config.device == "cpu":
        return "cpu"
    if config.device != "cuda":
        raise ConfigError(
            f"`train.ranks = {config.ranks}` takes a GPU per rank, so `train.device` cannot be "
            f"{config.device!r}; write `cuda` (and choose GPUs by CUDA_VISIBLE_DEVICES) or `cpu`"
        )
    if torch.cuda.device_count() <= gpu:
        raise ConfigError(
            f"`train.ranks = {config.ranks}` needs as many GPUs, and there are {torch.cuda.device_count()}; "
            'lower it, or train on the CPU (`train.device = "cpu"`)'
        )
    torch.cuda.set_device(gpu)
    return f"cuda:{gpu}"


def _precision(config: TrainConfig) -> MixedPrecisionPolicy:
    """Layers are made whole in the arithmetic's precision: 2 bytes a parameter in place of the 4 + 2 that
    autocast would hold, and half of the talk. What goes from layer to layer stays float32, as on one rank.

    Not for what is outside the layers: the head's gradient is a sum over pieces, in its weight's precision.
    """
    half = config.dtype == "bfloat16"
    return MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32, cast_forward_inputs=False
    )


class _Root(nn.Module):
    """Log-probs as one module's forward pass, since FSDP makes parameters whole when a module is called. What
    is in no layer (embeddings, last norm, head) belongs to this one and stays whole from its forward pass to
    the end of its backward pass: so the head may be called in pieces, and again on the way back."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, batch: Batch, temperature: float, train_entropy: bool, max_logits: int
    ) -> tuple[Tensor, Tensor]:
        """See `model.logprobs`."""
        found = logprobs(
            self.model, batch, temperature=temperature, train_entropy=train_entropy, max_logits=max_logits
        )
        return found[0].clone(), found[1].clone()  # no views: FSDP hangs its hooks on them


class Sharded(Computed):
    """A model of which this process holds a part. Example: `Sharded(model, mesh, TrainConfig(ranks=2))`"""

    def __init__(self, model: PreTrainedModel, mesh: DeviceMesh, config: TrainConfig) -> None:
        super().__init__(model)
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        host = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if config.offload else OffloadPolicy()
        split = partial(fully_shard, mesh=mesh, offload_policy=host)
        parts = [*(split(module, mp_policy=_precision(config)) for module in layers), split(_Root(model))]
        for part in parts:
            # a plain sum: the only operation besides the mean that gloo has
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        self._root = parts[-1]
        trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        self.holds = trained <= HELD_GRADIENT and not config.offload
        """Whether the whole gradient is kept until the last micro-batch."""

    def logprobs(
        self, batch: Batch, *, temperature: float = 1.0, train_entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """See `Computed`."""
        found = cast(nn.Module, self._root)(batch, temperature, train_entropy, self.max_logits)
        if not torch.is_grad_enabled():
            self._root.reshard()  # no backward pass will, and the optimizer's tensors are the parts
        return cast(tuple[Tensor, Tensor], found)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """See `Computed`."""
        self._root.set_requires_gradient_sync(last or not self.holds)
        torch.autograd.backward(loss)
