"""A model that writes issues and functions, behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from patchwright.errors import ConfigError, EngineError
from patchwright.types import Endpoint

_TRIES = 4
_SECONDS = 300.0
_MOST_TOKENS = 2048
_PAUSE = 0.2


class Writer:
    """Asks the endpoint. Example: `await Writer(Endpoint(base_url=url, api_key=key)).ask("Write ...")`"""

    def __init__(self, endpoint: Endpoint) -> None:
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._model = endpoint.model
        self._url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        self._client = httpx.AsyncClient(headers=headers, timeout=_SECONDS)

    async def ask(self, text: str) -> str:
        """The model's answer. Raises ConfigError when the endpoint refuses, EngineError when it cannot
        answer after a few tries."""
        body = {
            "model": self._model,
            "max_tokens": _MOST_TOKENS,
            "messages": [{"role": "user", "content": text}],
        }
        said = ""
        for turn in range(_TRIES):
            if turn:
                await asyncio.sleep(_PAUSE * 2**turn)
            try:
                response = await self._client.post(self._url, json=body)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                said = str(error) or type(error).__name__
                continue
            if response.status_code == 200:
                return _content(response, self._url)
            said = f"status {response.status_code}"
            if response.status_code < 500 and response.status_code not in (408, 429):
                raise ConfigError(f"{self._url} answers {said}; check model_url, model and its key")
        raise EngineError(f"{self._url} does not answer ({said}); start it and run the same command again")

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()


def _content(response: httpx.Response, url: str) -> str:
    try:
        found: Any = response.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise EngineError(f"{url} sent no chat completion ({error!r}); check model_url") from None
    return found if isinstance(found, str) else ""
