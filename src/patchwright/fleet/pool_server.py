"""The pool over HTTP: who asks, what for, and in which words it is refused. `pool.py` does the work."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from patchwright.errors import InfraError, StoreError
from patchwright.fleet import api, pool_api
from patchwright.fleet.audit import Audit
from patchwright.fleet.link import Streamed
from patchwright.fleet.node_http import error_reply, idempotency_key, json_reply, parsed, read_body
from patchwright.fleet.node_reply import Reply
from patchwright.fleet.pool import Pool
from patchwright.fleet.pool_api import PoolError
from patchwright.fleet.pool_metrics import exposition
from patchwright.fleet.tokens import bearer, same

__all__ = ["pool_app"]

_SMALL = 64 * 1024
_WORK = 128 * 2**20
"""Bytes of a command with its stdin, or of a patch with its script."""
_BOX = 1024 * 2**20
"""Bytes of a box with its archive."""
_WAITING = 2048 * 2**20
"""Bytes of boxes that wait to be made."""
_HUNG_UP = 499
"""Nobody gets it."""
_FILE = 64 * 2**20
_DAY = 86_400.0
_TIMEOUTS = {api.EXEC: 180.0, api.DIFF: 60.0, api.EVALUATE: 3600.0, api.CANCEL: 60.0}
"""Seconds that a node's work may take when its request does not say."""

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


def pool_app(pool: Pool, token: str, audit: Audit | None = None) -> Starlette:
    """The pool's HTTP interface; an empty `token` lets everybody in. See `pool_api.py` for what it speaks.

    `audit` gets a line for whatever is done or refused.
    """
    server = _PoolServer(pool, token, audit or Audit(None))
    post, get = ("POST",), ("GET",)
    routes = [
        (pool_api.ALLOCATE, server.allocate, post),
        (pool_api.FORK, server.fork, post),
        (pool_api.HEARTBEAT, server.heartbeat, post),
        (pool_api.EXEC, server.forward(api.EXEC), post),
        (pool_api.STREAM, server.stream, post),
        (pool_api.CANCEL, server.forward(api.CANCEL), post),
        (pool_api.DIFF, server.forward(api.DIFF), post),
        (pool_api.EVALUATE, server.forward(api.EVALUATE), post),
        (pool_api.FILE, server.file, ("GET", "PUT")),
        (pool_api.CLOSE, server.close, post),
        (pool_api.NODES, server.nodes, ("GET", "POST", "DELETE")),
        (pool_api.STATUS, server.status, get),
        (pool_api.METRICS, server.metrics, get),
    ]
    guarded = [Route(path, server.guard(handler), methods=list(methods)) for path, handler, methods in routes]
    return Starlette(
        routes=[*guarded, Route(pool_api.HEALTH, server.health)],
        exception_handlers={HTTPException: _http_error, Exception: _crash},
    )


class _PoolServer:
    def __init__(self, pool: Pool, token: str, audit: Audit) -> None:
        self._pool = pool
        self._token = token
        self._audit = audit
        self._waiting = 0
        """Bytes of the requests for boxes that are not answered yet."""

    def guard(self, handler: Handler) -> Handler:
        """`handler` behind the token, its errors as answers."""

        async def guarded(request: Request) -> Response:
            started = time.perf_counter()
            response = await self._answer(handler, request)
            code, path = response.status_code, request.url.path
            if code == 401 or (request.method != "GET" and path != pool_api.HEARTBEAT):
                who = request.client.host if request.client else ""
                lease = getattr(request.state, "lease", "")
                seconds = time.perf_counter() - started
                self._audit.write(path.lstrip("/"), who=who, lease=lease, code=code, seconds=seconds)
            return response

        return guarded

    async def _answer(self, handler: Handler, request: Request) -> Response:
        given = bearer(request.headers.get("authorization", ""))
        if self._token and not same(given, self._token):
            return error_reply(401, "the bearer token is missing or wrong; it is in the pool's token file")
        try:
            return await handler(request)
        except api.BadRequest as error:
            return error_reply(400, str(error))
        except (PoolError, api.NodeError) as error:
            return error_reply(error.status or 500, str(error))
        except StoreError as error:
            return error_reply(503, str(error))
        except InfraError as error:
            return error_reply(500, str(error))
        except ClientDisconnect:
            return error_reply(_HUNG_UP, "the client hung up")

    # --- leases -------------------------------------------------------------------------------

    async def allocate(self, request: Request) -> Response:
        """POST `/allocate`."""
        ask, body = await parsed(request, pool_api.AllocateRequest, _BOX)
        with self._kept(len(body)):
            work = self._pool.allocate(ask, idempotency_key(request))
            return _granted(request, await _while_there(request, work))

    async def fork(self, request: Request) -> Response:
        """POST `/fork`."""
        ask = await _parsed(request, pool_api.ForkRequest, _SMALL)
        work = self._pool.fork(ask, idempotency_key(request))
        return _granted(request, await _while_there(request, work))

    async def heartbeat(self, request: Request) -> Response:
        """POST `/heartbeat`."""
        await self._pool.heartbeat((await _named(request)).lease_id)
        return json_reply({"ok": True})

    async def close(self, request: Request) -> Response:
        """POST `/close`."""
        lease_id = (await _named(request)).lease_id
        return json_reply({"ok": True, "removed": await self._pool.end(lease_id)})

    @contextlib.contextmanager
    def _kept(self, size: int) -> Iterator[None]:
        """A request for a box of so many bytes waits. Raises PoolError (503) when too much does already."""
        if self._waiting + size > _WAITING:
            limit = _WAITING // 2**20
            raise PoolError(f"{limit} MB of requests wait for a box already; try again later", 503)
        self._waiting += size
        try:
            yield
        finally:
            self._waiting -= size

    # --- boxes --------------------------------------------------------------------------------

    def forward(self, path: str) -> Handler:
        """The handler of what the node does; the node checks the fields it takes."""

        async def forwarded(request: Request) -> Response:
            lease_id, fields, seconds = await _work(request, _TIMEOUTS[path])
            key = idempotency_key(request)
            return _passed(await self._pool.forward(lease_id, path, fields, key=key, timeout=seconds))

        return forwarded

    async def stream(self, request: Request) -> Response:
        """POST `/exec/stream`: the node's lines as they come, as of its `/container/exec/stream`."""
        lease_id, fields, seconds = await _work(request, _TIMEOUTS[api.EXEC])
        key, stack = idempotency_key(request), AsyncExitStack()
        asked = self._pool.stream(lease_id, fields, key=key, timeout=seconds)
        streamed = await stack.enter_async_context(asked)
        return _Relayed(streamed, stack)

    async def file(self, request: Request) -> Response:
        """GET and PUT `/file`."""
        lease_id, path = (request.query_params.get(name, "") for name in ("lease_id", "path"))
        if not lease_id or not path:
            raise api.BadRequest("`lease_id` and `path` must be in the query")
        request.state.lease = lease_id
        if request.method != "PUT":
            return _passed(await self._pool.file(lease_id, path))
        content, mode = await read_body(request, _FILE), request.headers.get(api.FILE_MODE, "644")
        return _passed(await self._pool.file(lease_id, path, content, mode))

    # --- the pool -----------------------------------------------------------------------------

    async def nodes(self, request: Request) -> Response:
        """GET, POST and DELETE `/nodes`."""
        if request.method in ("POST", "DELETE"):
            url = (await _parsed(request, pool_api.NodeRequest, _SMALL)).url.rstrip("/")
            if request.method == "POST":
                self._pool.book.journal.add_node(url)
                self._pool.join(url)
            else:
                self._pool.leave(url)
        return json_reply({"nodes": self._nodes()})

    async def status(self, request: Request) -> Response:
        """GET `/status`: nodes, leases, and how many wait; `pool` is the part that swe-rl's pool has."""
        book = self._pool.book
        leases = [
            {
                "lease_id": lease.id,
                "node_url": lease.node.url,
                "image": lease.row.image,
                "state": lease.row.state,
            }
            for lease in book.all()
        ]
        nodes = self._nodes()
        answer = {"active_leases": len(leases), "waiting": len(self._pool.line), "leases": leases}
        return json_reply({**answer, "nodes": nodes, "pool": {"total_leases": len(leases), "nodes": nodes}})

    async def metrics(self, request: Request) -> Response:
        """GET `/metrics`, for Prometheus."""
        content, kind = exposition(self._pool)
        return Response(content, media_type=kind)

    async def health(self, request: Request) -> Response:
        """GET `/healthz`: ok while at least one node can make boxes. Needs no token."""
        healthy = sum(node.state.healthy for node in self._pool.nodes.values())
        return json_reply({"ok": healthy > 0, "nodes": len(self._pool.nodes), "healthy_nodes": healthy})

    def _nodes(self) -> list[dict[str, object]]:
        states = [node.state for node in self._pool.nodes.values()]
        return [
            {
                "url": state.url,
                "healthy": state.healthy,
                "draining": state.draining,
                "active_containers": state.busy,
                "max_containers": state.cap,
                "failing": sorted(state.troubles),
            }
            for state in states
        ]


async def _parsed(request: Request, model: type[M], limit: int) -> M:
    return (await parsed(request, model, limit))[0]


async def _named(request: Request) -> pool_api.LeaseRequest:
    """The lease that a request is about."""
    named = await _parsed(request, pool_api.LeaseRequest, _SMALL)
    request.state.lease = named.lease_id
    return named


def _granted(request: Request, lease: dict[str, object]) -> Response:
    request.state.lease = lease["lease_id"]
    return json_reply(lease)


async def _work(request: Request, seconds: float) -> tuple[str, dict[str, Any], float]:
    """The lease a request is for, what goes on to the node, and how long that may take."""
    work = await _parsed(request, pool_api.WorkRequest, _WORK)
    request.state.lease, fields = work.lease_id, work.model_extra or {}
    given = fields.get("timeout")
    wanted = given if isinstance(given, (int, float)) and 0 < given < _DAY else seconds
    return work.lease_id, fields, wanted


class _Relayed(StreamingResponse):
    """A node's answer as it comes. When the node is lost it ends early, without a result."""

    def __init__(self, streamed: Streamed, stack: AsyncExitStack) -> None:
        """`stack` holds the connection to the node, and is closed at the end."""
        kind = streamed.headers.get("content-type")
        super().__init__(_until_lost(streamed.chunks), streamed.status, media_type=kind)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by starlette."""
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _until_lost(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    with contextlib.suppress(api.NodeError):
        async for chunk in chunks:
            yield chunk


async def _while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`, which is cancelled when the client hangs up. Raises ClientDisconnect."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_hung_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _passed(reply: Reply) -> Response:
    """A node's answer, as it came."""
    return Response(reply.body, reply.status, media_type=reply.headers.get("content-type"))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_reply(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}")


async def _crash(request: Request, error: Exception) -> Response:
    return error_reply(500, f"the pool failed on this request: {type(error).__name__}")
