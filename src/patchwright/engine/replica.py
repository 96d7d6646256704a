"""What `engine/replicas.py` keeps of a replica and of a request, and how long it waits for either."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from patchwright.engine.base import Engine, OnTokens
from patchwright.errors import EngineBusy
from patchwright.types import Sampling, Weights

__all__ = ["Bounds", "Fault", "Life", "Replica", "Request", "Start", "ended"]

Start = Callable[[], Awaitable[Engine]]
"""Starts or connects one engine, again after every failure of the last one, which was closed before. Raises
ConfigError when no further try could help, else EngineError. Cancelled, it leaves nothing behind."""

_PROBE = Sampling(max_tokens=1, seed=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Seconds that things may take.

    Example: `Bounds(load=30)`
    """

    start: float = 900.0
    """A start, until the engine could answer."""
    load: float = 300.0
    """A replica's loading of weights; past it it is taken out."""
    probe: float = 60.0
    """An answer to a probe, one token; past it the replica counts as dead."""
    every: float = 15.0
    """Between two looks at replicas that have not answered anything meanwhile."""
    absent: float = 300.0
    """What a request waits while no replica is up."""
    retry: float = 1.0
    """Before the second try to start again; it doubles with every further one that brings no answer."""
    most_retry: float = 60.0
    """Between two tries, at most."""
    close: float = 30.0
    """An engine's closing; past it it is left alone."""


@dataclass(eq=False, slots=True)
class Life:
    """One engine, from its start until it is lost."""

    engine: Engine
    lost: asyncio.Future[None]
    answers: int = 0
    """Requests answered."""
    loaded: Weights | None = None
    loading: bool = False
    failed: bool = False
    """It did not take the weights being loaded: until all have tried, nobody knows what it samples from."""

    async def fault(self, bound: float) -> str:
        """Why it answers no probe, or nothing within `bound` seconds; empty when it does, or is only busy."""
        if self.lost.done():
            return "it was lost"
        try:
            async with asyncio.timeout(bound):
                await self.engine.generate([0], _PROBE)
        except EngineBusy:
            return ""
        except TimeoutError:
            return f"it answers no probe within {bound:g} s"
        except Exception as error:  # whatever an engine dies of
            return str(error) or type(error).__name__
        return ""


@dataclass(eq=False, slots=True)
class Replica:
    """A place for an engine, and how to fill it."""

    name: str
    start: Start
    life: Life | None = None
    """While it is up."""
    leaving: Engine | None = None
    """The engine that was lost, until it is closed."""
    failures: int = 0
    """Starts, one after the other, of which no answer came."""
    keeper: asyncio.Task[None] | None = None
    """Brings it back while it is not."""


@dataclass(slots=True)
class Request:
    """One call of `generate`, across the replicas it is tried on."""

    prompt: Sequence[int]
    sampling: Sampling
    on_tokens: OnTokens | None
    told: bool = False
    """Tokens of it were streamed: it cannot be begun again."""
    busy: set[str] = field(default_factory=set)
    """Replicas that had no room for it."""
    lost: int = 0
    """Replicas that were lost to it."""

    def tell(self, ids: Sequence[int]) -> None:
        """Stream, and remember that something was."""
        self.told = True
        assert self.on_tokens is not None
        self.on_tokens(ids)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a replica did not load."""

    text: str


async def ended(engine: Engine, bound: float) -> None:
    """Close an engine that may not even be able to."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(bound):
            await engine.close()
