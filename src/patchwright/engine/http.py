"""Model servers over HTTP that take and give token ids: what vLLM and SGLang have in common.

The server runs in an environment of its own, on this machine or another; nothing of it is imported. It must
be on a network that is private: its calls that replace weights ask for no key.
"""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Self

import aiohttp

from patchwright.engine.base import OnTokens
from patchwright.engine.config import EngineConfig
from patchwright.engine.reply import Json, Part, Reply, parsed
from patchwright.errors import ConfigError, EngineBusy, EngineError
from patchwright.types import Completion, Finish, Invitation, Sampling, Source, Weights

__all__ = ["HttpEngine", "Missing"]

_BUSY = (429, 503)
_NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_LEAST = 1e-6
"""The least top-p: neither server takes 0."""
_PROBE = 8
"""Tokens of the probe: a model may be sure of one by itself."""
_SURE = 1e-3
_HOLD = 60.0
"""Seconds a server may take to stop between two steps, and to go on: it waits for one step at most."""
_IDLE = 4.0
"""Seconds a connection is kept unused: both servers close theirs after 5."""
_DETAIL = 300
"""Characters of a server's complaint that are passed on."""


class Missing(EngineError):
    """The server has no such call."""


class HttpEngine(abc.ABC):
    """An engine behind an address. Made by `connect`.

    Tokens that come while weights are replaced count as of the older version, never of a newer one than
    sampled them: of a reply that is streamed the next few at most, of any other all.
    """

    name = ""
    """What people call the server."""
    hold: tuple[str, Json] = ("", {})
    """Path and body of the call that freezes what is under way, so that it forgets what it computed."""
    go_on: tuple[str, Json] = ("", {})
    """Those of the call that ends this."""

    def __init__(self, config: EngineConfig, client: aiohttp.ClientSession, base: str) -> None:
        self._config = config
        self._client = client
        self._base = base
        self._version = 0
        self._max_context = config.max_context
        self._model = config.served_name
        self._workers = 0
        self._then: Callable[[], Awaitable[None]] | None = None
        self._updates = False
        self.processed = False
        """Log-probs are of the distribution sampled from, top-p and top-k too; `_look` finds out."""

    @classmethod
    async def connect(
        cls,
        config: EngineConfig,
        *,
        key: str = "",
        then: Callable[[], Awaitable[None]] | None = None,
        updates: bool = False,
    ) -> Self:
        """Look who serves at the first address of `config`; `then` is what `close` ends by.

        With `updates` its weights are nobody else's to replace: found held, it is let go. Raises ConfigError
        when it is nobody, or one that cannot be used.
        """
        url = config.urls[0] if config.urls else ""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"`engine.url` is {url!r}: give the address of the {cls.name} server, "
                "such as http://127.0.0.1:8000"
            )
        key = key or config.key()
        headers = ({"authorization": f"Bearer {key}"} if key else {}) | config.headers()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE)
        client = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers)
        engine = cls(config, client, url.rstrip("/").removesuffix("/v1"))
        engine._then, engine._updates = then, updates
        try:
            await engine._look()
        except EngineError as error:
            await engine.close()
            raise ConfigError(f"`engine.url` {url}: {error}") from error
        except BaseException:
            await engine.close()
            raise
        return engine

    @property
    def version(self) -> int:
        """Version of the weights last loaded; 0 for those the server started with."""
        return self._version

    @property
    def max_context(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        return self._max_context

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """See `Engine.generate`. A caller that goes away hangs up, which aborts the request there."""
        room = min(sampling.max_tokens, self._max_context - len(prompt_ids))
        reply = Reply(self._version)
        if room <= 0:
            return Completion(token_ids=(), logprobs=(), finish=Finish.LENGTH, version=reply.version)
        request = self._request(list(prompt_ids), sampling, room)
        streamed = on_tokens is not None or self._updates
        async with aclosing(self._answers(*request, streamed=streamed)) as answers:
            async for answer in answers:
                new = self._add(reply, answer)
                if on_tokens is not None and new:
                    on_tokens(new)
        if not reply.finish:
            raise EngineError(f"{self.name} ended a reply without saying why")
        return reply.whole()

    def _add(self, reply: Reply, answer: Json) -> list[int]:
        """The ids that came."""
        before = len(reply.ids)
        try:
            reply.add(self._take(answer), self._version)
        except (LookupError, TypeError, ValueError):
            raise EngineError(
                f"{self.name} answered without token ids or log-probs; is it too old?"
            ) from None
        if len(reply.ids) != len(reply.logprobs):
            raise EngineError(f"{self.name} gave {len(reply.ids)} tokens and {len(reply.logprobs)} log-probs")
        return reply.ids[before:]

    async def _answers(self, path: str, body: Json, *, streamed: bool) -> AsyncGenerator[Json]:
        """A completion, in parts where the server can and it is `streamed`."""
        yield await self._ask("POST", path, body)

    async def load(self, weights: Weights) -> None:
        """See `Engine.load`. The server must see the folder under the same path; a source needs none.

        What is under way is frozen meanwhile, and goes on with the new weights.
        """
        if weights.source is None:
            async with self._held():
                await self._load(os.path.abspath(weights.path), weights.version)  # noqa: PTH100
                self._version = weights.version
        else:
            await self._take_part(weights.source, weights.version)

    async def _take_part(self, source: Source, version: int) -> None:
        """Have the weights broadcast. What is under way stays frozen when that fails: the model may then be
        half of one, and half of another."""

        async def receive(invitation: Invitation) -> None:
            try:
                async with asyncio.timeout(invitation.seconds):
                    await self._receive(invitation, version)
            except TimeoutError:
                raise EngineError(
                    f"{self.name} has not received the weights within {invitation.seconds:g} s"
                ) from None

        try:
            held = await self._hold()
        except BaseException:
            source.leave()
            raise
        await source.send(self._workers, receive)
        self._version = version
        if held:
            await self._order(self.go_on)

    async def close(self) -> None:
        """Hang up; a server that was not started here goes on. Closing twice is allowed."""
        await self._client.close()
        if self._then is not None:
            await self._then()

    # --- what differs ---------------------------------------------------------------------------

    @abc.abstractmethod
    def _request(self, prompt: list[int], sampling: Sampling, room: int) -> tuple[str, Json]:
        """Path and body of a call that samples at most `room` tokens."""

    def _common(self, sampling: Sampling) -> Json:
        """Options that both name alike. Penalties are named, for a model's own `generation_config.json` sets
        them where nobody does, and then what is sampled is not what the model says."""
        return {
            "temperature": sampling.temperature,
            "top_p": max(sampling.top_p, _LEAST),
            "top_k": sampling.top_k or -1,
            **_NEUTRAL,
            "stop": list(sampling.stop),
            "stop_token_ids": list(sampling.stop_ids),
            "skip_special_tokens": False,
        }

    @abc.abstractmethod
    def _take(self, answer: Json) -> Part:
        """What an answer, or a part of one, brings."""

    @abc.abstractmethod
    async def _load(self, folder: str, version: int) -> None:
        """Replace the weights. Raises EngineError."""

    @abc.abstractmethod
    async def _count(self) -> int:
        """How many workers would take part in a broadcast. Raises ConfigError when they cannot."""

    @abc.abstractmethod
    async def _receive(self, invitation: Invitation, version: int) -> None:
        """Let all workers take part in a broadcast, to its end. Raises EngineError."""

    # --- the wire -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        """The server samples nothing. One that is too old to be held goes on as it did."""
        held = await self._hold()
        try:
            yield
        finally:
            if held:
                await self._order(self.go_on)

    async def _hold(self) -> bool:
        """Whether the server now samples nothing."""
        try:
            async with asyncio.timeout(_HOLD):
                if not await self._can_hold():
                    return False
        except TimeoutError:
            raise EngineError(f"{self.name} did not say within {_HOLD:g} s whether it can be held") from None
        try:
            await self._order(self.hold)
        except Missing:
            return False
        except BaseException:
            with suppress(EngineError):
                await self._order(self.go_on)  # it may have heard
            raise
        return True

    async def _can_hold(self) -> bool:
        """Whether `hold` would do what it is for."""
        return True

    async def _order(self, order: tuple[str, Json]) -> None:
        await self._soon("POST", *order)

    async def _soon(self, method: str, path: str, body: Json | None = None) -> Json:
        """One call that a server answers whatever it samples."""
        try:
            async with asyncio.timeout(_HOLD):
                return await self._ask(method, path, body)
        except TimeoutError:
            raise EngineError(f"{self.name} did not answer {path} within {_HOLD:g} s") from None

    async def _look(self) -> None:
        """Learn the model's name and its context, and whether it can be broadcast to, if it is to be."""
        models = (await self._soon("GET", "/v1/models")).get("data")
        if not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise EngineError("the server names no model")
        self._model = self._model or str(models[0].get("id"))
        limit = models[0].get("max_model_len")
        if not isinstance(limit, int) and not self._max_context:
            raise ConfigError("the server does not tell its context; set `engine.max_context`")
        if isinstance(limit, int):
            self._max_context = min(limit, self._max_context or limit)
        if self._config.transfer == "broadcast":
            self._workers = await self._count()
        if self._updates:
            with suppress(Missing):
                await self._order(self.go_on)  # who failed or was killed while it loaded weights left it held
        self.processed = await self._samples()

    async def _samples(self) -> bool:
        """`_probe`, within a bound: a server that is held answers everything else."""
        bound = self._config.start_seconds
        try:
            async with asyncio.timeout(bound):
                return await self._probe()
        except TimeoutError:
            raise EngineError(
                f"{self.name} samples nothing within {bound:g} s (engine.start_seconds); a run killed while "
                f"it loaded weights may have left it held: POST {self.go_on[0]}"
            ) from None

    async def _probe(self) -> bool:
        """Tokens that are drawn from one alone (a vanishing top-p) have log-prob 0 where log-probs are told
        after top-p, and the model's own where before it."""
        sampling = Sampling(top_p=_LEAST, seed=0)
        _, logprobs, _, _ = self._take(await self._ask("POST", *self._request([0], sampling, _PROBE)))
        return all(abs(value) < _SURE for value in logprobs)

    async def _ask(self, method: str, path: str, body: Json | None = None) -> Json:
        """One call. Raises EngineBusy or EngineError."""
        async with self._asked(method, path, body) as response:
            return parsed(await response.read())

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: Json | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One call that the server takes. Raises EngineBusy or EngineError."""
        if self._client.closed:
            raise EngineError(f"the engine is closed: {self.name} is asked no more")
        try:
            async with self._client.request(method, self._base + path, json=body) as response:
                if response.status != 200:
                    raise await self._refused(path, response)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"{self.name} cannot be reached: {error}") from error

    async def _refused(self, path: str, response: aiohttp.ClientResponse) -> EngineError:
        text = (await response.text(errors="replace"))[:_DETAIL]
        if response.status in _BUSY:
            return EngineBusy(f"{self.name} is busy: {text}")
        kind = Missing if response.status == 404 else EngineError
        return kind(f"{self.name} refused {path} ({response.status}): {text}")
