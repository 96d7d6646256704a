"""The built-in agent's line to its model: one chat completion over HTTP, retried while nobody is there.

It knows nothing of the gateway: any endpoint that speaks OpenAI chat completions will do.
"""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from patchwright.errors import AgentError, EngineError
from patchwright.types import Endpoint

__all__ = ["Chat", "Message", "Reply"]

Message = Mapping[str, Any]
"""One chat message in the OpenAI form."""

_BARRED = (401, 402, 403, 404)
"""Statuses that have nothing to do with what the agent did: no key, no money, no right, no such model."""
_FIRST_WAIT = 0.2
"""Seconds before the second try of a request; every further wait is twice as long."""
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What the model said. Example: `Reply(content="THOUGHT: ...", usage={"prompt_tokens": 90})`"""

    content: str = ""
    tool_calls: tuple[Message, ...] = ()
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Tokens as the endpoint counts them; empty when it does not say."""


class Chat:
    """A connection pool to endpoints; `close` it in the event loop it was used in."""

    def __init__(self, *, request_timeout: float, patience: float) -> None:
        """Seconds for one reply, and seconds between the tries of one request, all together."""
        self._request_timeout = request_timeout
        self._patience = patience
        self._client: httpx.AsyncClient | None = None

    async def ask(self, model: Endpoint, body: Mapping[str, Any]) -> Reply | None:
        """The reply to a request body, or None when the endpoint says that the conversation is over.

        Lost connections and busy servers are retried. Raises AgentError when the endpoint refuses this
        request, EngineError when it refuses every one (key, money, model), does not answer, or sends no chat
        completion.
        """
        content = json.dumps({"model": model.model, **body}).encode()  # a lone surrogate passes as its escape
        response = await self._post(model, content)
        if response.status_code == 404 and _error_type(response) == "not_found_error":
            return None
        if response.status_code in _BARRED:
            raise EngineError(
                f"the model endpoint {model.base_url} answered {response.status_code}; check its address, "
                f"its key and the model's name: {response.text[:300]}"
            )
        if response.status_code >= 400:
            raise AgentError(f"the model endpoint answered {response.status_code}: {response.text[:300]}")
        return _reply(response)

    async def close(self) -> None:
        """Close the connections. Closing twice is allowed; a later request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            timeout = httpx.Timeout(self._request_timeout, connect=30)
            self._client = httpx.AsyncClient(timeout=timeout, limits=_LIMITS, verify=_ssl_context())
        return self._client

    async def _post(self, model: Endpoint, content: bytes) -> httpx.Response:
        wait, left, tries = _FIRST_WAIT, self._patience, 0
        while True:
            response, trouble = await self._try(model, content, tries)
            if response is not None:
                return response
            if wait > left:
                raise EngineError(f"the model endpoint {model.base_url} does not answer: {trouble}")
            await asyncio.sleep(wait)
            wait, left, tries = 2 * wait, left - wait, tries + 1

    async def _try(self, model: Endpoint, content: bytes, tries: int) -> tuple[httpx.Response | None, str]:
        """An answer that stands, or why there is none yet. The OpenAI clients number their retries so."""
        headers = {
            **({"authorization": f"Bearer {model.api_key}"} if model.api_key else {}),
            "content-type": "application/json",
            "x-stainless-retry-count": str(tries),
        }
        try:
            url = f"{model.base_url}/chat/completions"
            response = await self._open().post(url, content=content, headers=headers)
        except httpx.TransportError as error:
            return None, f"{type(error).__name__}: {error}"
        if response.status_code in (408, 409, 429) or response.status_code >= 500:
            return None, f"it answered {response.status_code}: {response.text[:300]}"
        return response, ""


def _reply(response: httpx.Response) -> Reply:
    try:
        body = response.json()
        message = body["choices"][0]["message"]
        content, calls, usage = message.get("content"), message.get("tool_calls"), body.get("usage")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise EngineError(f"the model endpoint sent no chat completion: {response.text[:300]}") from None
    return Reply(
        content=content if isinstance(content, str) else "",
        tool_calls=tuple(call for call in calls if isinstance(call, dict)) if isinstance(calls, list) else (),
        usage=usage if isinstance(usage, dict) else {},
    )


def _error_type(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["type"])
    except (ValueError, KeyError, TypeError):
        return ""


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    """Read the certificates once, not for every client."""
    return ssl.create_default_context()
