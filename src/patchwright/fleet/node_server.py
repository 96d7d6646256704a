"""The HTTP side of a node: who asks, what for, and the answer as JSON. The node itself is `node.py`."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import asdict
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router

from patchwright.errors import SandboxError
from patchwright.fleet import api
from patchwright.fleet.answers import Answers, Job, Listener
from patchwright.fleet.api import BadRequest, NodeError
from patchwright.fleet.audit import Audit
from patchwright.fleet.boxes import NodeBox
from patchwright.fleet.evaluate import take_diff
from patchwright.fleet.node import Node
from patchwright.fleet.node_http import (
    body_reply,
    error_reply,
    idempotency_key,
    json_reply,
    parsed,
    read_body,
)
from patchwright.fleet.node_metrics import NodeMetrics
from patchwright.fleet.tokens import bearer, same
from patchwright.types import Exec

__all__ = ["NodeServer"]

_LOG = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)
Emit = Callable[[bytes], None]
Handler = Callable[[Request], Awaitable[Response]]

_MISTAKE = "the node made a mistake; its log says more"
_SMALL = 2**20
"""Bytes of a request that carries no content."""
_LARGE = 96 * 2**20
"""Bytes of a request with a file, a command's input or a patch: 64 MiB, in base64."""
_ARCHIVE = 512 * 2**20
"""Bytes of a request with the archive of a box."""
_FILE = 64 * 2**20
_HANG_UP = 499
"""What is counted for a client that left before its request was read; nobody gets it."""


class NodeServer:
    """The ASGI app of a node, behind its token.

    `token` opens everything, a lease's own token only that lease's boxes; empty: no token is asked for, which
    is for loopback alone.

    Example: `async with Serving(NodeServer(node, token, Audit(None)).app, Address(port=5000)): ...`
    """

    def __init__(self, node: Node, token: str, audit: Audit) -> None:
        self.app = Router(routes=self._routes())
        self._node = node
        self._token = token
        self._audit = audit
        self._metrics = NodeMetrics(node)
        self._created = Answers()
        """Creations by idempotency key."""

    def _routes(self) -> list[Route]:
        posts: dict[str, Handler] = {
            api.EXEC: self._exec,
            api.STREAM: self._stream,
            api.CREATE: self._create,
            api.DESTROY: self._destroy,
            api.CANCEL: self._cancel,
            api.DIFF: self._diff,
            api.EVALUATE: self._evaluate,
            api.FORK: self._fork,
            api.RENEW: self._renew,
            api.CLOSE_LEASE: self._close_lease,
        }
        gets: dict[str, Handler] = {
            api.HEALTH: self._healthz,
            api.STATUS: self._status,
            api.IMAGES: self._images,
            api.METRICS: self._text,
            api.FILE: self._read,
        }
        return [
            *(self._route(path, "POST", handler) for path, handler in posts.items()),
            *(self._route(path, "GET", handler) for path, handler in gets.items()),
            self._route(api.FILE, "PUT", self._write),
        ]

    def _route(self, path: str, method: str, handler: Handler) -> Route:
        async def answer(request: Request) -> Response:
            started = time.perf_counter()
            response = await self._answer(handler, request)
            self._metrics.count(path, response.status_code, time.perf_counter() - started)
            if response.status_code in (401, 403):
                self._audit.write("refused", command=path, code=response.status_code)
            return response

        return Route(path, answer, methods=[method])

    async def _answer(self, handler: Handler, request: Request) -> Response:
        try:
            return await handler(request)
        except BadRequest as error:
            return error_reply(400, str(error))
        except NodeError as error:
            return error_reply(error.status, str(error))
        except SandboxError as error:
            return error_reply(500, str(error))
        except ClientDisconnect:
            return error_reply(_HANG_UP, "the client hung up")
        except Exception:
            _LOG.exception("a request to %s failed", request.url.path)
            return error_reply(500, _MISTAKE)

    # --- who asks -----------------------------------------------------------------------------

    def _lease_token(self, request: Request) -> str:
        """The lease's token a request came with; empty for one that may do everything.

        Raises NodeError (401) when it has no token that means anything here.
        """
        token = bearer(request.headers.get("authorization", ""))
        if not self._token or same(token, self._token):
            return ""
        if self._node.boxes.knows_token(token):
            return token
        raise NodeError("the bearer token is missing or wrong", 401)

    def _only_node_token(self, request: Request) -> None:
        if self._lease_token(request):
            raise NodeError("a lease's token opens its boxes only; this needs the node's", 403)

    def _box(self, request: Request, id: str) -> NodeBox:
        """The open box a request may use."""
        if token := self._lease_token(request):
            self._node.boxes.check_owner(id, token)
        return self._node.boxes.find(id)

    async def _owned(self, request: Request, model: type[M], limit: int) -> tuple[M, bytes]:
        """The body of a request that any token may make, once the token is known to be one."""
        self._lease_token(request)
        return await parsed(request, model, limit)

    # --- boxes --------------------------------------------------------------------------------

    async def _create(self, request: Request) -> Response:
        self._only_node_token(request)
        wanted, body = await parsed(request, api.CreateRequest, _ARCHIVE)

        async def work(_: Emit) -> bytes:
            started = time.perf_counter()
            box = await self._node.create(wanted)
            self._log("create", box, wanted.image, seconds=time.perf_counter() - started)
            if not (wanted.lease_id or idempotency_key(request)) and await request.is_disconnected():
                await self._node.destroy(box.id)  # nobody knows its id, and nobody can ask for it again
            return _created(box)

        return body_reply(await self._job(request, self._created, body, work, failures=False).answer())

    async def _fork(self, request: Request) -> Response:
        wanted, body = await self._owned(request, api.ForkRequest, _SMALL)
        box = self._box(request, wanted.container_id)
        if self._lease_token(request):
            wanted = wanted.model_copy(update={"lease_id": "", "lease_token": ""})

        async def work(_: Emit) -> bytes:
            started = time.perf_counter()
            copy = await self._node.fork(box, wanted)
            self._log("fork", copy, box.id, seconds=time.perf_counter() - started)
            return _created(copy)

        with box.in_use(request.is_disconnected):
            return body_reply(await self._job(request, box.answers, body, work, failures=False).answer())

    async def _destroy(self, request: Request) -> Response:
        wanted, _ = await self._owned(request, api.DestroyRequest, _SMALL)
        if token := self._lease_token(request):
            self._node.boxes.check_owner(wanted.container_id, token)
        await self._node.destroy(wanted.container_id)
        self._audit.write("destroy", box=wanted.container_id)
        return json_reply({"ok": True})

    async def _renew(self, request: Request) -> Response:
        self._only_node_token(request)
        wanted, _ = await parsed(request, api.RenewRequest, _SMALL)
        return json_reply({"unknown": self._node.renew(wanted.leases)})

    async def _close_lease(self, request: Request) -> Response:
        self._only_node_token(request)
        wanted, _ = await parsed(request, api.CloseLeaseRequest, _SMALL)
        await self._node.close_lease(wanted.lease_id, wanted.fence)
        self._audit.write("close lease", lease=wanted.lease_id)
        return json_reply({"ok": True})

    # --- work ---------------------------------------------------------------------------------

    async def _exec(self, request: Request) -> Response:
        wanted, body = await self._owned(request, api.ExecRequest, _LARGE)
        box = self._box(request, wanted.container_id)
        with box.in_use(request.is_disconnected):
            job = self._job(request, box.answers, body, lambda _: self._run(box, wanted, None))
            return body_reply(await job.answer())

    async def _stream(self, request: Request) -> Response:
        wanted, body = await self._owned(request, api.ExecRequest, _LARGE)
        box = self._box(request, wanted.container_id)
        job = self._job(request, box.answers, body, lambda emit: self._run(box, wanted, emit))
        return StreamingResponse(_events(box, job, job.listen(), request), media_type="application/x-ndjson")

    async def _run(self, box: NodeBox, wanted: api.ExecRequest, emit: Emit | None) -> bytes:
        started, code = time.perf_counter(), 500
        try:
            done = await self._node.exec(box, wanted, emit)
            code = done.code
        finally:
            self._log("exec", box, wanted.command, code=code, seconds=time.perf_counter() - started)
        return json.dumps(_exec_answer(done, wanted.timeout)).encode()

    async def _cancel(self, request: Request) -> Response:
        wanted, _ = await self._owned(request, api.CancelRequest, _SMALL)
        self._box(request, wanted.container_id).answers.cancel(wanted.key)
        return json_reply({"ok": True})

    async def _evaluate(self, request: Request) -> Response:
        wanted, body = await self._owned(request, api.EvaluateRequest, _LARGE)
        box = self._box(request, wanted.container_id)

        async def work(_: Emit) -> bytes:
            started = time.perf_counter()
            found = await self._node.evaluate(box, wanted)
            self._log(
                "evaluate",
                box,
                wanted.eval_script,
                code=found.returncode,
                seconds=time.perf_counter() - started,
            )
            known = {name: value for name, value in asdict(found).items() if value != ""}
            return json.dumps({"ok": True, **known}).encode()

        with box.in_use(request.is_disconnected):
            return body_reply(await self._job(request, box.answers, body, work).answer())

    async def _diff(self, request: Request) -> Response:
        wanted, _ = await self._owned(request, api.DiffRequest, _SMALL)
        box = self._box(request, wanted.container_id)
        with box.in_use(request.is_disconnected):
            return json_reply(asdict(await take_diff(box.sandbox, wanted.cwd or None)))

    async def _read(self, request: Request) -> Response:
        box, path = self._file(request)
        with box.in_use(request.is_disconnected):
            try:
                content = await box.sandbox.read(path)
            except OSError as error:
                return _file_error(error)
        return Response(content, media_type="application/octet-stream")

    async def _write(self, request: Request) -> Response:
        box, path = self._file(request)
        digits = request.headers.get(api.FILE_MODE, "644")
        if not 0 < len(digits) <= 4 or set(digits) - set("01234567"):
            raise BadRequest(f"header `{api.FILE_MODE}` is {digits[:20]!r}; octal digits are needed, as 644")
        with box.in_use(request.is_disconnected):
            content = await read_body(request, _FILE)
            try:
                await box.sandbox.write(path, content, mode=int(digits, 8))
            except OSError as error:
                return _file_error(error)
        return json_reply({"ok": True})

    def _file(self, request: Request) -> tuple[NodeBox, str]:
        query = request.query_params
        self._lease_token(request)
        for name in ("container_id", "path"):
            if not query.get(name) or "\0" in query[name]:
                raise BadRequest(f"`{name}` is missing from the query; give `?container_id=ID&path=PATH`")
        return self._box(request, query["container_id"]), query["path"]

    # --- the node -----------------------------------------------------------------------------

    async def _healthz(self, request: Request) -> Response:
        """Open to everybody: load balancers and service managers have no token."""
        health = await self._node.health()
        known = {"ok": health.ok, "running_containers": str(len(self._node.boxes.open))}
        return json_reply(known if health.ok else {**known, "error": health.reason})

    async def _status(self, request: Request) -> Response:
        self._only_node_token(request)
        boxes = self._node.status()
        return json_reply({"active_containers": len(boxes), "containers": boxes})

    async def _images(self, request: Request) -> Response:
        self._only_node_token(request)
        names = await self._node.images()
        return json_reply({"images": names, "count": len(names)})

    async def _text(self, request: Request) -> Response:
        self._only_node_token(request)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    # --- parts --------------------------------------------------------------------------------

    def _job(
        self,
        request: Request,
        answers: Answers,
        body: bytes,
        work: Callable[[Emit], Coroutine[None, None, bytes]],
        *,
        failures: bool = True,
    ) -> Job:
        """The job of the request's idempotency key: the one that runs or has run, else a new one."""
        key = idempotency_key(request)
        if key and (known := answers.find(key, body)):
            return known
        self._node.check_working()
        job = self._node.track(Job(work))
        if key:
            answers.keep(key, body, job, failures=failures)
        return job

    def _log(self, what: str, box: NodeBox, command: str, *, code: int = 0, seconds: float) -> None:
        self._audit.write(what, box=box.id, lease=box.lease_id, command=command, code=code, seconds=seconds)


async def _events(box: NodeBox, job: Job, listener: Listener, request: Request) -> AsyncIterator[bytes]:
    """The lines of a streamed command: its output in base64, then its result or what went wrong."""
    with box.in_use(request.is_disconnected):
        async for chunk in listener:
            yield b'{"output":"%s"}\n' % base64.b64encode(chunk)
        try:
            yield b'{"result":%s}\n' % await job.answer()
        except NodeError as error:
            yield json.dumps({"error": str(error), "status": error.status}).encode() + b"\n"
        except Exception:
            _LOG.exception("a streamed command failed")
            yield b'{"error":"%s","status":500}\n' % _MISTAKE.encode()


def _exec_answer(done: Exec, timeout: float) -> dict[str, object]:
    """A command's result. A timeout is told in words too, as this protocol has always done."""
    note = f"Command timed out after {timeout:g}s" if done.timed_out else ""
    if note and done.output and not done.output.endswith("\n"):
        note = f"\n{note}"
    return {
        "ok": True,
        "returncode": api.TIMED_OUT if done.timed_out else done.code,
        "output": done.output + note,
        "timed_out": done.timed_out,
        "omitted": done.omitted,
        "seconds": round(done.seconds, 6),
        "noted": len(note),
    }


def _created(box: NodeBox) -> bytes:
    return json.dumps({"ok": True, "container_id": box.id, "name": box.name}).encode()


def _file_error(error: OSError) -> Response:
    reason = error.strerror or str(error)
    return json_reply({"error": f"the file cannot be used: {reason}", "errno": error.errno}, 422)
