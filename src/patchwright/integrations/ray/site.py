"""A Ray cluster as the site of a run: what `cluster.place` decides becomes one placement group with a bundle
for every machine, and actors in it.

    machine of the driver   the recipe, the run's folder, the board
    machines of the group   engines, trainer ranks, rollout drivers
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from patchwright.engine.config import EngineConfig
from patchwright.engine.replicas import Bounds, Replicas
from patchwright.errors import ConfigError, EngineError
from patchwright.integrations.ray.connect import answer, connected
from patchwright.integrations.ray.engines import Board, Depot, EngineActor, starts
from patchwright.integrations.ray.ranks import Rank, RankActor, crew
from patchwright.integrations.ray.rollouts import RayLine, Roller
from patchwright.metrics.config import MetricsConfig
from patchwright.metrics.sinks import Traces, tracer
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.cluster import ClusterConfig, place
from patchwright.recipes.site import OpenSite, Site, Wanted
from patchwright.train.process import WorkerDiedError
from patchwright.train.worker import TrainerProcess

__all__ = ["Seat", "open_ray", "seats"]

_UNTRACED = partial(tracer, MetricsConfig(), "")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_GRACE = 60.0
"""Seconds actors have to close what they opened."""
_ROOM = 64
"""Calls an actor takes beside one for each attempt in flight: probes, loads, questions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Where an actor goes. Example: `Seat(kind="engine", machine=1, gpus=2)`"""

    kind: str
    """`engine`, `rank` or `driver`."""
    machine: int
    gpus: int = 0


def seats(cluster: ClusterConfig, ranks: int) -> list[Seat]:
    """A seat for every actor, a kind after the other, in the order of their numbers: engines and ranks as
    `place` has them, drivers where least is. Judges are no actors: nobody sits on their GPUs.

    Raises ConfigError when they do not fit.
    """
    wide = cluster.model_copy(update={"engines": max(1, cluster.engines)})
    machines = place(wide, ranks)
    found = [
        Seat(kind=kind, machine=number, gpus=node.users.count(name) if cluster.gpus_per_node else 0)
        for kind in ("engine", "rank")
        for number, node in enumerate(machines)
        for name in dict.fromkeys(user for user in node.users if user.startswith(kind))
    ]
    crowd = [sum(seat.machine == number for seat in found) for number in range(cluster.nodes)]
    for _ in range(cluster.drivers or cluster.nodes):
        number = crowd.index(min(crowd))
        crowd[number] += 1
        found.append(Seat(kind="driver", machine=number))
    return found


def open_ray(cluster: ClusterConfig, traces: Traces = _UNTRACED) -> OpenSite:
    """The site of a cluster; `traces` sends the spans of attempts from its machines."""
    return partial(_open, cluster, traces)


@asynccontextmanager
async def _open(cluster: ClusterConfig, traces: Traces, wanted: Wanted) -> AsyncIterator[Site]:
    taken = seats(cluster, wanted.train.ranks)
    _refuse_unplaced(cluster, wanted.line.engine, taken)
    async with AsyncExitStack() as stack:
        run = await stack.enter_async_context(connected(cluster))
        room = await stack.enter_async_context(_placed(cluster, taken, wanted.say))
        yield await _Opening(cluster, wanted, taken, run, room, stack, traces).site()


def _refuse_unplaced(cluster: ClusterConfig, engine: EngineConfig, taken: Sequence[Seat]) -> None:
    """Raises ConfigError for engines that cannot be where they are to be."""
    crowd = Counter(seat.machine for seat in taken if seat.kind == "engine")
    if engine.replicas > 1:
        raise ConfigError(
            f"`line.engine.replicas` is {engine.replicas}: on Ray every replica has its place; leave it out "
            "and set `cluster.engines`"
        )
    if engine.urls and max(crowd.values()) > 1:
        raise ConfigError(
            "`line.engine.url` is the address of one server on every machine, and there are more engines "
            "than machines; set `line.engine.python` instead to have them started, or lower `cluster.engines`"
        )
    if engine.transfer == "broadcast":
        raise ConfigError(
            '`line.engine.transfer` is "broadcast", which is not built on Ray: leave it out, and weights go '
            "as folders over its object store"
        )
    if cluster.tensor_parallel > 1 and engine.use == "local":
        raise ConfigError(
            f"`cluster.tensor_parallel` is {cluster.tensor_parallel}, and the local engine has one GPU; set "
            "it to 1, or use `vllm` or `sglang`"
        )


@asynccontextmanager
async def _placed(
    cluster: ClusterConfig, taken: Sequence[Seat], say: Callable[[str], None]
) -> AsyncIterator[Callable[[Seat], Any]]:
    """Reserve a bundle of every machine; yields who says where a seat is.

    Raises ConfigError when the cluster has not had the room within the bound."""
    bundles = [_bundle([seat for seat in taken if seat.machine == number]) for number in range(cluster.nodes)]
    used = [number for number, bundle in enumerate(bundles) if bundle]
    group = placement_group([bundles[number] for number in used], strategy="SPREAD")
    try:
        say(f"waiting for room on the Ray cluster: {', '.join(map(_bundle_text, bundles))}")
        if not await asyncio.to_thread(group.wait, cluster.placement_seconds):
            has = {"CPU": 0.0, "GPU": 0.0} | ray.cluster_resources()  # type: ignore[no-untyped-call]
            raise ConfigError(
                f"the Ray cluster has had no room for this run for "
                f"{cluster.placement_seconds:g} s; it has {has['CPU']:g} CPUs and {has['GPU']:g} GPUs: add "
                "machines, or lower `cluster.engines`, `cluster.drivers` or `train.ranks`"
            )
        yield lambda seat: PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=used.index(seat.machine)
        )
    finally:
        remove_placement_group(group)


def _bundle_text(bundle: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {name}s" for name, count in bundle.items()) or "nothing"


def _bundle(taken: Sequence[Seat]) -> dict[str, float]:
    """A CPU for every actor, and the GPUs."""
    gpus = sum(seat.gpus for seat in taken)
    return {"CPU": float(len(taken))} | ({"GPU": float(gpus)} if gpus else {}) if taken else {}


@dataclass(frozen=True)
class _Opening:
    """Starts the actors, and has the stack end them."""

    cluster: ClusterConfig
    wanted: Wanted
    taken: Sequence[Seat]
    run: str
    """Begins the names of its actors, and names its caches."""
    room: Callable[[Seat], Any]
    stack: AsyncExitStack
    traces: Traces = _UNTRACED

    async def site(self) -> Site:
        """All of it. Raises ConfigError or EngineError."""
        wanted = self.wanted
        board = self._board()
        depot = Depot(board)
        await depot.pin(wanted.model, "model")
        await depot.pin(wanted.model, "tokenizer", without=_WEIGHTS)
        most = wanted.line.concurrency + _ROOM
        lives = {"max_restarts": -1, "max_concurrency": most}
        where = (self.run, self.cluster.cache)
        engines = [
            self._actor(
                EngineActor, seat, lives | {"name": f"{self.run}-engine-{number}"}, self._line(number), *where
            )
            for number, seat in enumerate(self._of("engine"))
        ]
        bounds = Bounds(start=wanted.line.engine.start_seconds, load=wanted.line.engine.load_seconds)
        engine = await Replicas.open(starts(engines, depot), bounds=bounds, say=wanted.say)
        self.stack.push_async_callback(engine.close)
        self.stack.push_async_callback(_end, engines)  # before `close`, which would have them started again
        given = (wanted.line, len(engines), *where, self.traces)
        rollers = [self._actor(Roller, seat, lives, *given) for seat in self._of("driver")]
        self.stack.push_async_callback(_end, rollers)
        line = RayLine(rollers, keep=wanted.keep, say=wanted.say, events=wanted.events)
        self.stack.push_async_callback(line.close)
        await line.open()
        return Site(
            line=line, engine=engine, trainer=lambda: self._trainer(depot), restarts=self.cluster.restarts
        )

    def _line(self, number: int) -> LineConfig:
        """For an actor: one engine, on the GPUs Ray gives it, with a seed and logs that no other has."""
        line, gpus = self.wanted.line, self.cluster.tensor_parallel if self.cluster.gpus_per_node else 0
        config = line.engine
        own = {"seed": config.seed + number, "logs": f"{config.logs}/{number}"}
        started = config.use != "local" and not config.urls
        engine = config.model_copy(update=own | ({"gpus": gpus} if started else {}))
        return line.model_copy(update={"engine": engine})

    def _of(self, kind: str) -> list[Seat]:
        return [seat for seat in self.taken if seat.kind == kind]

    def _board(self) -> Any:
        """Beside the driver: it is needed as long as that one, and no longer."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        name = f"{self.run}-board"
        return ray.remote(Board).options(num_cpus=0, scheduling_strategy=here, name=name).remote()

    def _actor(self, kind: type[Any], seat: Seat, options: Mapping[str, Any], *args: Any) -> Any:
        made = ray.remote(kind).options(
            num_cpus=1, num_gpus=seat.gpus, scheduling_strategy=self.room(seat), **options
        )
        return made.remote(*args)

    @asynccontextmanager
    async def _trainer(self, depot: Depot) -> AsyncIterator[TrainerProcess]:
        """The trainer over new actors."""
        actors = [self._actor(RankActor, seat, {}, self.run, self.cluster.cache) for seat in self._of("rank")]
        try:
            workers = await self._crew(actors, depot)
            model, config = self.wanted.model, self.wanted.train
            async with TrainerProcess(model, config, workers, apart=True) as trainer:
                yield trainer
        except WorkerDiedError as error:
            raise EngineError("the trainer's actors did not start") from error
        finally:
            for actor in actors:
                ray.kill(actor)

    async def _crew(self, actors: Sequence[Any], depot: Depot) -> list[Rank]:
        """`crew`; where a machine was lost, Ray waits for the room of another as long as there is none."""
        bound = self.cluster.placement_seconds
        try:
            async with asyncio.timeout(bound):
                return await crew(actors, depot)
        except TimeoutError:
            raise EngineError(
                f"the Ray cluster has had no room for the trainer's ranks for {bound:g} s; add a machine, "
                "then run the same command again"
            ) from None


async def _end(actors: Sequence[Any]) -> None:
    """Let actors close what they opened, and end them."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            await asyncio.gather(*(answer(actor.close.remote()) for actor in actors), return_exceptions=True)
    for actor in actors:
        ray.kill(actor)
