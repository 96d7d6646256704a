"""What the gateway costs, beside an engine that costs nothing: for `patchwright bench gateway`.

CPU time of this process, in which gateway and client share one core, so a busy machine distorts it little.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from patchwright.engine.base import OnTokens
from patchwright.gateway.server import Gateway
from patchwright.gateway.session import Session
from patchwright.render import Renderer
from patchwright.types import Completion, Finish, Sampling, Weights

__all__ = ["GatewayCost", "bench_gateway"]

_REPLY = "THOUGHT: look at the code.\n\n```bash\ncat -n mod.py\n```"
_OBSERVATION = "<returncode>0</returncode>\n<output>\n     1\tdef f(x):\n     2\t    return x + 1\n</output>"
_QUIET = "<returncode>0</returncode>\n<output>\n</output>"
_QUESTION = "Fix mod.py: f(2) returns 3, expected 4."
_TURNS_BEFORE = 40
"""Turns over which the history is spread."""
_SHORT = 5
"""Turns of each of the many sessions."""

Json = dict[str, str]
Post = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayCost:
    """Example: `GatewayCost(history_tokens=32000, record_p50_ms=0.6, http_p50_ms=1.5, ...)`"""

    history_tokens: int
    """Prompt tokens of the last turn of the long conversation."""
    record_p50_ms: float
    """CPU milliseconds of a turn after that history: parsing, matching, bridging, recording; no HTTP."""
    record_p99_ms: float
    http_p50_ms: float
    """The same over HTTP on one keep-alive connection, the client's share included."""
    http_p99_ms: float
    sessions: int
    """Sessions open at once, each a conversation of a few turns over HTTP."""
    turns_per_second: float
    """Their turns per CPU-second, clients included."""
    session_kb: float
    """Memory one of them holds, in kB."""


async def bench_gateway(
    renderer: Renderer, *, history_tokens: int = 32_000, turns: int = 100, sessions: int = 1000
) -> GatewayCost:
    """Measure `turns` turns after a long history, then `sessions` sessions at once."""
    engine = _Instant(renderer)
    limits = aiohttp.TCPConnector(limit=100)
    async with Gateway(engine, renderer) as gateway, aiohttp.ClientSession(connector=limits) as client:
        long = _Conversation(renderer, history_tokens)
        record = await _long(gateway.session("record"), _direct, long, turns)
        http = await _long(gateway.session("http"), lambda session: _http(session, client), long, turns)
        rate, memory = await _many(gateway, client, sessions)
    return GatewayCost(
        history_tokens=engine.prompt_tokens,
        record_p50_ms=statistics.median(record),
        record_p99_ms=statistics.quantiles(record, n=100)[98],
        http_p50_ms=statistics.median(http),
        http_p99_ms=statistics.quantiles(http, n=100)[98],
        sessions=sessions,
        turns_per_second=rate,
        session_kb=memory,
    )


class _Instant:
    """An engine that answers at once."""

    version = 0
    max_context = 1_000_000

    def __init__(self, renderer: Renderer) -> None:
        ids = (*renderer.encode(_REPLY), renderer.stop_ids[0])
        self.prompt_tokens = 0
        """Of the longest prompt seen."""
        self._completion = Completion(
            token_ids=ids, logprobs=(0.0,) * len(ids), finish=Finish.STOP, version=0
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """The one answer."""
        self.prompt_tokens = max(self.prompt_tokens, len(prompt_ids))
        return self._completion

    async def load(self, weights: Weights) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to close."""


class _Conversation:
    """What an agent sends, turn by turn."""

    def __init__(self, renderer: Renderer, history_tokens: int) -> None:
        lines = max(1, history_tokens // _TURNS_BEFORE // len(renderer.encode(_OBSERVATION)))
        self._output = _OBSERVATION * lines

    def bodies(self, turns: int) -> list[bytes]:
        """Requests: those that build the history, then `turns` with short observations."""
        messages = [{"role": "user", "content": _QUESTION}]
        bodies = []
        for number in range(_TURNS_BEFORE + turns):
            bodies.append(_body(messages))
            output = self._output if number < _TURNS_BEFORE else _QUIET
            messages += _answered(output)
        return bodies


def _body(messages: list[Json]) -> bytes:
    return json.dumps({"model": "policy", "messages": messages}).encode()


def _answered(output: str) -> list[Json]:
    return [{"role": "assistant", "content": _REPLY}, {"role": "user", "content": output}]


async def _long(
    session: Session, way: Callable[[Session], Post], conversation: _Conversation, turns: int
) -> list[float]:
    """CPU milliseconds of each turn after the history."""
    post, times = way(session), []
    for body in conversation.bodies(turns):
        started = time.process_time()
        await post(body)
        times.append(1000 * (time.process_time() - started))
    await session.close()
    return times[_TURNS_BEFORE:]


async def _many(gateway: Gateway, client: aiohttp.ClientSession, count: int) -> tuple[float, float]:
    """Turns per CPU-second of many conversations at once, and kB that each session holds after them."""
    before = _resident_kb()
    sessions = [gateway.session(f"many-{number}") for number in range(count)]
    bodies = [
        _body([{"role": "user", "content": _QUESTION}, *_answered(_OBSERVATION) * n]) for n in range(_SHORT)
    ]

    async def converse(session: Session) -> None:
        post = _http(session, client)
        for body in bodies:
            await post(body)

    started = time.process_time()
    await asyncio.gather(*map(converse, sessions))
    seconds = time.process_time() - started
    gc.collect()
    held = (_resident_kb() - before) / count
    await asyncio.gather(*(session.close() for session in sessions))
    return count * _SHORT / seconds, held


def _resident_kb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # no Linux: the peak, which is as good as long as it rises
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize() / 1024


def _direct(session: Session) -> Post:
    async def post(body: bytes) -> None:
        await session.call(body).task

    return post


def _http(session: Session, client: aiohttp.ClientSession) -> Post:
    url = f"{session.endpoint.base_url}/chat/completions"
    headers: dict[str, Any] = {"authorization": f"Bearer {session.endpoint.api_key}"}

    async def post(body: bytes) -> None:
        async with client.post(url, data=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()

    return post
