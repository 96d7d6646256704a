"""What the trainer takes and gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol


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
class Invitation:
    """Where the workers of one engine meet the trainer, which then broadcasts every tensor, in this order.

    The trainer is rank 0 of the group, worker i is rank 1 + i.

    Example: `Invitation(address="127.0.0.1", port=40000, group="w3", backend="gloo", ranks=2, seconds=300.0,
    names=("lm_head.weight",), dtypes=("float32",), shapes=((320, 64),))`
    """

    address: str
    port: int
    """Of a torch `TCPStore`, at which the group is made."""
    group: str
    """Its name, by which keys in the store begin."""
    backend: Literal["gloo", "nccl"]
    ranks: int
    """The trainer and all workers."""
    seconds: float
    """What all of it may take."""
    names: tuple[str, ...]
    """As in a folder of safetensors; `dtypes` (torch's names) and `shapes` of the same length."""
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class Source(Protocol):
    """Gives weights to engines without a disk between them, while one `Engine.load` lasts."""

    def expect(self, engines: int) -> None:
        """So many engines, one unless it is told, call `send`; it begins with the last of them."""
        ...

    def leave(self) -> None:
        """One of these does not call it."""
        ...

    async def send(self, workers: int, receive: Callable[[Invitation], Awaitable[None]]) -> None:
        """Invite an engine of so many workers, and send while `receive` lets them take part.

        Raises EngineError when not everything has arrived; the engine then has half of a model.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A version of a model's weights: a complete Hugging Face folder (safetensors, config,
    tokenizer), absent or complete, never half.

    Example: `Weights(version=3, path="runs/demo/weights/v3")`
    """

    version: int
    path: str
    source: Source | None = field(default=None, compare=False, repr=False)
    """Whom an engine may have them from in place of the folder, while it loads them."""
