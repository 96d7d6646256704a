"""A box over a unix socket, for an agent's program that runs on this machine and works in the box.

One JSON object a line, answered in turn: `{"command": "ls", "timeout": 30}` (seconds, the box's own limit
when absent) gives `{"code": 0, "output": "mod.py\\n", "timed_out": false}`. The socket lies in a folder that
only this user can enter.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from patchwright.errors import SandboxError
from patchwright.sandbox.base import Sandbox

__all__ = ["served_box"]

_MOST = 16 * 2**20
"""Bytes of one request."""


@asynccontextmanager
async def served_box(box: Sandbox) -> AsyncIterator[str]:
    """The path of a socket that runs commands in `box`. Raises SandboxError when the box died under it."""
    failures: list[SandboxError] = []
    talks: set[asyncio.Task[Any]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(task := asyncio.current_task() or asyncio.ensure_future(asyncio.sleep(0)))
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await _answer(box, line)).encode() + b"\n")
                await writer.drain()
        except SandboxError as error:
            failures.append(error)
        except (ConnectionError, ValueError):
            pass  # it hung up, or sent a line past all bounds
        finally:
            writer.close()
            talks.discard(task)

    with tempfile.TemporaryDirectory(prefix="patchwright-") as folder:
        server = await asyncio.start_unix_server(talk, f"{folder}/box", limit=_MOST)
        try:
            yield f"{folder}/box"
        finally:
            server.close()
            for task in list(talks):
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
    if failures:
        raise failures[0]


async def _answer(box: Sandbox, line: bytes) -> dict[str, Any]:
    """What a command did, or what was wrong with the request."""
    try:
        asked = json.loads(line)
        command, timeout = str(asked["command"]), asked.get("timeout")
        seconds = None if timeout is None else float(timeout)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"error": f"the line must be an object with `command` and perhaps `timeout`: {error}"}
    done = await box.exec(command, timeout=seconds)
    return {"code": done.code, "output": done.output, "timed_out": done.timed_out}
