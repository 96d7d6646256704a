"""What a pool says and hears: paths, request bodies, refusals. Shared by server and client.

Paths and fields are those of swe-rl's pool server, whose clients never send the optional ones that came on
top: what a box is made of, a term, a deadline for waiting. Bodies that go on to a node are the node's
(`api.py`) with `lease_id` in the place of `container_id`.

Status codes: 400 a wrong field, 401 no or a wrong token, 404 a lease that was never given, 409 a key that
was used for something else, 410 a lease that is over, 413 too large, 500 the node or its box failed, 503
nothing free before the deadline, too many wait or are connected, or the journal cannot be written: try again
later. Every answer has `ok`; a refusal is `{"ok": false, "error": sentence}`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from patchwright.errors import SandboxError
from patchwright.fleet.choose import Want

__all__ = [
    "ALLOCATE",
    "CANCEL",
    "CLOSE",
    "DEFAULT_POOL_PORT",
    "DIFF",
    "EVALUATE",
    "EXEC",
    "FILE",
    "FORK",
    "HEALTH",
    "HEARTBEAT",
    "METRICS",
    "NODES",
    "STATUS",
    "STREAM",
    "AllocateRequest",
    "ForkRequest",
    "LeaseRequest",
    "NodeRequest",
    "PoolError",
    "WorkRequest",
]

DEFAULT_POOL_PORT = 18090

ALLOCATE = "/allocate"
FORK = "/fork"
HEARTBEAT = "/heartbeat"
EXEC = "/exec"
STREAM = "/exec/stream"
CANCEL = "/cancel"
DIFF = "/diff"
EVALUATE = "/evaluate"
FILE = "/file"
"""GET reads and PUT writes raw bytes; the query names `lease_id` and `path`."""
CLOSE = "/close"
NODES = "/nodes"
STATUS = "/status"
HEALTH = "/healthz"
METRICS = "/metrics"

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=1024)]


class PoolError(SandboxError):
    """The pool refused, or could not be reached. `status` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _Request(BaseModel):
    """Fields nobody asked for are ignored: the pool server this stands in for did so."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class _Waiting(_Request):
    ttl: Seconds | None = None
    """Seconds the lease lives without use; the pool's own when left out."""
    wait: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0
    """Seconds to wait in the queue while every node is full."""


class AllocateRequest(_Waiting):
    """POST `/allocate`: a box on some node. Answer: `{lease_id, container_id, node_url, token, fence, ttl}`.

    What the box is made of goes to the node as it is: the node checks it.
    """

    image: Name
    """What the box is made from."""
    instance_id: str = ""
    """For people; nothing is decided by it."""
    cwd: Name = "/testbed"
    """Default cwd of commands."""
    env: dict[str, Any] = {}
    """Environment of every command."""
    archive: str = ""
    """A tar in base64, unpacked into `cwd`."""
    limits: dict[str, Any] = {}
    """Bounds of the box."""

    @property
    def box(self) -> dict[str, Any]:
        """The part of it that is for the node."""
        return self.model_dump(include={"image", "cwd", "env", "archive", "limits"})

    @property
    def want(self) -> Want:
        """For the choice of the node: two boxes that differ in anything are of different kinds."""
        special = (
            ""
            if self.plain
            else hashlib.sha256(json.dumps(self.box, sort_keys=True).encode()).hexdigest()[:12]
        )
        return Want(self.image, f"{self.image} {special}".rstrip())

    @property
    def plain(self) -> bool:
        """Nothing about the box is special but its image: a warm one will do."""
        return self.cwd == "/testbed" and not (self.env or self.archive or self.limits)


class LeaseRequest(_Request):
    """POST `/heartbeat` and `/close`."""

    lease_id: Name
    """The lease."""


class WorkRequest(LeaseRequest):
    """POST `/exec`, `/exec/stream`, `/cancel`, `/diff`, `/evaluate`: the rest of it goes on to the node."""

    model_config = ConfigDict(extra="allow")


class ForkRequest(LeaseRequest, _Waiting):
    """POST `/fork`: a lease on a copy of the box, at the same node. Answers as `/allocate` does."""


class NodeRequest(_Request):
    """POST `/nodes`: a node joins. DELETE `/nodes`: it gets no new boxes and leaves when it has none."""

    url: Annotated[str, Field(pattern=r"^https?://[^/\s]+/?$")]
    """Its address, `http://HOST:PORT`."""
