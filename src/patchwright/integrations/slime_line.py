"""The line inside slime's rollout process: opened at the first attempt, one for each event loop.

slime's generate ─▶ attempt ─▶ box, agent ──HTTP──▶ gateway ─▶ slime's router ─▶ SGLang
                            └▶ diff, grade in a fresh box ─▶ trajectory
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from patchwright.errors import ConfigError, InfraError
from patchwright.integrations.slime_args import (
    Args,
    check,
    context,
    eval_tasks,
    sampling,
    settings,
    train_tasks,
)
from patchwright.integrations.slime_engine import RouterEngine
from patchwright.integrations.slime_rows import SlimeSample
from patchwright.recipes.agents import open_agent
from patchwright.recipes.assembly import open_boxes, open_line
from patchwright.recipes.scores import Scores, open_scores
from patchwright.recipes.settings import Settings
from patchwright.render import Renderer
from patchwright.rollout.driver import insist
from patchwright.rollout.rollout import Job, Line
from patchwright.types import Outcome, Task, Trajectory

__all__ = ["Host", "close_host", "host_of"]

_log = logging.getLogger("patchwright.slime")
T = TypeVar("T")

_POLL = 0.5
"""Seconds between looks at whether slime has broken the round off."""
_IDLE = 4.0
"""Seconds a connection is kept unused: slime's router may close its own after 5."""
_ALL_VOID = 2
"""Times `line.concurrency` attempts in a row that end void: then nothing works, and the run stops. slime
would ask for others for ever."""


@dataclass
class Host:
    """What attempts are made with."""

    settings: Settings
    line: Line
    scores: Scores
    tasks: Mapping[str, Task]
    renderer: Renderer
    client: aiohttp.ClientSession
    url: str
    slots: asyncio.Semaphore = field(init=False)
    """Attempts at once; an attempt's time counts from when it has one."""
    _void: int = 0

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.settings.line.concurrency)

    async def attempt(
        self, args: Args, sample: SlimeSample, params: Mapping[str, Any], evaluation: bool
    ) -> tuple[Trajectory, RouterEngine] | None:
        """Make one attempt, anew while it is void. None when slime broke the round off meanwhile.

        Raises ConfigError for a task nobody knows, and the last attempt's InfraError when all are void.
        """
        task = self._task(sample)
        engine = self.engine(args, sample, evaluation)
        job = Job(
            id=f"slime-{'eval' if evaluation else 'train'}-{sample.index}-{secrets.token_hex(4)}",
            task=task,
            group=str(sample.group_index),
            sampling=sampling(params),
            engine=engine,
        )
        done = await _unless(_aborted(args), self._make(job))
        if done is None:
            await self.scores.finish(Trajectory(id=job.id, task_id=task.id))  # void: nobody is to judge it
            return None
        self._count(done)
        return done, engine

    async def _make(self, job: Job) -> Trajectory:
        async with self.slots:
            made = await insist(self.scores.over(self.line), job, self.settings.line.retries)
            return await self.scores.finish(made, job.task.prompt)

    def engine(self, args: Args, sample: SlimeSample, evaluation: bool) -> RouterEngine:
        """The engine of one attempt."""
        sticky = getattr(args, "router_policy", None) == "consistent_hashing"
        key = (sample.session_id or secrets.token_hex(16)) if sticky else ""
        longest = context(args, evaluation=evaluation)
        return RouterEngine(self.client, self.url, max_context=longest, key=key)

    def _task(self, sample: SlimeSample) -> Task:
        task = self.tasks.get(str(sample.label))
        if task is None:
            raise ConfigError(
                f"no task file names the task {sample.label!r} of sample {sample.index}; a sample's label is "
                "its task's id: give --label-key id (--eval-label-key id), or the TaskSource"
            )
        return task

    def _count(self, done: Trajectory) -> None:
        self._void = self._void + 1 if done.outcome is Outcome.VOID else 0
        if self._void >= _ALL_VOID * self.settings.line.concurrency:
            why = done.failure.message if done.failure else "no verdict"
            raise InfraError(f"the last {self._void} attempts were all void; the last one: {why}")


async def _unless(aborted: Callable[[], bool], work: Awaitable[T]) -> T | None:
    """What `work` comes to, or None, the work cancelled, once `aborted` says so."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_POLL)
            if aborted() and not task.done():
                return None
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _aborted(args: Args) -> Callable[[], bool]:
    """Whether slime's rollout has what it wants and waits for the others to end. Its state is a singleton of
    `slime.rollout.sglang_rollout`; another rollout function has none."""
    module = sys.modules.get("slime.rollout.sglang_rollout")
    return (lambda: bool(module.GenerateState(args).aborted)) if module else (lambda: False)


# --- opening ----------------------------------------------------------------------------------


@asynccontextmanager
async def _open(args: Args) -> AsyncIterator[Host]:
    check(args)
    found = settings(args)
    tasks = {task.id: task for task in [*eval_tasks(args), *train_tasks(args)]}
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        renderer = await asyncio.to_thread(Renderer.load, str(args.hf_checkpoint))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE)
        client = await enter(aiohttp.ClientSession(timeout=timeout, connector=connector))
        agent = await enter(open_agent(found.line.agent))
        backend = await enter(open_boxes(found.line.sandbox))
        engine = RouterEngine(client, url, max_context=context(args, evaluation=False))
        line = await enter(open_line(backend, agent, engine, renderer, history=found.line.history))
        scores = await enter(open_scores(found.rl.scores))
        await scores.check()
        _log.info("patchwright: %d tasks, agent %s, router %s", len(tasks), found.line.agent.use, url)
        yield Host(found, line, scores, tasks, renderer, client, url)


class _Keeper:
    """Holds a host open. One task enters and leaves all its parts, whoever asked for it first."""

    def __init__(self, args: Args) -> None:
        self.ready: asyncio.Future[Host] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._keep(args))

    async def _keep(self, args: Args) -> None:
        try:
            async with _open(args) as host:
                self.ready.set_result(host)
                await self._stop.wait()
        except BaseException as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)

    async def close(self) -> None:
        self._stop.set()
        await self._task


_keepers: dict[asyncio.AbstractEventLoop, _Keeper] = {}


async def host_of(args: Args) -> Host:
    """The host of this event loop, opened when first asked for. Raises ConfigError or InfraError."""
    loop = asyncio.get_running_loop()
    if loop not in _keepers:
        _keepers[loop] = _Keeper(args)
    return await asyncio.shield(_keepers[loop].ready)


async def close_host() -> None:
    """Close this event loop's host with every box. slime never does: boxes end with its process."""
    keeper = _keepers.pop(asyncio.get_running_loop(), None)
    if keeper is not None:
        await keeper.close()
