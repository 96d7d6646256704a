"""Attempts on Ray: every rollout driver is an actor with a line of its own (agent, boxes, gateway), over all
engines; `RayLine` is before them, and what the recipe sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from patchwright.engine.config import EngineConfig
from patchwright.engine.replicas import Bounds, Replicas
from patchwright.errors import InfraError, PatchwrightError
from patchwright.integrations.ray.connect import LostError, answer, other
from patchwright.integrations.ray.engines import starts
from patchwright.integrations.ray.parcels import Cache
from patchwright.metrics.sinks import Traces
from patchwright.metrics.trace import TRACER
from patchwright.recipes.agents import open_agent
from patchwright.recipes.assembly import LineConfig, open_boxes, open_line
from patchwright.render import Renderer
from patchwright.rollout.events import Events
from patchwright.rollout.rollout import Job, Line
from patchwright.types import Failure, Trajectory

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["Keep", "Made", "RayLine", "Roller"]

Keep = Callable[[str, Mapping[str, bytes]], None]
"""As `Line.keep`."""

_AGAIN = 0.5
"""Seconds between two looks at a driver that Ray is starting again."""
_MOST_AGAIN = 30.0
"""Seconds before the next try to open a line that could not be opened."""
_MOST = 4
"""Drivers that may be lost to one attempt before it is void."""
_ABSENT = 600.0
"""Seconds an attempt waits while no driver is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """An attempt, the files its agent left, and what the driver has to say besides."""

    trajectory: Trajectory
    files: Mapping[str, bytes]
    said: Sequence[str] = ()


class Roller:
    """An actor that makes attempts, as many at a time as it is asked for. Opened by whoever asks first. Their
    spans go where `traces` sends them."""

    def __init__(self, line: LineConfig, engines: int, run: str, cache: str, traces: Traces) -> None:
        self._config, self._board = line, other(run, "board")
        self._traces = traces
        self._tracer: Tracer | None = None
        self._said: list[str] = []
        self._engines = [other(run, f"engine-{number}") for number in range(engines)]
        self._cache = Cache(run, cache)
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._line: Line | None = None

    async def ready(self) -> None:
        """Open the line. Raises ConfigError or an InfraError."""
        if self._line is None:
            async with self._opening:
                self._line = self._line or await self._open()

    async def attempt(self, job: Job) -> Made:
        """See `Line.attempt`."""
        await self.ready()
        assert self._line is not None
        files: dict[str, bytes] = {}
        line = replace(self._line, keep=lambda _, left: files.update(left))
        TRACER.set(self._tracer)  # for the task of this call
        trajectory = await line.attempt(job)
        said, self._said = self._said, []
        return Made(trajectory=trajectory, files=files, said=said)

    async def close(self) -> None:
        """Close boxes, agent and gateway; the actor is ended next."""
        await self._stack.aclose()
        self._cache.close()

    async def _open(self) -> Line:
        config = self._config
        parcel = await answer(self._board.pinned.remote("tokenizer"))
        folder = await asyncio.to_thread(self._cache.unpack, parcel)
        async with AsyncExitStack() as stack:  # what fails or is given up half-way leaves nothing behind
            self._tracer = stack.enter_context(self._traces(self._say))
            agent = await stack.enter_async_context(open_agent(config.agent))
            backend = await stack.enter_async_context(open_boxes(config.sandbox))
            engine = await Replicas.open(starts(self._engines), bounds=_bounds(config.engine))
            stack.push_async_callback(engine.close)
            opened = open_line(backend, agent, engine, Renderer.load(str(folder)), history=config.history)
            line = await stack.enter_async_context(opened)
            self._stack = stack.pop_all()
        return line

    def _say(self, told: str) -> None:
        self._said.append(told)


def _bounds(engine: EngineConfig) -> Bounds:
    """Of a driver's engines. Nobody tells it that one loads weights and answers nothing meanwhile: it is
    patient as long as that may take, and those that are lost it hears of from Ray."""
    load = engine.load_seconds
    return Bounds(start=engine.start_seconds, probe=load, absent=load + Bounds().absent)


class RayLine:
    """Makes attempts (`Attempts`), each at the driver that has fewest. What a lost driver had under way is
    made again at another; Ray starts it again, and then it takes its part.

    Example: `line = RayLine(actors, keep=keep, say=print); await line.open()`
    """

    def __init__(
        self,
        rollers: Sequence[Any],
        *,
        keep: Keep,
        say: Callable[[str], None],
        events: Events | None = None,
    ) -> None:
        self._rollers, self._keep, self._say = rollers, keep, say
        self._events = events
        self._under_way = [0] * len(rollers)
        self._up: set[int] = set()
        self._news = asyncio.Condition()
        self._returns: dict[int, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Wait for the drivers. Raises ConfigError, or what else keeps a line from opening."""
        await asyncio.gather(*(self._back(place) for place in range(len(self._rollers))))

    async def attempt(self, job: Job) -> Trajectory:
        """See `Attempts`. Raises EngineError when no driver has been there for ten minutes.

        Who watches the run is told when it is sent to a driver and when it is back, and of no turn of it."""
        self._tell(job.id, "queue", task=job.task.id, group=job.group)
        done = await self._attempt(job)
        error = f"{done.failure.kind}: {done.failure.message}" if done.failure else ""
        self._tell(job.id, "end", outcome=done.outcome.value, exit=done.exit, error=error)
        return done

    def _tell(self, attempt: str, what: str, **more: str) -> None:
        if self._events is not None:
            self._events.note(attempt, what, **more)

    async def _attempt(self, job: Job) -> Trajectory:
        bare = replace(job, engine=None)
        for _ in range(_MOST):
            place = await self._free()
            self._under_way[place] += 1
            self._tell(job.id, "agent")
            try:
                made: Made = await answer(self._rollers[place].attempt.remote(bare))
            except InfraError:  # no attempt ends so: the driver is gone, or could not be opened again
                self._lose(place)
                continue
            finally:
                self._under_way[place] -= 1
            for told in made.said:
                self._say(f"rollout driver {place}: {told}")
            if made.files:
                await asyncio.to_thread(self._keep, job.id, made.files)
            return made.trajectory
        failure = Failure(
            kind="EngineError", message=f"{_MOST} rollout drivers were lost with it", stage="agent"
        )
        return Trajectory(id=job.id, task_id=job.task.id, group=job.group, failure=failure)

    async def close(self) -> None:
        """Stop looking after the drivers."""
        for task in self._returns.values():
            task.cancel()
        await asyncio.gather(*self._returns.values(), return_exceptions=True)

    async def _free(self) -> int:
        try:
            async with asyncio.timeout(_ABSENT), self._news:
                await self._news.wait_for(lambda: bool(self._up))
        except TimeoutError:
            raise LostError(f"no rollout driver has been there for {_ABSENT:g} s") from None
        return min(self._up, key=lambda place: self._under_way[place])

    def _lose(self, place: int) -> None:
        if place in self._up:
            self._up.discard(place)
            self._say(f"rollout driver {place} is lost, {len(self._up)} of {len(self._rollers)} are left")
            self._returns[place] = asyncio.create_task(self._return(place))

    async def _return(self, place: int) -> None:
        while place not in self._up:
            try:
                await self._back(place)
            except PatchwrightError as error:
                self._say(f"rollout driver {place} is tried again in {_MOST_AGAIN:g} s: {error}")
                await asyncio.sleep(_MOST_AGAIN)
        self._say(f"rollout driver {place} is back")

    async def _back(self, place: int) -> None:
        """Wait until a driver can make attempts, however often Ray has to start it."""
        while True:
            try:
                await answer(self._rollers[place].ready.remote())
                break
            except LostError:
                await asyncio.sleep(_AGAIN)
        async with self._news:
            self._up.add(place)
            self._news.notify_all()
