"""The agent protocol: a program that works on a task in a box and talks to a model over HTTP."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from patchwright.sandbox.base import BoxSpec, Sandbox
from patchwright.types import AgentExit, Endpoint, Task

__all__ = ["Agent", "Bounded", "Endpoint", "Furnishing"]


class Agent(Protocol):
    """Works on one task in one box. It sees the model only through the endpoint."""

    async def run(self, task: Task, box: Sandbox, model: Endpoint) -> AgentExit:
        """Work until done. What is in the box afterwards is graded.

        Raises AgentError (the attempt ends and is graded) or InfraError (the attempt is void).
        """
        ...


@runtime_checkable
class Furnishing(Protocol):
    """An agent whose boxes need something of their own. The grader's boxes are not asked."""

    def furnish(self, spec: BoxSpec) -> BoxSpec:
        """The box it works in, made of the box its task asks for."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """An agent that cannot be trusted with its bounds: where its calls are recorded, they are held there."""

    max_calls: int | None
    """Calls of the model, side calls too."""
    max_sampled: int | None
    """Tokens of all replies together."""
