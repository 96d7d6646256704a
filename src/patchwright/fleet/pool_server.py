"""The pool over HTTP: who asks, what for, and in which words it is refused. `pool.py` does the work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from patchwright.errors import InfraError
from patchwright.fleet import api, pool_api
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
_HUNG_UP = 499
"""Nobody gets it."""
_FILE = 64 * 2**20
_DAY = 86_400.0
_TIMEOUTS = {api.EXEC: 180.0, api.DIFF: 60.0, api.EVALUATE: 3600.0, api.CANCEL: 60.0}
"""Seconds that a node's work may take when its request does not say."""

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


def pool_app(pool: Pool, token: str) -> Starlette:
    """The pool's HTTP interface; an empty `token` lets everybody in. See `pool_api.py` for what it speaks."""
    server = _PoolServer(pool, token)
    post, get = ("POST",), ("GET",)
    routes = [
        (pool_api.ALLOCATE, server.allocate, post),
        (pool_api.FORK, server.fork, post),
        (pool_api.HEARTBEAT, server.heartbeat, post),
        (pool_api.EXEC, server.forward(api.EXEC), post),
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
    def __init__(self, pool: Pool, token: str) -> None:
        self._pool = pool
        self._token = token

    def guard(self, handler: Handler) -> Handler:
        """`handler` behind the token, its errors as answers."""

        async def guarded(request: Request) -> Response:
            given = bearer(request.headers.get("authorization", ""))
            if self._token and not same(given, self._token):
                return error_reply(
                    401, "the bearer token is missing or wrong; it is in the pool's token file"
                )
            try:
                return await handler(request)
            except api.BadRequest as error:
                return error_reply(400, str(error))
            except (PoolError, api.NodeError) as error:
                return error_reply(error.status or 500, str(error))
            except InfraError as error:
                return error_reply(500, str(error))
            except ClientDisconnect:
                return error_reply(_HUNG_UP, "the client hung up")

        return guarded

    # --- leases -------------------------------------------------------------------------------

    async def allocate(self, request: Request) -> Response:
        """POST `/allocate`."""
        ask = await _parsed(request, pool_api.AllocateRequest, _BOX)
        return json_reply(await _while_there(request, self._pool.allocate(ask, idempotency_key(request))))

    async def fork(self, request: Request) -> Response:
        """POST `/fork`."""
        ask = await _parsed(request, pool_api.ForkRequest, _SMALL)
        return json_reply(await _while_there(request, self._pool.fork(ask, idempotency_key(request))))

    async def heartbeat(self, request: Request) -> Response:
        """POST `/heartbeat`."""
        await self._pool.heartbeat((await _parsed(request, pool_api.LeaseRequest, _SMALL)).lease_id)
        return json_reply({"ok": True})

    async def close(self, request: Request) -> Response:
        """POST `/close`."""
        lease_id = (await _parsed(request, pool_api.LeaseRequest, _SMALL)).lease_id
        return json_reply({"ok": True, "removed": await self._pool.end(lease_id)})

    # --- boxes --------------------------------------------------------------------------------

    def forward(self, path: str) -> Handler:
        """The handler of what the node does; the node checks the fields it takes."""

        async def forwarded(request: Request) -> Response:
            body = await read_body(request, _WORK)
            lease_id = api.parse(pool_api.LeaseRequest, body).lease_id
            fields = json.loads(body)
            given, key = fields.get("timeout"), idempotency_key(request)
            seconds = given if isinstance(given, (int, float)) and 0 < given < _DAY else _TIMEOUTS[path]
            return _passed(await self._pool.forward(lease_id, path, fields, key=key, timeout=seconds))

        return forwarded

    async def file(self, request: Request) -> Response:
        """GET and PUT `/file`."""
        lease_id, path = (request.query_params.get(name, "") for name in ("lease_id", "path"))
        if not lease_id or not path:
            raise api.BadRequest("`lease_id` and `path` must be in the query")
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
