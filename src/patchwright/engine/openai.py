"""Somebody else's chat API: text in, text out. It gives no token ids, so it is no `Engine`: its answers are
recorded as text, and nothing is trained on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import re
import time
from collections.abc import Collection, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Self

import aiohttp

from patchwright.engine.config import EngineConfig
from patchwright.errors import AgentError, ConfigError, EngineError, PatchwrightError
from patchwright.types import Endpoint

__all__ = ["ApiModel", "PromptTooLong", "retry_after"]

Json = dict[str, Any]

_BARRED = (401, 402, 403, 404)
"""Nothing to do with what was asked: no key, no money, no right, no such model."""
_LATER = (408, 409, 425, 429)
_TOO_LONG = re.compile(
    r"context is full|context.?(length|window|limit|size)|maximum context|"
    r"(prompt|input|request) (is )?too (long|large)|too many (input )?tokens",
    re.IGNORECASE,
)
"""How APIs say that a conversation does not fit; there is no common code."""
_MOST_WAIT = 60.0
"""Seconds between two tries, at most, while the API asks for no other time."""
_MOST_ASKED = 600.0
"""Seconds that an API may ask for."""
_DETAIL = 300
"""Characters of an API's complaint that are passed on."""
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=1800)


class PromptTooLong(PatchwrightError):
    """The conversation is longer than the model takes."""


class ApiModel:
    """A model behind an OpenAI-compatible chat completions API. `close` it in the event loop it was used in.

    Example: `await ApiModel(Endpoint(base_url="https://host/v1", api_key=key, model="m-1")).chat(body)`
    """

    def __init__(
        self, endpoint: Endpoint, *, retries: int = 6, given: Collection[str] = (), max_context: int = 0
    ) -> None:
        """`given`: the options of a session (`temperature`, `top_p`, `max_tokens`) that the API is told; the
        others are left to the agent, else to the API. `max_context` is what agents are told, 0 nothing.
        Raises ConfigError when the endpoint has no HTTP address."""
        if not endpoint.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"the model's address is {endpoint.base_url!r}: give that of an OpenAI-compatible API, "
                "such as https://api.openai.com/v1"
            )
        self.name = endpoint.model
        self.given = frozenset(given)
        self.max_context = max_context
        self._url = endpoint.base_url.rstrip("/")
        self._key = endpoint.api_key
        self._retries = retries
        self._limit_key = "max_tokens"
        self._client: aiohttp.ClientSession | None = None

    @classmethod
    def of(cls, config: EngineConfig, model: str, given: Collection[str] = ()) -> Self:
        """The model an engine section names, `model` when it names none. Raises ConfigError."""
        url = config.urls[0] if config.urls else ""
        endpoint = Endpoint(base_url=url, api_key=config.key(), model=config.served_name or model)
        return cls(endpoint, retries=config.retries, given=given, max_context=config.max_context)

    async def chat(self, body: Json) -> Json:
        """The `chat.completion` that answers a request: its `choices` are there. The model's name is put in.

        Calls answered 429 or 5xx, lost ones and broken answers are tried again, after as long as the API asks
        for. Raises PromptTooLong, AgentError when the API refuses this request, EngineError when it refuses
        every one (key, money, model) or does not answer.
        """
        trouble = ""
        for tried in range(self._retries + 1):
            answer, trouble, wait = await self._try({"model": self.name, **body})
            if answer is not None:
                return answer
            if tried < self._retries:
                backoff = min(2.0**tried, _MOST_WAIT) * random.uniform(0.5, 1.0)
                await asyncio.sleep(backoff if wait is None else wait)
        raise EngineError(f"the model API {self._url} gave no answer in {self._retries + 1} tries: {trouble}")

    async def close(self) -> None:
        """Close the connections. Closing twice is allowed."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _try(self, body: Json) -> tuple[Json | None, str, float | None]:
        """The answer; or why there is none yet, and how long the API wants to be left alone."""
        try:
            status, headers, text = await self._post(body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return None, f"{type(error).__name__}: {error}", None
        if status in _LATER or status >= 500:
            if "insufficient_quota" in text:
                raise self._barred(status, text)
            return None, f"it answered {status}: {text[:_DETAIL]}", retry_after(headers)
        if status >= 400:
            if self._wants_other_limit(body, text):
                return await self._try(body)
            raise self._refused(status, text)
        answer = _completion(text)
        return answer, f"it sent no chat completion: {text[:_DETAIL]}", None

    async def _post(self, body: Json) -> tuple[int, Mapping[str, str], str]:
        if self._client is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._client = aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector, trust_env=True)
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        named = {self._limit_key if key == "max_tokens" else key: value for key, value in body.items()}
        url = f"{self._url}/chat/completions"
        data = json.dumps(named).encode()  # a lone surrogate passes as its escape
        # A redirect would carry the conversation to somebody the user did not name.
        async with self._client.post(url, data=data, headers=headers, allow_redirects=False) as response:
            return response.status, response.headers, await response.text(errors="replace")

    def _wants_other_limit(self, body: Json, text: str) -> bool:
        """Some models know the bound of a reply by its newer name only."""
        other = self._limit_key == "max_tokens" and "max_tokens" in body and "max_completion_tokens" in text
        if other:
            self._limit_key = "max_completion_tokens"
        return other

    def _refused(self, status: int, text: str) -> PatchwrightError:
        if status == 413 or _TOO_LONG.search(text):
            return PromptTooLong(f"the context is full: {text[:_DETAIL]}")
        if status in _BARRED:
            return self._barred(status, text)
        return AgentError(f"the model API answered {status}: {text[:_DETAIL]}")

    def _barred(self, status: int, text: str) -> EngineError:
        return EngineError(
            f"the model API {self._url} answered {status}; check its address, its key, its credit and the "
            f"model's name: {text[:_DETAIL]}"
        )


def _completion(text: str) -> Json | None:
    """An answer that has choices with messages, else None."""
    with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        answer = json.loads(text)
        if all(isinstance(choice["message"], dict) for choice in answer["choices"]) and answer["choices"]:
            return dict(answer)
    return None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds an API asks to be left alone, by a number or a date (RFC 9110, 10.2.3), if it does."""
    said = headers.get("retry-after", "")
    seconds = math.nan
    with contextlib.suppress(ValueError):
        seconds = float(headers["retry-after-ms"]) / 1000 if "retry-after-ms" in headers else float(said)
    if math.isnan(seconds):
        with contextlib.suppress(ValueError):
            seconds = parsedate_to_datetime(said).timestamp() - time.time()
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _MOST_ASKED)
