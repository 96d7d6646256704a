"""What the gateway costs: CPU time per turn of long conversations with an engine that costs nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from patchwright.engine.base import OnTokens
from patchwright.gateway.server import Gateway
from patchwright.gateway.session import Session
from patchwright.render import Renderer
from patchwright.types import Completion, Finish, Sampling, Weights

__all__ = ["GatewayCost", "bench_gateway"]

_REPLY = "THOUGHT: look at the code.\n\n```bash\ncat -n mod.py\n```"
_OBSERVATION = "<returncode>0</returncode>\n<output>\n     1\tdef f(x):\n     2\t    return x + 1\n</output>"


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayCost:
    """CPU milliseconds per turn. Example: `GatewayCost(turns=300, record_ms=0.3, http_ms=1.2)`"""

    turns: int
    record_ms: float
    """Matching, bridging, parsing, recording: the session without HTTP."""
    http_ms: float
    """The same over HTTP on one keep-alive connection, the client's share included."""


async def bench_gateway(renderer: Renderer, *, turns: int = 30, conversations: int = 10) -> GatewayCost:
    """Measure conversations of `turns` turns, one after the other.

    The engine answers with the same ids each time. CPU time of this process, so a busy machine distorts
    it little; client and server share the process.
    """
    engine = _Instant(renderer)
    async with Gateway(engine, renderer) as gateway, httpx.AsyncClient() as client:
        record = http = 0.0
        for number in range(conversations):
            session = gateway.session(f"record-{number}", sampling=Sampling(max_tokens=64))
            record += await _measure(_Direct(session), turns)
            await session.close()
            session = gateway.session(f"http-{number}", sampling=Sampling(max_tokens=64))
            http += await _measure(_Http(session, client), turns)
            await session.close()
    total = turns * conversations
    return GatewayCost(turns=total, record_ms=1000 * record / total, http_ms=1000 * http / total)


class _Instant:
    """An engine that answers at once."""

    version = 0
    max_context = 1_000_000

    def __init__(self, renderer: Renderer) -> None:
        ids = (*renderer.encode(_REPLY), renderer.stop_ids[0])
        self._completion = Completion(
            token_ids=ids, logprobs=(0.0,) * len(ids), finish=Finish.STOP, version=0
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """The one answer."""
        return self._completion

    async def load(self, weights: Weights) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to close."""


class _Direct:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def post(self, body: bytes) -> None:
        await self._session.call(body).task


class _Http:
    def __init__(self, session: Session, client: httpx.AsyncClient) -> None:
        self._url = f"{session.endpoint.base_url}/chat/completions"
        self._headers = {"authorization": f"Bearer {session.endpoint.api_key}"}
        self._client = client

    async def post(self, body: bytes) -> None:
        response = await self._client.post(self._url, content=body, headers=self._headers)
        response.raise_for_status()


async def _measure(way: _Direct | _Http, turns: int) -> float:
    """CPU seconds of one conversation."""
    messages = [{"role": "user", "content": "Fix mod.py: f(2) returns 3, expected 4."}]
    started = time.process_time()
    for _ in range(turns):
        await way.post(json.dumps({"model": "policy", "messages": messages}).encode())
        messages.append({"role": "assistant", "content": _REPLY})
        messages.append({"role": "user", "content": _OBSERVATION})
    await asyncio.sleep(0)
    return time.process_time() - started
