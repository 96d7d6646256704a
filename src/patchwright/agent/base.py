"""The agent protocol: a program that works on a task in a box and talks to a model over HTTP."""

from __future__ import annotations

from typing import Protocol

from patchwright.sandbox.base import Sandbox
from patchwright.types import AgentExit, Endpoint, Task

__all__ = ["Agent", "Endpoint"]


class Agent(Protocol):
    """Works on one task in one box. It sees the model only through the endpoint."""

    async def run(self, task: Task, box: Sandbox, model: Endpoint) -> AgentExit:
        """Work until done. What is in the box afterwards is graded.

        Raises AgentError (the attempt ends and is graded) or InfraError (the attempt is void).
        """
        ...
