"""Commands that run once, however often they are asked for, and those who listen to their output.

A command is a task of its own: a client that hangs up does not end it, and one that comes back with the same
key joins it or gets its answer. Sits below `boxes.py`: every box has its `Answers`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine

from patchwright.fleet.api import NodeError
from patchwright.sandbox.stream import note, stands_for

__all__ = ["Answers", "Job", "Listener"]

_COUNT = 256
"""Answers kept per box."""
_BYTES = 8 * 2**20
"""Bytes of answers kept per box."""
_SPENT = 4096
"""Keys remembered after their answer was dropped, so that their commands do not run again."""
_BACKLOG = 2**20
"""Bytes of output that wait for a slow listener; what comes on top is left out for it, and counted."""


class Listener:
    """One reader of a command's output: a bounded queue that never holds the command up.

    Example: `async for chunk in listener: ...`
    """

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._omitted = 0
        self._ended = False
        self._wake = asyncio.Event()

    def add(self, chunk: bytes) -> None:
        """Take a chunk; when too much waits already it is left out, and a line says so in its place."""
        if self._size + len(chunk) > _BACKLOG:
            self._omitted += stands_for(chunk)
        else:
            self._tell()
            self._chunks.append(chunk)
            self._size += len(chunk)
        self._wake.set()

    def end(self) -> None:
        """No more chunks will come."""
        self._tell()
        self._ended = True
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """What waits, as it comes, until the end."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._size -= len(chunk)
                yield chunk
            if self._ended:
                return
            self._wake.clear()
            await self._wake.wait()

    def _tell(self) -> None:
        if self._omitted:
            self._chunks.append(note(self._omitted))
            self._size += len(self._chunks[-1])
            self._omitted = 0


class Job:
    """A command that runs or has run. `await job.answer()` from as many places as one likes."""

    def __init__(self, work: Callable[[Callable[[bytes], None]], Coroutine[None, None, bytes]]) -> None:
        """`work` is called with where to put its output and returns its answer, a JSON body."""
        self._listeners: list[Listener] = []
        self.task = asyncio.create_task(work(self._emit))
        self.task.add_done_callback(self._finish)

    async def answer(self) -> bytes:
        """The answer, or the command's exception. Being cancelled here does not cancel the command."""
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if not self.task.cancelled():
                raise
            raise NodeError("the command was cancelled", 409) from None

    def listen(self) -> Listener:
        """The output from now on."""
        listener = Listener()
        if self.task.done():
            listener.end()
        self._listeners.append(listener)
        return listener

    def _emit(self, chunk: bytes) -> None:
        for listener in self._listeners:
            listener.add(chunk)

    def _finish(self, task: asyncio.Task[bytes]) -> None:
        for listener in self._listeners:
            listener.end()
        if not task.cancelled():
            task.exception()  # seen: whoever asks has it, and nobody may be left who does


class Answers:
    """The jobs of one box by idempotency key, with a bound on how many answers are kept, and how large.

    Example: `job = answers.job("key", b"the request", work)`
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, tuple[bytes, Job]] = OrderedDict()
        self._size = 0
        """Bytes of the answers that are kept."""
        self._spent: OrderedDict[str, None] = OrderedDict()

    def find(self, key: str, request: bytes) -> Job | None:
        """The job of a key seen before.

        Raises NodeError (409) when the key was used for another request, or its answer is kept no longer.
        """
        if key in self._spent:
            raise NodeError("the request with this idempotency key has run; its answer is not kept", 409)
        if key not in self._jobs:
            return None
        digest, job = self._jobs[key]
        if digest != _digest(request):
            raise NodeError("this idempotency key was used for another request; give each its own", 409)
        return job

    def keep(self, key: str, request: bytes, job: Job, *, failures: bool = True) -> None:
        """Remember a job. Without `failures`, one that fails is forgotten, so that it may be tried again."""
        self._jobs[key] = (_digest(request), job)

        def settle(task: asyncio.Task[bytes]) -> None:
            if not failures and (task.cancelled() or task.exception()):
                self._jobs.pop(key, None)
                return
            self._size += _size(job)
            if len(self._jobs) > _COUNT or self._size > _BYTES:
                self._trim()

        job.task.add_done_callback(settle)

    def cancel(self, key: str) -> None:
        """Kill what runs under a key; a request that comes with it later is refused."""
        if key not in self._jobs:
            self._spent[key] = None
        elif not self._jobs[key][1].task.done():
            self._jobs[key][1].task.cancel()

    def _trim(self) -> None:
        """Drop the oldest answers until what is left is within bounds."""
        for key, job in [(key, job) for key, (_, job) in self._jobs.items() if job.task.done()]:
            if len(self._jobs) <= _COUNT and self._size <= _BYTES:
                break
            self._size -= _size(job)
            del self._jobs[key]
            self._spent[key] = None
        while len(self._spent) > _SPENT:
            self._spent.popitem(last=False)


def _size(job: Job) -> int:
    return 0 if job.task.cancelled() or job.task.exception() else len(job.task.result())


def _digest(request: bytes) -> bytes:
    return hashlib.blake2b(request, digest_size=16).digest()
