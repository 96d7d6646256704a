"""One request of a session, and who answers it: what `session.py` and the voices share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from patchwright.gateway.wire import ChatRequest, Format, Reply
from patchwright.types import Sampling, Turn

__all__ = ["Call", "ContextFull", "Stopped", "Voice"]


class Stopped(Exception):
    """The session answers no more: closed, its context full, its budget used up, or its engine broken."""


class ContextFull(Stopped):
    """This request is too long for the model; a shorter one is still answered."""


@dataclass(kw_only=True, slots=True, eq=False)
class Call:
    """One request in flight or answered."""

    id: str
    number: int
    """Replies asked of the session before this call."""
    request: ChatRequest
    format: Format
    stop: tuple[str, ...]
    """Strings that end the reply: the session's and the request's."""
    started: float = field(default_factory=time.time)
    task: asyncio.Task[tuple[Reply, ...]] = field(init=False)
    """Ends with the choices of the answer."""
    ids: list[int] = field(default_factory=list)
    """Sampled so far, for streaming."""
    grew: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `ids` grew and when the task is done; whoever waits clears it."""
    delivered: bool = False
    """The whole answer was written to a connection that was still open."""


class Voice(Protocol):
    """Who answers in one session, and the record of what was said: an engine, or somebody's API."""

    tries: int
    """Failures in a row after which the session stops."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every call recorded so far; side calls have `train=False`."""
        ...

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The main conversation as the agent last sent it, and the reply."""
        ...

    async def answer(self, call: Call, sampling: Sampling) -> tuple[Reply, ...]:
        """The choices of the answer, recorded. Raises BadRequest, AgentError, ContextFull or InfraError."""
        ...

    def count(self, request: ChatRequest) -> int:
        """Tokens of the request's prompt. Raises AgentError."""
        ...
