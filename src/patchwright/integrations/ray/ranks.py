"""Trainer ranks on Ray: a `Worker` of `TrainerProcess` whose process is an actor on another machine.

A rank knows only folders of its machine. A folder it is given that exists at the driver is brought there; one
that does not is what the call writes: it is written there, and what every rank wrote comes back into one
folder at the driver, which appears when it is whole.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import ray

from patchwright.errors import EngineError, StoreError
from patchwright.integrations.ray.connect import LostError, answer
from patchwright.integrations.ray.engines import Depot
from patchwright.integrations.ray.parcels import Cache, Parcel, pack, write
from patchwright.store.files import attributed, commit
from patchwright.train.process import WorkerDiedError
from patchwright.types import Weights

__all__ = ["Rank", "RankActor", "crew"]

T = TypeVar("T")

_GRACE = 10.0
"""Seconds a rank has to let go; one in the middle of something is ended in it."""


@dataclass(frozen=True, slots=True)
class Out:
    """A folder that a call writes, by its name."""

    name: str


class RankActor:
    """An actor that runs the functions of a trainer's rank, one after the other, in one process."""

    def __init__(self, run: str, cache: str) -> None:
        self._cache = Cache(run, cache)

    def address(self) -> str:
        """Where other ranks reach this machine."""
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def call(self, function: Callable[..., T], args: Sequence[Any], name: str) -> tuple[T, Parcel | None]:
        """The answer, and what was written. `name` is no other rank's."""
        scratch = self._cache.scratch(name)
        try:
            answered = function(*(self._local(arg, scratch) for arg in args))
            wrote = any(isinstance(arg, Out) for arg in args)
            return answered, pack(scratch, "out") if wrote else None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def close(self) -> None:
        """Let go of the machine's cache; the actor is ended next."""
        self._cache.close()

    def _local(self, arg: Any, scratch: Path) -> Any:
        match arg:
            case Parcel():
                return self._cache.unpack(arg)
            case Out(name):
                return scratch / name
        return arg


class Rank:
    """A `Worker`. Made by `crew`."""

    def __init__(
        self, actor: Any, number: int, address: str, depot: Depot, together: asyncio.Barrier
    ) -> None:
        self.address = address
        self._actor, self._name, self._depot = actor, f"rank-{number}", depot
        self._together = together
        """All ranks have come so far."""

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """See `Worker`."""
        sent = [await self._sent(arg) if isinstance(arg, Path) else arg for arg in args]
        try:
            done, parcel = await answer(self._actor.call.remote(function, sent, self._name))
        except LostError as error:
            raise WorkerDiedError(f"{self._name} died while it was to run {function}") from error
        if parcel is not None:
            folder = next(arg for arg, way in zip(args, sent, strict=True) if isinstance(way, Out))
            await self._brought(parcel, folder)
            done = replace(done, path=str(folder)) if isinstance(done, Weights) else done
        result: T = done
        return result

    async def close(self) -> None:
        """See `Worker`."""
        await self._together.abort()
        with suppress(LostError, TimeoutError):
            async with asyncio.timeout(_GRACE):
                await answer(self._actor.close.remote())
        ray.kill(self._actor)

    async def _sent(self, folder: Path) -> Parcel | Out:
        if folder.exists():
            kind = "checkpoint" if folder.parent.name == "checkpoints" else "model"
            return await self._depot.parcel(folder, kind)
        return Out(folder.name)

    async def _brought(self, parcel: Parcel, folder: Path) -> None:
        """Add what this rank wrote; the folder takes its place when all have."""
        beside = folder.with_name(f"{folder.name}.{id(self._together):x}.tmp")  # no earlier crew's
        try:
            await asyncio.to_thread(_add, parcel, beside)
            if await self._together.wait() == 0:
                with attributed("write what the trainer saved", folder):
                    await asyncio.to_thread(commit, beside, folder)
            await self._together.wait()
        except asyncio.BrokenBarrierError as error:
            raise WorkerDiedError("another rank died") from error
        except (EngineError, StoreError) as error:
            await self._together.abort()
            if isinstance(error.__cause__, ray.exceptions.RayError):  # its objects go with it
                raise WorkerDiedError(f"{self._name} died with what it wrote") from error
            raise


def _add(parcel: Parcel, beside: Path) -> None:
    """The files under the names they were to have: without the folder's own, which some ranks write aside."""
    files = tuple(replace(file, name=file.name.partition("/")[2]) for file in parcel.files)
    write(replace(parcel, files=files), beside)


async def crew(actors: Sequence[Any], depot: Depot) -> list[Rank]:
    """The workers over a trainer's actors. Raises WorkerDiedError."""
    together = asyncio.Barrier(len(actors))
    try:
        addresses = await asyncio.gather(*(answer(actor.address.remote()) for actor in actors))
    except LostError as error:
        raise WorkerDiedError("a trainer's actor did not start") from error
    return [
        Rank(actor, number, address, depot, together)
        for number, (actor, address) in enumerate(zip(actors, addresses, strict=True))
    ]
