"""Weights from the trainer's process to the engines' workers, with no folder between: the `Source` that rides
on `Weights` while `rl` loads them. It only arranges; `train/broadcast.py` sends.

    engines say how many workers they have -> the trainer invites each -> it sends while they receive
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from patchwright.engine.config import EngineConfig
from patchwright.errors import EngineError, PatchwrightError
from patchwright.train.worker import TrainerProcess
from patchwright.types import Invitation

__all__ = ["Broadcast", "source"]


def source(trainer: TrainerProcess, config: EngineConfig) -> Broadcast | None:
    """The source of one load, if the configuration wants one."""
    if config.transfer != "broadcast":
        return None
    return Broadcast(trainer, address=config.transfer_address, seconds=config.load_seconds)


class Broadcast:
    """A `Source`, for one load. Example: `await Broadcast(trainer, address="127.0.0.1").send(1, receive)`"""

    def __init__(
        self, trainer: TrainerProcess, *, address: str = "127.0.0.1", seconds: float = 300.0
    ) -> None:
        self._trainer, self._address, self._seconds = trainer, address, seconds
        self._workers: list[int] = []
        self._expected, self._done = 1, 0
        loop = asyncio.get_running_loop()
        self._invited: asyncio.Future[list[Invitation]] = loop.create_future()
        self._sent: asyncio.Future[list[str]] = loop.create_future()
        self._received = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def expect(self, engines: int) -> None:
        """See `Source`."""
        self._expected = engines

    def leave(self) -> None:
        """See `Source`."""
        self._expected -= 1
        if self._done == self._expected:
            self._received.set()  # the others were given up before it could begin
        else:
            self._begin()

    async def send(self, workers: int, receive: Callable[[Invitation], Awaitable[None]]) -> None:
        """See `Source`. Raises ConfigError when the address is none of the trainer's machine."""
        turn = len(self._workers)
        self._workers.append(workers)
        self._begin()
        try:
            invitations = await asyncio.shield(self._invited)
            await self._part(turn, asyncio.ensure_future(receive(invitations[turn])))
        finally:
            self._done += 1
            if self._done == self._expected:
                self._received.set()

    async def _part(self, turn: int, receiving: asyncio.Future[None]) -> None:
        """Until the engine has received everything, or the trainer has given it up."""
        try:
            either: set[asyncio.Future[Any]] = {receiving, self._sent}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done() and (fault := self._sent.result()[turn]):
                raise EngineError(fault)
            await receiving
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    def _begin(self) -> None:
        """Once all who come are there."""
        if self._workers and len(self._workers) == self._expected and self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """All that the trainer does. A failure is told to every engine."""
        try:
            self._invited.set_result(await self._trainer.invite(self._workers, self._address, self._seconds))
            self._sent.set_result(await self._trainer.broadcast())
            await self._received.wait()  # bounded by the engines: closed earlier, the end could get lost
        except Exception as error:  # else engines would wait for ever
            for future in (self._invited, self._sent):
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # engines may all have left
        finally:
            with suppress(PatchwrightError, RuntimeError):  # it may be closed, which pools say by the latter
                await self._trainer.dismiss()
