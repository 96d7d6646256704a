"""What vLLM's workers do when the trainer broadcasts weights: `--worker-extension-cls
patchwright_vllm.Extension`, called by `/collective_rpc` (`engine/vllm.py`). vLLM makes the class a base of
its own worker's, so `self` is that worker.

Stands alone: vLLM's environment has torch and no Patchwright. `train/broadcast.py` is the other end.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

__all__ = ["Extension", "join", "received"]

_DEVICES = {"gloo": "cpu", "nccl": "cuda"}
"""Of the tensors that are sent; a store has a group's keys under this name."""


class Extension:
    """Beside vLLM's own worker. Its names must not be the worker's."""

    rank: int
    device: torch.device
    patchwright_torn = False
    """Weights came only in part: what is computed from here on means nothing."""

    def patchwright_ready(self) -> dict[str, Any]:
        """Which worker this is, and whether its weights are whole."""
        return {"rank": self.rank, "torn": self.patchwright_torn}

    def patchwright_receive(self, invitation: str) -> None:
        """Take the place of the weights by those that are broadcast (`Invitation` as JSON)."""
        told = json.loads(invitation)
        group = join(told, 1 + self.rank, self.device)
        tensors = received(told, group, self.device)
        self.patchwright_torn = True
        self.reload_weights(weights_iterator=tensors)  # type: ignore[attr-defined]
        for _ in tensors:  # what the model has no use for is sent too
            pass
        self.patchwright_torn = False
        getattr(group, "shutdown", bool)()  # gloo of an older torch has none


def received(told: dict[str, Any], group: Any, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors by name, each when it has arrived."""
    place = device if told["backend"] == "nccl" else torch.device("cpu")
    for name, dtype, shape in zip(told["names"], told["dtypes"], told["shapes"], strict=True):
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=place)
        group.broadcast(tensor, 0).wait()
        yield name, tensor


def join(told: dict[str, Any], rank: int, device: torch.device) -> Any:
    """Become a rank of the group. Its keys lie where `torch.distributed` would put them for this name."""
    bound = timedelta(seconds=told["seconds"])
    place, name = (told["address"], told["port"]), told["group"]
    store: Any = dist.TCPStore(*place, told["ranks"], False, timeout=bound, wait_for_workers=False)  # type: ignore[attr-defined]
    for prefix in (name, f"{name}/", f"{_DEVICES[told['backend']]}/"):
        store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    if told["backend"] == "gloo":
        kind: Any = distributed_c10d.ProcessGroupGloo
        options = kind._Options()
        options._devices = [kind.create_device(hostname=_address(place))]
    else:
        kind = distributed_c10d.ProcessGroupNCCL
        options = kind.Options()
        torch.cuda.set_device(device)
    options._timeout = bound
    return kind(store, rank, told["ranks"], options)


def _address(place: tuple[str, int]) -> str:
    """This machine's, on the way there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect(place)  # sends nothing
        return str(way.getsockname()[0])
