"""Engines on Ray. An actor holds an engine on its machine; whoever wants tokens talks to the actor, and
`engine.replicas.Replicas` is over those.

Weights are shown to the board first and then loaded, so that an actor that Ray starts again comes back with
the current ones, whoever asks it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray

from patchwright.engine.base import Engine, OnTokens
from patchwright.engine.replicas import Start
from patchwright.errors import EngineError
from patchwright.integrations.ray.connect import LostError, answer, other
from patchwright.integrations.ray.parcels import Cache, Parcel, pack
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.engines import open_engine
from patchwright.recipes.parity import refuse_truncation
from patchwright.types import Completion, Sampling, Weights

__all__ = ["Board", "Depot", "EngineActor", "RayEngine", "Shipment", "starts"]

_PROBE = Sampling(max_tokens=1, seed=0)
_AGAIN = 0.5
"""Seconds between two looks at an actor that Ray is starting again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shipment:
    """A version of the weights on its way. Made by `Depot.ship`."""

    version: int
    parcel: Parcel


class Board:
    """An actor beside the driver that has what actors begin with, as often as Ray starts them: the `model`,
    its `tokenizer`, and the current `weights`, if they are not the model's."""

    def __init__(self) -> None:
        self._pinned: dict[str, Any] = {}

    def pin(self, name: str, what: Any) -> None:
        """From now on this."""
        self._pinned[name] = what

    def pinned(self, name: str) -> Any:
        """None where nothing was pinned."""
        return self._pinned.get(name)


class EngineActor:
    """An actor with an engine of its machine. Opened by whoever asks first, with the current weights."""

    def __init__(self, line: LineConfig, run: str, cache: str) -> None:
        self._line, self._board = line, other(run, "board")
        self._cache = Cache(run, cache)
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._engine: Engine | None = None
        self._has: Shipment | None = None

    async def about(self) -> int:
        """The engine's `max_context`, told when it has answered. Raises ConfigError or EngineError."""
        engine = await self._ready()
        await engine.generate([0], _PROBE)
        return engine.max_context

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """See `Engine.generate`."""
        engine = await self._ready()
        return await engine.generate(prompt_ids, sampling)

    async def load(self, shipment: Shipment) -> None:
        """See `Engine.load`."""
        engine = await self._ready()
        async with self._opening:
            await self._bring(engine, shipment)

    async def close(self) -> None:
        """Close the engine; the actor is ended next."""
        await self._stack.aclose()
        self._cache.close()

    async def _ready(self) -> Engine:
        if self._engine is None:
            async with self._opening:
                self._engine = self._engine or await self._open()
        return self._engine

    async def _open(self) -> Engine:
        self._has = None  # it was of an engine that was given up
        parcel = await answer(self._board.pinned.remote("model"))
        model = await asyncio.to_thread(self._cache.unpack, parcel)
        async with AsyncExitStack() as stack:  # what fails or is given up half-way leaves no server behind
            engine = await stack.enter_async_context(open_engine(model, self._line.engine))
            refuse_truncation(engine, self._line.sampling)
            while (current := await answer(self._board.pinned.remote("weights"))) and not self._held(current):
                await self._bring(engine, current)
            self._stack = stack.pop_all()
        return engine

    async def _bring(self, engine: Engine, shipment: Shipment) -> None:
        if self._held(shipment):
            return
        folder = await asyncio.to_thread(self._cache.unpack, shipment.parcel)
        await engine.load(Weights(version=shipment.version, path=str(folder)))
        self._has = shipment

    def _held(self, shipment: Shipment) -> bool:
        has = self._has
        return (
            has is not None
            and has.version == shipment.version
            and has.parcel.digest == shipment.parcel.digest
        )


class Depot:
    """The driver's folders in the object store: each packed once, the last of a kind kept."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._parcels: dict[str, tuple[Path, Parcel]] = {}
        self._packing = asyncio.Lock()

    async def pin(self, folder: Path, kind: str, *, without: Collection[str] = ()) -> None:
        """Put a folder on the board, but for files of certain suffixes."""
        parcel = await (
            asyncio.to_thread(pack, folder, kind, without=without) if without else self.parcel(folder, kind)
        )
        await answer(self._board.pin.remote(kind, parcel))

    async def parcel(self, folder: Path, kind: str) -> Parcel:
        """A folder, which must not change any more. Raises StoreError when it cannot be read."""
        async with self._packing:
            for known, parcel in self._parcels.values():
                if known == folder:
                    return parcel
            self._parcels.pop(kind, None)  # let go of the old one first: stores are small
            parcel = await asyncio.to_thread(pack, folder, kind)
            self._parcels[kind] = folder, parcel
            return parcel

    async def ship(self, weights: Weights) -> Shipment:
        """Weights for the engines; actors that start from now on begin with them."""
        shipment = Shipment(version=weights.version, parcel=await self.parcel(Path(weights.path), "weights"))
        await answer(self._board.pin.remote("weights", shipment))
        return shipment


class RayEngine:
    """An `Engine` whose model an `EngineActor` has. Tokens are told when the completion is whole.

    Without a depot (where attempts are made) it only samples: the driver loads the weights, and ends an actor
    that must be started again.
    """

    def __init__(self, actor: Any, max_context: int, depot: Depot | None = None) -> None:
        self._actor, self._depot = actor, depot
        self._lost = False
        self.version = 0
        """Of the weights last loaded through this."""
        self.max_context = max_context

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """See `Engine.generate`. Raises LostError when the actor is gone."""
        done: Completion = await self._ask(self._actor.generate.remote(list(prompt_ids), sampling))
        if on_tokens is not None and done.token_ids:
            on_tokens(done.token_ids)
        return done

    async def load(self, weights: Weights) -> None:
        """See `Engine.load`."""
        if self._depot is None:
            raise EngineError("weights are loaded by the run's driver")
        await self._ask(self._actor.load.remote(await self._depot.ship(weights)))
        self.version = weights.version

    async def close(self) -> None:
        """Have Ray start the actor again, unless it does so anyhow."""
        if self._depot is not None and not self._lost:
            self._lost = True
            ray.kill(self._actor, no_restart=False)

    async def _ask(self, call: Any) -> Any:
        try:
            return await answer(call)
        except LostError:
            self._lost = True
            raise


def starts(actors: Sequence[Any], depot: Depot | None = None) -> list[Start]:
    """How `Replicas` connects to each actor, and again to one that was lost, as soon as Ray has it back."""

    async def start(actor: Any) -> Engine:
        while True:
            try:
                return RayEngine(actor, await answer(actor.about.remote()), depot)
            except LostError:
                await asyncio.sleep(_AGAIN)

    return [partial(start, actor) for actor in actors]
