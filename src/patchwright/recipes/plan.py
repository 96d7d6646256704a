"""`train ... --dry-run`: what a run would take, and what this machine lacks for it. Nothing is started.

settings + shape of the model -> Plan (placement, memory of a GPU, tokens of a step, boxes, missing)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.cluster import ClusterConfig, Node, place
from patchwright.recipes.plan_memory import (
    EngineMemory,
    Part,
    engine_memory,
    host_peak,
    local_memory,
    trainer_memory,
)
from patchwright.recipes.plan_missing import Given, missing
from patchwright.recipes.plan_model import Shape, find_shape
from patchwright.recipes.presets import Training
from patchwright.recipes.settings import Settings
from patchwright.train.config import TrainConfig
from patchwright.types import Limits

__all__ = ["Boxes", "Plan", "Step", "make_plan"]

_GB = 1e9
_FULL = 0.9
"""Share of a GPU past which a reckoned peak may not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Tokens of one optimizer round, at most."""

    attempts: int
    """0 where nothing is rolled out."""
    sampled: int
    computed: int
    """By the trainer, if no two rows had anything in common."""
    passes: int
    """Micro-batches of each rank that makes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Boxes:
    """Where boxes are. An attempt has one at a time: its own, then its grader's."""

    at_once: int
    nodes: int
    """0: this machine."""
    each: int
    """On a node, when they are spread evenly."""
    room: int
    """On all nodes; `at_once` on this machine, which has no bound."""

    @property
    def memory_gb(self) -> float:
        """On a node, when every process takes what a task's default limit lets it."""
        return self.each * Limits().memory_mb / 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run would take. Made by `make_plan`, printed by `plan_text`."""

    name: str
    """The model: its folder, or what hubs call it."""
    shape: Shape
    cluster: ClusterConfig
    train: TrainConfig
    nodes: Sequence[Node]
    trainer: Sequence[Part]
    local: Sequence[Part]
    """Of the local engine, if that one samples."""
    engine: EngineMemory | None
    judge_engine: EngineMemory | None
    context: int
    """Tokens of the longest row."""
    step: Step
    boxes: Boxes | None
    missing: Sequence[str]

    @property
    def trainer_bytes(self) -> float:
        """Of one GPU that trains."""
        return sum(part.bytes for part in self.trainer)


def make_plan(kind: Training, settings: Settings, model: Path | None, files: Sequence[Path] = ()) -> Plan:
    """Reckon what `train KIND` would take with these settings. `files` are those the run would read.

    Raises ConfigError when the model's shape is not known, or when the machines are too small for all.
    """
    cluster, train = settings.cluster, _train(kind, settings)
    shape = find_shape(model, cluster.model)
    judge = find_shape(None, cluster.judge_model) if cluster.judges else None
    on_gpus = train.device != "cpu"
    longest = _longest(kind, settings, shape)
    serves = cluster.engines if kind == "rl" else 0
    trainer = trainer_memory(shape, train, longest)
    memory = cluster.gpu_memory_gb * _GB
    engine = _engine(shape, memory, cluster.engine_memory, cluster.tensor_parallel) if serves else None
    judging = _engine(judge, memory, cluster.engine_memory, cluster.judge_parallel) if judge else None
    boxes = _boxes(settings.line, cluster) if kind == "rl" else None
    given = Given(
        kind=kind,
        settings=settings,
        train=train,
        model=model,
        files=tuple(files),
        host=host_peak(shape, train, longest),
    )
    needs = sum(part.bytes for part in trainer)
    return Plan(
        name=str(model or cluster.model),
        shape=shape,
        cluster=cluster,
        train=train,
        nodes=place(cluster.model_copy(update={"engines": serves}), train.ranks if on_gpus else 0),
        trainer=trainer,
        local=_local(settings.line, shape, longest) if kind == "rl" else (),
        engine=engine,
        judge_engine=judging,
        context=longest,
        step=_step(kind, settings, train, longest),
        boxes=boxes,
        missing=[
            *_too_small(needs if on_gpus else 0, engine, judging, longest, cluster),
            *_no_room(boxes),
            *missing(given),
        ],
    )


def _train(kind: Training, settings: Settings) -> TrainConfig:
    trains = {"rl": settings.rl.train, "sft": settings.sft.train, "verifier": settings.verifier.train}
    return trains[kind]


def _engine(shape: Shape, memory: float, share: float, parallel: int) -> EngineMemory:
    return engine_memory(shape, memory, share=share, parallel=parallel)


def _local(line: LineConfig, shape: Shape, longest: int) -> Sequence[Part]:
    if line.engine.use != "local":
        return ()
    return local_memory(shape, line.engine, min(line.concurrency, line.engine.max_running), longest)


def _longest(kind: Training, settings: Settings, shape: Shape) -> int:
    """Tokens of the longest row the trainer may get."""
    if kind == "sft":
        return settings.sft.max_length or shape.positions or settings.sft.train.micro_batch_tokens
    if kind == "verifier":
        return settings.verifier.prompt.max_tokens + 1
    return settings.line.engine.max_context or shape.positions or settings.rl.train.micro_batch_tokens


def _step(kind: Training, settings: Settings, train: TrainConfig, longest: int) -> Step:
    if kind != "rl":
        tokens = settings.sft.batch_tokens if kind == "sft" else settings.verifier.batch_tokens
        return Step(attempts=0, sampled=0, computed=tokens, passes=_passes(tokens, train, longest))
    attempts = settings.rl.tasks_per_step * settings.rl.samples_per_task
    agent, sampling = settings.line.agent, settings.line.sampling
    whole = agent.context.use == "none"
    replies = agent.max_turns * sampling.max_tokens
    computed = attempts * longest * (1 if whole else agent.max_turns)
    return Step(
        attempts=attempts,
        sampled=attempts * (min(replies, longest) if whole else replies),
        computed=computed,
        passes=_passes(computed, train, longest),
    )


def _passes(tokens: int, train: TrainConfig, longest: int) -> int:
    return -(-tokens // (max(train.micro_batch_tokens, longest) * train.ranks))


def _boxes(line: LineConfig, cluster: ClusterConfig) -> Boxes:
    nodes = cluster.box_nodes
    room = nodes * cluster.boxes_per_node if nodes else line.concurrency
    each = -(-line.concurrency // max(1, nodes))
    return Boxes(at_once=line.concurrency, nodes=nodes, each=each, room=room)


def _no_room(boxes: Boxes | None) -> list[str]:
    if boxes is None or boxes.room >= boxes.at_once:
        return []
    return [
        f"room for boxes: {boxes.at_once} attempts at once, {boxes.room} boxes on {boxes.nodes} nodes; the "
        "others wait (lower line.concurrency, or raise cluster.box_nodes)"
    ]


def _too_small(
    trainer: float,
    engine: EngineMemory | None,
    judge: EngineMemory | None,
    longest: int,
    cluster: ClusterConfig,
) -> list[str]:
    """What does not fit on a GPU."""
    memory, found = cluster.gpu_memory_gb, []
    if trainer > _FULL * memory * _GB:
        found.append(
            f"memory: a trainer's GPU needs about {trainer / _GB:.0f} of {memory:.0f} GB; more train.ranks, "
            "fewer micro_batch_tokens, or GPUs with more"
        )
    for name, size in (("an engine's", engine), ("a judge's", judge)):
        if size is not None and size.tokens < longest:
            found.append(
                f"memory: {name} GPU has room for the keys and values of {size.tokens:,} tokens beside the "
                f"weights, a context has {longest:,}; more GPUs a server, or a larger engine_memory"
            )
    return found
