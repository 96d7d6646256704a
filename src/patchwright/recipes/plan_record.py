"""A `Plan` as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from patchwright.recipes.plan import Boxes, Plan
from patchwright.recipes.plan_memory import EngineMemory, Part, host_memory

__all__ = ["plan_record"]


def plan_record(plan: Plan) -> dict[str, Any]:
    """What `--dry-run --json` prints."""
    shape = plan.shape
    return {
        "model": {"name": plan.name, "parameters": shape.parameters, "layers": shape.layers},
        "placement": [{"gpus": node.gpus, "users": node.users, "free": node.free} for node in plan.nodes],
        "memory_gb": _memory(plan),
        "step": {**asdict(plan.step), "context": plan.context},
        "boxes": None if plan.boxes is None else _boxes(plan.boxes),
        "missing": list(plan.missing),
    }


def _memory(plan: Plan) -> dict[str, Any]:
    """Of one GPU (a process, without any), of the host beside it, and of one GPU of each kind of server."""
    host = host_memory(plan.shape, plan.train, plan.context) if plan.train.offload else 0
    return {
        "trainer": _parts(plan.trainer),
        "trainer_host": _gb(host),
        "local_engine": _parts(plan.local),
        "engine": _server(plan.engine),
        "judge": _server(plan.judge_engine),
    }


def _parts(parts: Sequence[Part]) -> dict[str, float]:
    return {part.name: _gb(part.bytes) for part in parts}


def _server(size: EngineMemory | None) -> dict[str, float] | None:
    if size is None:
        return None
    return {"weights": _gb(size.weights), "keys and values": _gb(size.cache)}


def _boxes(boxes: Boxes) -> dict[str, Any]:
    return {**asdict(boxes), "memory_gb": boxes.memory_gb}


def _gb(size: float) -> float:
    return round(size / 1e9, 3)
