"""Bodies in and answers out: the part of a node's HTTP that knows nothing of boxes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from patchwright.fleet import api
from patchwright.fleet.api import BadRequest, NodeError

__all__ = ["body_reply", "error_reply", "idempotency_key", "json_reply", "parsed", "read_body"]

M = TypeVar("M", bound=BaseModel)

_THREADED = 2**20
"""A larger body is parsed beside the event loop."""


async def parsed(request: Request, model: type[M], limit: int) -> tuple[M, bytes]:
    """A request's body, as `model` and as it came. Raises BadRequest, NodeError (413)."""
    body = await read_body(request, limit)
    if len(body) > _THREADED:
        return await asyncio.to_thread(api.parse, model, body), body
    return api.parse(model, body), body


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises NodeError (413) when it is larger than `limit` bytes."""
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else 0
    chunks: list[bytes] = []
    if size <= limit:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                break
            chunks.append(chunk)
    if size > limit:
        raise NodeError(f"the body is over {limit // 2**20} MB; this path takes no more", 413)
    return b"".join(chunks)


def idempotency_key(request: Request) -> str:
    """The key a request came with, or an empty text. Raises BadRequest when it is too long."""
    key = request.headers.get(api.IDEMPOTENCY_KEY, "")
    if len(key) > api.KEY_LENGTH:
        raise BadRequest(f"header `{api.IDEMPOTENCY_KEY}` is over {api.KEY_LENGTH} characters")
    return key


def json_reply(data: Mapping[str, object], status: int = 200) -> Response:
    """An answer of JSON; `ok` in it is what swe-rl's clients and its pool go by."""
    return body_reply(json.dumps({"ok": status < 400, **data}).encode(), status)


def body_reply(data: bytes, status: int = 200) -> Response:
    """An answer of JSON that is encoded already."""
    return Response(data, status, media_type="application/json")


def error_reply(status: int, sentence: str) -> Response:
    """A refusal, with the headers that belong to its status."""
    response = json_reply({"error": sentence}, status)
    if status in (401, 413):
        response.headers["connection"] = "close"  # the rest of the body is not read
    if status == 503:
        response.headers["retry-after"] = "1"
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
