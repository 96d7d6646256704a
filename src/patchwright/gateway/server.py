"""The recording gateway: an OpenAI-compatible endpoint before an engine or an API, one session per rollout.

    agent --HTTP--> Gateway (who asks, which session) --> Session (budget) --> Voice (record) --> Engine

`Gateway` runs in the caller's event loop, on loopback unless told otherwise, behind bearer tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from patchwright.engine.base import Engine
from patchwright.engine.openai import ApiModel
from patchwright.errors import AgentError, ConfigError, EngineBusy, InfraError
from patchwright.gateway.api_voice import UNBOUNDED, ApiVoice
from patchwright.gateway.call import ContextFull, Stopped, Voice
from patchwright.gateway.chat import ChatFormat
from patchwright.gateway.completions import CompletionsFormat
from patchwright.gateway.engine_voice import EngineVoice
from patchwright.gateway.history import Policy
from patchwright.gateway.messages import MessagesFormat
from patchwright.gateway.responses import ResponsesFormat
from patchwright.gateway.session import Budget, Session
from patchwright.gateway.stream import stream
from patchwright.gateway.wire import BadRequest, Format, dumps
from patchwright.render import Renderer
from patchwright.types import Endpoint, Sampling, Turn

__all__ = ["Gateway"]

_MAX_BODY = 64 * 2**20
"""Bytes of one request; a long conversation with its tool output is a few MB."""
_IDLE = 75
"""Seconds an idle connection is kept: longer than clients keep theirs, so that they hang up first."""

_CHAT = ChatFormat()
_MESSAGES = MessagesFormat()
_FORMATS: dict[str, Format] = {
    "/chat/completions": _CHAT,
    "/completions": CompletionsFormat(),
    "/responses": ResponsesFormat(),
    "/messages": _MESSAGES,
}
"""What is spoken below `/v1`."""


class Gateway:
    """Serves an engine as an OpenAI-compatible endpoint and records what it samples.

    Use it as an async context manager, or `start` and `close` it. Requests to `/sessions/{id}/v1` belong to
    a session; requests to `/v1` carry the gateway's own `api_key` and are not recorded.

    Example::

        async with Gateway(engine, renderer) as gateway:
            session = gateway.session("eval-3-0", sampling=Sampling(temperature=1.0))
            exit = await agent.run(task, box, session.endpoint)
            await session.close()
            turns = session.turns
    """

    def __init__(
        self,
        engine: Engine | ApiModel,
        renderer: Renderer | None = None,
        *,
        model: str = "policy",
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str = "",
        sampling: Sampling | None = None,
        keep_alive: float = 10.0,
        history: Policy = "splice",
    ) -> None:
        """An engine needs the `renderer` of its model. `port` 0 takes a free one; an empty `api_key` makes a
        random one; `sampling` holds the defaults and the bounds of requests without a session, which may
        choose temperature, top_p and seed themselves; `keep_alive` is how many seconds a stream may be
        silent, which clients and proxies bound; `history` says whether the model keeps what it sampled, or
        sees the copy, where an agent changed a reply in form only."""
        self.model = model
        self.api_key = api_key or secrets.token_urlsafe(24)
        self._engine = engine
        self._renderer = renderer
        self._host = host
        self._port = port
        self._keep_alive = keep_alive
        self._history: Policy = history
        most = UNBOUNDED if isinstance(engine, ApiModel) else engine.max_context
        self._sampling = sampling or Sampling(max_tokens=most)
        self._sessions: dict[str, Session] = {}
        """The open ones: a closed session, with its whole conversation, is its rollout's alone."""
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """`http://host:port`, known once started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint without a session: nothing is recorded."""
        return Endpoint(base_url=f"{self.url}/v1", api_key=self.api_key, model=self.model)

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. Raises ConfigError when the address cannot be had."""
        listener = _listen(self._host, self._port)
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app(),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        await self._server.listening.wait()

    async def close(self) -> None:
        """Close every session and stop listening. Closing twice is allowed."""
        await asyncio.gather(*(session.close() for session in list(self._sessions.values())))
        self._sessions.clear()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    # --- sessions -----------------------------------------------------------------------------

    def session(
        self,
        id: str,
        *,
        sampling: Sampling | None = None,
        engine: Engine | None = None,
        budget: Budget | None = None,
        on_turn: Callable[[Turn], None] | None = None,
    ) -> Session:
        """Open a session with its own secret.

        Its `sampling` wins over what requests ask for: only a smaller `max_tokens` and more `stop` strings
        are taken from them; an API is told of it what `ApiModel.given` names. After its `budget` it gives the
        stop signal.
        Its `engine` (a scripted expert, say) is used instead of the gateway's; `on_turn` is called with every
        turn as it is recorded. Raises ConfigError when the id is in use.
        """
        known = self._sessions.get(id)
        if known is not None and known.stopped != "closed":
            raise ConfigError(f"session {id!r} is open already; close it, or choose another id")
        base_url = f"{self.url}/sessions/{quote(id, safe='')}/v1"
        session = Session(
            Endpoint(base_url=base_url, api_key=secrets.token_urlsafe(24), model=self.model),
            self._voice(engine or self._engine, on_turn=on_turn),
            id=id,
            sampling=_told(sampling or Sampling(), engine or self._engine),
            budget=budget,
            on_close=lambda: self._sessions.pop(id, None),
        )
        self._sessions[id] = session
        return session

    def _find(self, request: Request) -> Session:
        """The session a request may use. Raises Stopped or _WrongKey."""
        id = request.path_params.get("id")
        session = self._sessions.get(id) if id is not None else self._anonymous()
        if session is None or session.stopped == "closed":
            raise Stopped("the session is closed")
        if not secrets.compare_digest(_key(request).encode(), session.endpoint.api_key.encode()):
            raise _WrongKey("the API key is missing or wrong")
        return session

    def _anonymous(self) -> Session:
        id = secrets.token_hex(8)
        voice = self._voice(self._engine, pinned=False)
        return Session(self.endpoint, voice, id=id, sampling=self._sampling, pinned=False)

    def _voice(
        self,
        engine: Engine | ApiModel,
        *,
        pinned: bool = True,
        on_turn: Callable[[Turn], None] | None = None,
    ) -> Voice:
        """Who answers in a session."""
        if isinstance(engine, ApiModel):
            return ApiVoice(engine, pinned=pinned, on_turn=on_turn)
        if self._renderer is None:
            raise ConfigError("an engine's gateway needs the tokenizer and the chat template of its model")
        return EngineVoice(
            engine,
            self._renderer,
            model=self.model,
            pinned=pinned,
            history=self._history,
            on_turn=on_turn,
        )

    # --- requests -----------------------------------------------------------------------------

    def _app(self) -> Starlette:
        routes = [Route("/healthz", _health)]
        for base in ("/sessions/{id:path}/v1", "/v1"):
            for path, format in _FORMATS.items():
                routes.append(Route(base + path, self._answering(format), methods=["POST"]))
            routes.append(Route(f"{base}/messages/count_tokens", self._count, methods=["POST"]))
            routes.append(Route(f"{base}/models", self._models))
            routes.append(Route(f"{base}/models/{{name:path}}", self._models))
        return Starlette(routes=routes, exception_handlers={404: _nowhere, 405: _nowhere})

    def _answering(self, format: Format) -> Callable[[Request], Awaitable[Response]]:
        """The answers of one format."""

        async def answer(request: Request) -> Response:
            try:
                return await self._answer(request, format)
            except _REFUSALS as error:
                return _refusal(error, format)

        return answer

    async def _answer(self, request: Request, format: Format) -> Response:
        session = self._find(request)
        body = await _body(request)
        try:
            call = session.call(body, format, retried=_retried(request))
            if call.request.stream:
                return await stream(call, self._renderer, self.model, request, self._keep_alive)
            replies = await asyncio.shield(call.task)
        except asyncio.CancelledError:
            if session.stopped != "closed":
                raise
            raise Stopped("the session is closed") from None
        call.delivered = not await request.is_disconnected()
        return _json(format.whole(call.request, replies))

    async def _count(self, request: Request) -> Response:
        """How long a prompt is, in Anthropic's format; nothing is sampled."""
        try:
            tokens = self._find(request).tokens(await _body(request), _MESSAGES)
        except _REFUSALS as error:
            return _refusal(error, _MESSAGES)
        return _json({"input_tokens": tokens})

    async def _models(self, request: Request) -> Response:
        try:
            self._find(request)
        except _REFUSALS as error:
            return _refusal(error, _CHAT)
        limit = self._engine.max_context
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "patchwright"}
        model |= {"max_model_len": limit} if limit else {}
        name = request.path_params.get("name")
        if name not in (None, self.model):
            return _json(_CHAT.error(f"the model here is {self.model}", "not_found_error"), 404)
        return _json(model if name else {"object": "list", "data": [model]})


def _told(sampling: Sampling, engine: Engine | ApiModel) -> Sampling:
    """A session's sampling, without a bound of replies where an API is not told of one."""
    if isinstance(engine, ApiModel) and "max_tokens" not in engine.given:
        return replace(sampling, max_tokens=UNBOUNDED)
    return sampling


class _WrongKey(Exception):
    """The request has no right to what it asks for."""


class _TooLarge(Exception):
    """The body is over the limit."""


_REFUSALS = (BadRequest, AgentError, Stopped, InfraError, _WrongKey, _TooLarge)


class _Server(uvicorn.Server):
    """uvicorn in somebody else's event loop: signals are theirs, and `listening` tells when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: asyncio turns Nagle's algorithm off only where it reads IPPROTO_TCP, and
    # a reply in two writes would otherwise wait 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from None
    listener.setblocking(False)
    return listener


async def _body(request: Request) -> bytes:
    """The whole body. Raises _TooLarge."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _MAX_BODY:
            raise _TooLarge(f"the body is over {_MAX_BODY // 2**20} MB")
        chunks.append(chunk)
    return b"".join(chunks)


def _key(request: Request) -> str:
    """The key a client sends: as OpenAI's do, or as Anthropic's do."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def _retried(request: Request) -> bool:
    """The clients of OpenAI and Anthropic number their retries, from 0."""
    return request.headers.get("x-stainless-retry-count", "0") != "0"


async def _health(request: Request) -> Response:
    return _json({"status": "ok"})


async def _nowhere(request: Request, error: Exception) -> Response:
    """The answer to a path or a method that is not served."""
    return _json(
        _CHAT.error(f"{request.method} {request.url.path} is not served here", "not_found_error"), 404
    )


def _refusal(error: Exception, format: Format) -> Response:
    """The response to a request that failed.

    404 `not_found_error` is the answer after which every agent measured stops at once; other codes make
    some of them retry for minutes or compact their history.
    """
    status, kind = _STATUS.get(type(error), (400, "invalid_request_error"))
    if isinstance(error, InfraError):
        status, kind = 503, "server_busy" if isinstance(error, EngineBusy) else "server_error"
    response = _json(format.error(str(error), kind), status)
    if status == 503:
        response.headers["retry-after"] = "1"
    return response


_STATUS: dict[type[Exception], tuple[int, str]] = {
    Stopped: (404, "not_found_error"),
    ContextFull: (404, "not_found_error"),
    _WrongKey: (401, "authentication_error"),
    _TooLarge: (413, "request_too_large"),
}


def _json(data: dict[str, object], status: int = 200) -> Response:
    return Response(dumps(data), status, media_type="application/json")
