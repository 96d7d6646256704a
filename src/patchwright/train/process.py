"""Where a rank of the trainer runs: in a child process of the driver, or wherever somebody else has put it
(`Worker`). No torch. `worker.TrainerProcess` and `scoring.ScorerProcess` talk to their processes by this.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

__all__ = ["ChildProcess", "Worker", "WorkerDiedError"]

T = TypeVar("T")

_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent dies."""


class WorkerDiedError(Exception):
    """A worker's process is gone; whoever owns the worker says in an error of its own what that means."""


class Worker(Protocol):
    """A process that holds state from call to call and lives until it is closed. Example: `ChildProcess()`"""

    @property
    def address(self) -> str:
        """The IPv4 address at which its machine is reached by those of the other ranks."""
        ...

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function that can be imported by its name, one call after the other, in the same process.

        Arguments, answers and errors are pickled: an error is raised here as it was raised there. Raises
        WorkerDiedError when the process is gone.
        """
        ...

    async def close(self) -> None:
        """End the process at once, whatever it is doing, and wait until it is gone. Twice is allowed.

        A call that is waited for meanwhile raises WorkerDiedError.
        """
        ...


class ChildProcess:
    """A `Worker` on this machine, ended with its parent. Example: `await ChildProcess().call(sum, [1, 2])`"""

    address = "127.0.0.1"

    def __init__(self) -> None:
        # spawn, not fork: the parent has threads and sockets the child must not inherit
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(max_workers=1, mp_context=spawn, initializer=_start)

    @property
    def pid(self) -> int | None:
        """None before the first call and after the end."""
        return next(iter(self._pool._processes or {}), None)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """See `Worker`."""
        died = f"a child process died while it was to run {function}"
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
        except RuntimeError as error:  # broken, or closed
            raise WorkerDiedError(died) from error
        try:
            return await running
        except BrokenProcessPool as error:
            raise WorkerDiedError(died) from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise WorkerDiedError(died) from None  # closed before the call had begun

    async def close(self) -> None:
        """See `Worker`."""
        for process in list((self._pool._processes or {}).values()):
            process.terminate()  # nothing in it is worth waiting for: what matters is on disk
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)


def _is_cancelled() -> bool:
    """Whether it is the one who waits that was cancelled, not what is waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _start() -> None:
    """Runs first in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
