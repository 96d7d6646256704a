"""Several engines as one: `Replicas` routes, watches, restarts and loads them. Blind to what an engine is.

    up ──fails and answers no probe──▶ out ──start again, load the current weights──▶ up
       ──does not take weights that others took──▶ out

A request that fails goes to another replica, once, unless tokens of it were told. Nothing here waits without
a bound (`Bounds`), and whatever goes wrong with a replica is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from patchwright.engine.base import Engine, OnTokens
from patchwright.engine.replica import Bounds, Fault, Life, Replica, Request, Start, ended
from patchwright.engine.routing import Router
from patchwright.errors import ConfigError, EngineBusy, EngineError
from patchwright.types import Completion, Sampling, Weights

__all__ = ["Bounds", "Replicas", "Start"]

_log = logging.getLogger("patchwright.engine")
_TRIES = 2
"""Replicas that may be lost to one request: what kills engines must not kill all of them."""


class Replicas:
    """An `Engine` made of several that have the same model. Made by `open`, used in that event loop.

    Example: `await Replicas.open([lambda: VllmEngine.connect(first), lambda: VllmEngine.connect(second)])`
    """

    def __init__(
        self,
        starts: Sequence[Start],
        *,
        bounds: Bounds | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._bounds = bounds or Bounds()
        self._say = say or _log.warning
        self._replicas = [Replica(f"replica {number}", start) for number, start in enumerate(starts)]
        self._router = Router()
        self._goal: Weights | None = None
        """What every replica is to have; None: what it was started with."""
        self._max_context = 0
        self._one_up = asyncio.Event()
        self._one_load = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        starts: Sequence[Start],
        *,
        bounds: Bounds | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Self:
        """Start all at once. `say`, else the log, is told of every replica that is lost, and that is back.

        One that does not start is tried again in the background. Raises EngineError when none starts, and
        ConfigError when one says that the configuration is wrong.
        """
        made = cls(starts, bounds=bounds, say=say)
        try:
            await made._open()
        except BaseException:
            await made.close()
            raise
        return made

    @property
    def version(self) -> int:
        """The oldest version that may sample the next token; a completion tells its own."""
        found = [life.engine.version for _, life in self._up()]
        return min(found, default=self._goal.version if self._goal else 0)

    @property
    def max_context(self) -> int:
        """Most tokens a prompt and its completion may have together, on whichever replica."""
        return self._max_context

    @property
    def engines(self) -> list[Engine]:
        """Those that are up."""
        return [life.engine for _, life in self._up()]

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """See `Engine.generate`. Raises EngineBusy when every replica is busy, EngineError when none is up
        within `Bounds.absent` or what failed cannot be begun again."""
        request = Request(prompt_ids, sampling, on_tokens)
        while True:
            replica, life = await self._pick(request)
            try:
                return await self._at(replica, life, request)
            except EngineBusy:
                request.busy.add(replica.name)
                if all(other.name in request.busy for other, _ in self._fit()):
                    raise
            except EngineError as error:
                await self._failed(replica, life, request, error)

    async def load(self, weights: Weights) -> None:
        """See `Engine.load`. All replicas load at once, each within `Bounds.load`.

        Those that fail where another succeeds are taken out, and come back with these weights. When none
        succeeds the old weights stay, and EngineError is raised.
        """
        async with self._one_load:
            try:
                await self._load_all(weights)
            finally:
                for _, life in self._up():
                    life.failed = False  # who failed where another did not is out

    async def close(self) -> None:
        """Close every replica; what is in flight fails. Closing twice is allowed."""
        self._closed = True
        self._one_up.set()
        tasks = [task for task in (self._watch, *(r.keeper for r in self._replicas)) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        up = self._up()
        for replica, life in up:
            replica.life = None
            life.lost.set_result(None)
        engines = [life.engine for _, life in up]
        engines += [r.leaving for r in self._replicas if r.leaving is not None]
        await asyncio.gather(*(ended(engine, self._bounds.close) for engine in engines))

    # --- requests -----------------------------------------------------------------------------------

    def _up(self) -> list[tuple[Replica, Life]]:
        return [(replica, replica.life) for replica in self._replicas if replica.life is not None]

    def _fit(self) -> list[tuple[Replica, Life]]:
        """Those that are up and have known weights; all that are up where none has."""
        up = self._up()
        return [(replica, life) for replica, life in up if not life.failed] or up

    async def _pick(self, request: Request) -> tuple[Replica, Life]:
        while not self._up() or self._closed:
            await self._someone(self._bounds.absent)
        up = {replica.name: (replica, life) for replica, life in self._fit()}
        free = [name for name in up if name not in request.busy]
        return up[self._router.choose(request.prompt, free or up)]

    async def _someone(self, bound: float) -> None:
        """Wait until a replica is up. Raises EngineError past the bound."""
        try:
            async with asyncio.timeout(bound):
                await self._one_up.wait()
        except TimeoutError:
            raise EngineError(f"no replica of the engine has been up for {bound:g} s") from None
        if self._closed:
            raise EngineError("the engine is closed")

    async def _at(self, replica: Replica, life: Life, request: Request) -> Completion:
        """Ask one replica, until it answers or is lost."""
        self._router.begin(replica.name, request.prompt)
        told = request.tell if request.on_tokens is not None else None
        asked = life.engine.generate(request.prompt, request.sampling, on_tokens=told)
        task = asyncio.ensure_future(asked)
        task.add_done_callback(_heard)
        either: set[asyncio.Future[Any]] = {task, life.lost}
        ids: Sequence[int] = ()
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise EngineError(f"{replica.name} was lost, and what it was asked with it")
            done = task.result()
            life.answers += 1
            if life.failed:
                raise EngineError(f"{replica.name} failed to load weights while it answered")
            ids = (*request.prompt, *done.token_ids)
            return done
        finally:
            task.cancel()
            self._router.end(replica.name, ids if replica.life is life else ())

    async def _failed(self, replica: Replica, life: Life, request: Request, error: EngineError) -> None:
        """Return when the request may be asked of another; otherwise raises `error`."""
        if life.failed and not request.told:
            request.busy.add(replica.name)
            return
        if not await life.fault(self._bounds.probe):  # then it is the request that failed, and would anywhere
            raise error
        self._out(replica, life, str(error))
        request.lost += 1
        if request.told or request.lost >= _TRIES or self._closed:
            raise error

    # --- weights --------------------------------------------------------------------------------------

    async def _load_all(self, weights: Weights) -> None:
        before, self._goal = self._goal, weights
        up = self._up()
        if weights.source is not None:
            weights.source.expect(len(up))
        faults = await asyncio.gather(*(self._load(replica, life, weights) for replica, life in up))
        if not self._up():
            with contextlib.suppress(EngineError):
                await self._someone(self._bounds.load)  # whoever comes back loads them first
        if not any(life.loaded is weights for _, life in self._up()):
            self._goal = before
            told = "; ".join(fault.text for fault in faults if fault) or "no replica is up"
            raise EngineError(f"no replica took weights {weights.version}: {told}")
        for (replica, life), fault in zip(up, faults, strict=True):
            if fault is not None:
                self._out(replica, life, fault.text)

    async def _load(self, replica: Replica, life: Life, weights: Weights) -> Fault | None:
        """What went wrong, if something did."""
        life.loading = True
        text = f"{replica.name} has not loaded weights {weights.version} within {self._bounds.load:g} s"
        try:
            async with asyncio.timeout(self._bounds.load):
                await life.engine.load(weights)
        except EngineError as error:
            life.failed = True
            fault = Fault(f"{replica.name} did not take weights {weights.version} ({error})")
            if weights.source is not None:  # then it is half of a model: it comes back from the folder
                self._out(replica, life, fault.text)
            return fault
        except TimeoutError:
            self._out(replica, life, text)
            return Fault(text)
        except BaseException:
            # Half loaded, or about to be: nothing it samples has a version that is known.
            self._out(replica, life, f"it was interrupted while it loaded weights {weights.version}")
            raise
        finally:
            life.loading = False
        life.loaded = weights
        self._router.forget(replica.name)
        return None

    # --- lives ----------------------------------------------------------------------------------------

    async def _open(self) -> None:
        began = await asyncio.gather(*(self._begin(r) for r in self._replicas), return_exceptions=True)
        faults = [error for error in began if isinstance(error, BaseException)]
        for error in faults:
            if isinstance(error, ConfigError) or not isinstance(error, EngineError):
                raise error
        if len(faults) == len(self._replicas):
            raise EngineError(f"no replica of the engine has started: {faults[0]}")
        for replica, fault in zip(self._replicas, began, strict=True):
            if fault is not None:
                self._say(f"{replica.name} has not started, and is tried again: {fault}")
                replica.failures = 1
                replica.keeper = asyncio.create_task(self._keep(replica))
        self._watch = asyncio.create_task(self._look())

    async def _begin(self, replica: Replica) -> None:
        """Start a replica, load what the others have, and let it take part. Raises EngineError."""
        try:
            async with asyncio.timeout(self._bounds.start):
                engine = await replica.start()
        except TimeoutError:
            raise EngineError(f"{replica.name} has not started within {self._bounds.start:g} s") from None
        life = Life(engine, asyncio.get_running_loop().create_future())
        try:
            await self._catch_up(life)
        except BaseException:
            await ended(engine, self._bounds.close)
            raise
        self._router.forget(replica.name)
        self._max_context = min(self._max_context or engine.max_context, engine.max_context)
        replica.life = life
        self._one_up.set()

    async def _catch_up(self, life: Life) -> None:
        """Load until nothing newer has come meanwhile: what returns has the weights the others have."""
        while life.loaded is not self._goal:
            goal = self._goal
            if goal is None:  # newer weights were taken back, and these cannot be
                raise EngineError("the weights it was to load were given up")
            try:
                async with asyncio.timeout(self._bounds.load):
                    await life.engine.load(replace(goal, source=None))
            except TimeoutError:
                raise EngineError(
                    f"weights {goal.version} were not loaded within {self._bounds.load:g} s"
                ) from None
            life.loaded = goal

    def _out(self, replica: Replica, life: Life, why: str) -> None:
        """Take a replica out, fail what it was asked, and see to its return."""
        if replica.life is not life or self._closed:
            return
        replica.life, replica.leaving = None, life.engine
        replica.failures = 0 if life.answers else replica.failures + 1
        life.lost.set_result(None)
        left = len(self._up())
        if not left:
            self._one_up.clear()
        self._say(f"{replica.name} is out, {left} of {len(self._replicas)} are left: {why}")
        replica.keeper = asyncio.create_task(self._keep(replica))

    async def _keep(self, replica: Replica) -> None:
        """Bring a replica back, however often it fails."""
        if replica.leaving is not None:
            await ended(replica.leaving, self._bounds.close)
            replica.leaving = None
        while True:
            if replica.failures:
                wait = self._bounds.retry * 2 ** min(replica.failures - 1, 30)
                await asyncio.sleep(min(wait, self._bounds.most_retry))
            try:
                await self._begin(replica)
            except Exception as error:  # even a mistake: at the start it was none
                replica.failures += 1
                self._say(f"{replica.name} has not started, and is tried again: {error}")
            else:
                return self._say(f"{replica.name} is back")

    async def _look(self) -> None:
        """Find replicas that are silent, for as long as there are any."""
        while True:
            before = [(replica, life, life.answers) for replica, life in self._up()]
            await asyncio.sleep(self._bounds.every)
            silent = [(r, life) for r, life, answers in before if life.answers == answers]
            await asyncio.gather(*(self._ask_after(replica, life) for replica, life in silent))

    async def _ask_after(self, replica: Replica, life: Life) -> None:
        answers = life.answers
        if life.loading or not (fault := await life.fault(self._bounds.probe)):
            return
        if not life.loading and life.answers == answers:
            self._out(replica, life, fault)


def _heard(task: asyncio.Future[Completion]) -> None:
    """What an abandoned request ends with interests nobody."""
    if not task.cancelled():
        task.exception()
