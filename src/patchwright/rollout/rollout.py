"""One task into one graded trajectory: open a box, let the agent work, take the patch, grade it.

Every fault is attributed here, at the boundary it crossed: an `InfraError` voids the attempt and
names the stage, an `AgentError` ends it and what is in the box is graded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import extract_tb
from typing import Any, Protocol

from patchwright.agent.base import Agent, Bounded, Furnishing
from patchwright.engine.base import Engine
from patchwright.errors import AgentError, InfraError, PatchwrightError, SandboxError
from patchwright.gateway.server import Gateway
from patchwright.gateway.session import Budget, Session
from patchwright.grade.patch import take_patch
from patchwright.grade.tests import open_box
from patchwright.metrics.trace import Note, span
from patchwright.rollout.events import Events
from patchwright.sandbox.base import Sandbox, SandboxBackend
from patchwright.tasks.hidden import remove_hidden
from patchwright.tasks.history import without_history
from patchwright.types import AgentExit, Endpoint, Failure, Grade, Sampling, Task, Trajectory, Turn

Messages = tuple[Mapping[str, Any], ...]

_GRACE = 20.0
"""Seconds past a task's time after which an agent that goes on is stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One attempt to make. Example: `Job(id="rl-3-toy-1-0", group="rl-3-toy-1", task=task)`"""

    id: str
    """Equal on retry and resume; the key in the store."""
    task: Task
    group: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    engine: Engine | None = None
    """Answers this attempt instead of the gateway's engine (a scripted expert)."""


class Attempts(Protocol):
    """Whoever makes attempts: a `Line`, or machines elsewhere that have one."""

    async def attempt(self, job: Job) -> Trajectory:
        """Make one attempt. Infrastructure faults end in a void trajectory, never in an exception."""
        ...


@dataclass(frozen=True, kw_only=True)
class Line:
    """The parts an attempt passes through; one per run.

    Example: `Line(backend=backend, agent=BashAgent(config), model=gateway, grade=Grader(backend))`
    """

    backend: SandboxBackend
    agent: Agent
    model: Gateway
    grade: Callable[[Task, str], Awaitable[Grade]]
    keep: Callable[[str, Mapping[str, bytes]], None] | None = None
    """Takes the files an agent left, by the trajectory's id: its own log of events."""
    events: Events | None = None
    """Is told what attempts are doing, for who watches."""

    def tell(self, attempt: str, what: str, **more: str | int | float) -> None:
        """Say what an attempt does from now on, to who wants to know."""
        if self.events is not None:
            self.events.note(attempt, what, **more)

    def converse(self, job: Job, on_turn: Callable[[Turn], None] | None = None) -> Session:
        """A fresh conversation for one attempt; `on_turn` sees every turn as it is recorded."""
        budget = Budget()
        if isinstance(self.agent, Bounded):
            budget = Budget(calls=self.agent.max_calls, tokens=self.agent.max_sampled)

        def said(turn: Turn) -> None:
            of = {"turn": turn.id, "tokens": len(turn.completion_ids), "version": turn.version}
            self.tell(job.id, "turn", started=round(turn.started, 3), seconds=round(turn.seconds, 3), **of)
            if on_turn is not None:
                on_turn(turn)

        session = self.model.session(
            job.id, sampling=job.sampling, engine=job.engine, budget=budget, on_turn=said
        )
        session.on_call = lambda: self.tell(job.id, "model")
        return session

    async def attempt(self, job: Job) -> Trajectory:
        """See `Attempts`."""
        return await attempt(self, job)


async def attempt(line: Line, job: Job) -> Trajectory:
    """Make one attempt. Infrastructure faults end in a void trajectory, never in an exception."""
    started = time.monotonic()
    blank = Trajectory(id=job.id, task_id=job.task.id, group=job.group)
    line.tell(job.id, "queue", task=job.task.id, group=job.group)
    about = {"patchwright.attempt": job.id, "patchwright.task": job.task.id, "patchwright.group": job.group}
    with span("attempt", about, root=True) as note:
        async with _conversation(line, job) as talk:  # in the span, which its model calls belong to
            result, files = await _attempt(line, job.task, talk, blank)
            if files and line.keep is not None:
                await asyncio.to_thread(line.keep, job.id, files)
            done = replace(result, turns=talk.turns, messages=_messages(talk, result.messages))
        _note(note, done)
    why = f"{done.failure.kind} ({done.failure.stage}): {done.failure.message}" if done.failure else ""
    line.tell(job.id, "end", outcome=done.outcome.value, exit=done.exit, error=why)
    return replace(done, seconds=time.monotonic() - started)


def _note(note: Note, done: Trajectory) -> None:
    note("patchwright.outcome", done.outcome.value)
    note("patchwright.exit", done.exit)
    if done.failure is not None:
        note("error.type", f"{done.failure.stage}: {done.failure.kind}")


def _messages(talk: Session, kept: Messages) -> Messages:
    """The conversation: with its tokens as the gateway has it; without, as the agent kept it, if it did: that
    has every call of it, and what the API counted for each."""
    tokens = any(turn.completion_ids for turn in talk.turns)
    return talk.messages or kept if tokens else kept or talk.messages


async def _attempt(
    line: Line, task: Task, talk: Session, blank: Trajectory
) -> tuple[Trajectory, Mapping[str, bytes]]:
    """The trajectory, and the files the agent left."""
    stage = "open"
    exit_, patch = AgentExit(reason=""), ""
    try:
        with span("box"):
            box = await _open(line, task)
        try:
            seen_box, seen = await without_history(box, task)
            await remove_hidden(box, task)
            stage = "agent"
            line.tell(blank.id, stage)
            exit_ = await _work(line.agent, seen, seen_box, talk.endpoint)
            exit_ = _ended(exit_, talk)
            if talk.failure is not None:
                raise talk.failure
            stage = "diff"
            with span("patch"):
                patch = await take_patch(box, seen)
        finally:
            await box.close()
        stage = "grade"
        line.tell(blank.id, stage)
        with span("grade") as note:
            grade = await line.grade(task, patch)
            note("patchwright.state", grade.state.value)
    except InfraError as error:
        failure = Failure(kind=type(error).__name__, message=str(error), stage=stage)
        return replace(_told(blank, exit_), patch=patch, failure=failure), exit_.files
    return replace(_told(blank, exit_), patch=patch, grade=grade), exit_.files


def _ended(exit_: AgentExit, talk: Session) -> AgentExit:
    """How the agent ended, when it was the gateway that ended it: a program cannot tell its reason.

    Raises SandboxError for a program that broke before it said a word to the model: that is no attempt.
    """
    if talk.failure is not None:
        return replace(exit_, reason="engine_failed")
    broke = exit_.reason.startswith("exit_")
    if talk.stopped == "budget" and (broke or exit_.reason in ("submitted", "context_full")):
        return replace(exit_, reason="budget")
    if talk.stopped == "context_full" and broke:
        return replace(exit_, reason="context_full")
    if broke and not talk.turns:
        raise SandboxError(f"the agent broke before its first call to the model: {exit_.detail}")
    return exit_


def _told(blank: Trajectory, exit_: AgentExit) -> Trajectory:
    """What the agent itself said of the attempt."""
    return replace(blank, steps=exit_.steps, messages=exit_.messages, exit=exit_.reason)


async def _open(line: Line, task: Task) -> Sandbox:
    """The agent's box."""
    if isinstance(line.agent, Furnishing):
        return await open_box(line.backend, task, line.agent.furnish)
    return await open_box(line.backend, task)


async def _work(agent: Agent, task: Task, box: Sandbox, endpoint: Endpoint) -> AgentExit:
    """Let the agent work within the task's time. Its own faults end the attempt, not the run; what breaks in
    its code voids it (SandboxError).

    An agent minds the time itself and keeps its steps; one that does not is stopped a little later."""
    try:
        async with asyncio.timeout(task.limits.attempt_seconds + _GRACE):
            return await agent.run(task, box, endpoint)
    except TimeoutError:
        return AgentExit(reason="time_limit")
    except AgentError as error:
        return AgentExit(reason="agent_error", detail=str(error))
    except PatchwrightError:
        raise
    except Exception as error:  # a fault of the agent's own code says nothing of the model
        raise SandboxError(f"the agent broke: {_where(error)}") from error


def _where(error: Exception) -> str:
    """What was raised, and the line that raised it."""
    last = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


@asynccontextmanager
async def _conversation(line: Line, job: Job) -> AsyncIterator[Session]:
    talk = line.converse(job)
    try:
        yield talk
    finally:
        await talk.close()
