"""Weights from the trainer straight to engines, by a collective broadcast: nobody reads a disk.

    invite     the first rank opens a store for each engine        -> `Invitation`, told to the engines
    send       all ranks make one tensor after the other whole; the first gives it to every engine's group
    dismiss    groups and stores are closed

Each engine has a group of its own, and each group a thread: an engine that dies or stands still is given up
after half of the bound, and neither the trainer nor another engine waits for it any longer. Groups are
apart from the one that the ranks share.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from patchwright.errors import ConfigError
from patchwright.train.lora import Adapter
from patchwright.train.ranks import Ranks
from patchwright.types import Invitation

__all__ = ["Broadcast", "Outgoing", "outgoing"]

_POLL = 0.05
"""Seconds between two looks at an engine that has not yet taken the last tensor."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A tensor as a weights folder has it, still in parts."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    whole: Callable[[], Tensor]
    """Makes it whole; a collective call of all ranks."""


def outgoing(model: PreTrainedModel, adapter: Adapter | None, ranks: Ranks) -> list[Outgoing]:
    """What `save_weights` would write, in one order on every rank; an adapter is merged, one matrix at a
    time.

    Raises ConfigError for a model that is written otherwise than it is held.
    """
    state = model.state_dict(keep_vars=True)
    kept = adapter.names(state) if adapter else {name: name for name in state}
    deltas = adapter.deltas() if adapter else {}
    found = [_outgoing(name, state[held], deltas.get(name), ranks) for held, name in kept.items()]
    _refuse_converted(model, found)
    return found


def _outgoing(name: str, value: Tensor, delta: Callable[[], Tensor] | None, ranks: Ranks) -> Outgoing:
    def whole() -> Tensor:
        with torch.no_grad():
            tensor = ranks.whole_tensor(value.detach())
            return tensor if delta is None else tensor + ranks.whole_tensor(delta().detach())

    return Outgoing(name, str(value.dtype).removeprefix("torch."), tuple(value.shape), whole)


def _refuse_converted(model: PreTrainedModel, found: Sequence[Outgoing]) -> None:
    held = {one.name: torch.empty(one.shape, device="meta") for one in found}
    written = None
    with suppress(Exception):  # whatever it needs the values for
        written = revert_weight_conversion(model, dict(held))
    if written is None or _shapes(written) != _shapes(held):
        raise ConfigError(
            f"weights of {type(model).__name__} are written in another form than they are trained in, and "
            'cannot be broadcast; set `line.engine.transfer = "folder"`'
        )


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}


class Broadcast:
    """One sending of a model's tensors. Example: `Broadcast(outgoing(model, None, Ranks("cpu")), ranks)`"""

    def __init__(self, tensors: Sequence[Outgoing], ranks: Ranks) -> None:
        self._tensors, self._ranks = tensors, ranks
        self._groups: list[_Group] = []

    def invite(self, workers: Sequence[int], address: str, seconds: float) -> list[Invitation]:
        """Open a meeting at `address` for each engine, that has so many workers; on the first rank, the
        others have none to give. Raises ConfigError when this machine does not have the address."""
        if self._ranks.rank == 0:
            for count in workers:
                self._groups.append(self._group(count, address, seconds))
        return [group.invitation for group in self._groups]

    def _group(self, workers: int, address: str, seconds: float) -> _Group:
        try:
            listener = socket.create_server((address, 0))
        except OSError as error:
            raise ConfigError(
                f"`line.engine.transfer_address` is {address!r}, at which the trainer's machine cannot be "
                f"reached: {error}"
            ) from None
        invitation = Invitation(
            address=address,
            port=listener.getsockname()[1],
            group=f"patchwright-{secrets.token_hex(8)}",
            backend="nccl" if torch.device(self._ranks.device).type == "cuda" else "gloo",
            ranks=1 + workers,
            seconds=seconds,
            names=tuple(one.name for one in self._tensors),
            dtypes=tuple(one.dtype for one in self._tensors),
            shapes=tuple(one.shape for one in self._tensors),
        )
        return _Group(invitation, listener, torch.device(self._ranks.device))

    def send(self) -> list[str]:
        """Send everything to all who were invited. Returns for each what went wrong, or an empty word."""
        for group in self._groups:
            group.start()
        for one in self._tensors:
            tensor = one.whole()
            if self._ranks.rank == 0:
                self._give(tensor)
        for group in self._groups:
            group.give(None)
        return [group.finish() for group in self._groups]

    def _give(self, tensor: Tensor) -> None:
        ready = tensor.to(self._ranks.device).contiguous()
        if ready.is_cuda:
            torch.cuda.current_stream().synchronize()  # groups read it on streams of their own
        for group in self._groups:
            group.give(ready)

    def dismiss(self) -> None:
        """Close what `invite` opened."""
        for group in self._groups:
            group.close()
        self._groups.clear()


class _Group:
    """One engine's workers and this rank, by a thread that may be left behind."""

    def __init__(self, invitation: Invitation, listener: socket.socket, device: torch.device) -> None:
        self.invitation = invitation
        self._device = device
        self._bound = timedelta(seconds=invitation.seconds)
        self._store: Any = dist.TCPStore(  # type: ignore[attr-defined]
            invitation.address,
            invitation.port,
            invitation.ranks,
            is_master=True,
            wait_for_workers=False,
            timeout=self._bound,
            master_listen_fd=listener.detach(),
        )
        self._backend: Any = None
        self._fault = ""
        self._waiting = queue.Queue[Tensor | None](1)
        self._given = self._done = 0
        """Tensors; only the trainer's thread counts the former, only this one's the latter."""
        self._since = 0.0
        """When it came to have something to do, or last did some of it."""
        self._thread = threading.Thread(target=self._run, name="patchwright-broadcast", daemon=True)

    def start(self) -> None:
        """Begin to join the workers."""
        self._since = time.monotonic()
        self._thread.start()

    def give(self, tensor: Tensor | None) -> None:
        """Send a tensor after those before it, None ends; waits for an engine that is slower."""
        while not self._fault:
            if self._done and self._given == self._done:
                self._since = time.monotonic()
            try:
                self._waiting.put(tensor, timeout=_POLL)
            except queue.Full:
                self._watch()
            else:
                self._given += 1
                return

    def finish(self) -> str:
        """Wait for the last tensor. Returns what went wrong."""
        while self._thread.is_alive() and not self._fault:
            self._thread.join(_POLL)
            self._watch()
        return self._fault

    def _watch(self) -> None:
        patience = self.invitation.seconds / 2
        if self._thread.is_alive() and time.monotonic() - self._since > patience:
            self._fault = f"it took no part in the broadcast for {patience:g} s"

    def close(self) -> None:
        """Leave the group. What hangs in it is left to itself."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        if self._backend is not None:
            threading.Thread(target=self._backend.abort, daemon=True).start()
        self._backend = self._store = None

    def _run(self) -> None:
        try:
            self._backend = _backend(self.invitation, self._store, self._bound)
            stream: Any = None
            if self._device.type == "cuda":
                stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            while (tensor := self._waiting.get()) is not None and not self._fault:
                with torch.cuda.stream(stream):
                    self._backend.broadcast(tensor, 0).wait()
                if stream is not None:
                    stream.synchronize()
                self._since = time.monotonic()
                self._done += 1
        except Exception as error:  # whatever a transport dies of
            self._fault = self._fault or f"the broadcast broke: {str(error).splitlines()[0]}"


def _backend(invitation: Invitation, store: Any, bound: timedelta) -> Any:
    """Rank 0 of the group. Its keys lie where `torch.distributed` puts those of a group of that name: SGLang
    joins by it."""
    name, on_cpu = invitation.group, invitation.backend == "gloo"
    for prefix in (name, f"{name}/", "cpu/" if on_cpu else "cuda/"):
        store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    if on_cpu:
        kind: Any = distributed_c10d.ProcessGroupGloo
        options = kind._Options()
        options._devices = [kind.create_device(hostname=invitation.address)]
    else:
        kind = distributed_c10d.ProcessGroupNCCL
        options = kind.Options()
    options._timeout = bound
    with _survives():
        return kind(store, 0, invitation.ranks, options)


@contextmanager
def _survives() -> Iterator[None]:
    """NCCL's watchdog ends the process when a collective call fails, unless a group is made under this."""
    name, value = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
