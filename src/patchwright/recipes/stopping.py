"""The end of a command that serves until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["stopping"]


@asynccontextmanager
async def stopping() -> AsyncIterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set. Enter it before saying that anything is served: who reads that
    may stop it at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
