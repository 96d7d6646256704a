"""Work in threads that ends with its task: a cancelled task waits for its thread, which writes files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(work: Callable[[Event], T]) -> T:
    """Run `work` in a thread. When this is cancelled the event is set, and `work` is to give up soon."""
    stop = Event()
    running = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # seen: nobody is left to tell
        raise
