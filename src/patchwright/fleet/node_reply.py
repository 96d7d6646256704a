"""What a node answers, read by its clients: nothing in it is trusted to be there, or to be what it should."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchwright.fleet.api import NodeError
from patchwright.types import Exec

__all__ = [
    "Created",
    "Diff",
    "Reply",
    "Verdict",
    "checked",
    "field",
    "read_created",
    "read_event",
    "read_exec",
]

_KILLED = 124
"""`Exec.code` of a command whose time was up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Created:
    """A new box. Example: `Created(container_id="1f0c...", name="swe-1f0c")`"""

    container_id: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """What changed in a box's repository; `error` is git's own words when `returncode` is not 0."""

    patch: str
    returncode: int
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What `evaluate` found; `error` says why it is not resolved although no test failed."""

    resolved: bool
    returncode: int = 0
    output: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """An answer as it came, whatever its status."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> dict[str, Any]:
        """The body as an object; empty when it is none."""
        try:
            data = json.loads(self.body)
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}


def checked(reply: Reply, path: str = "", *, of_lease: bool = False) -> Reply:
    """The reply, if it is a good one; else its sentence as NodeError, or OSError for a file.

    The token `of_lease` was good once: a node that does not know it has been started again.
    """
    if reply.status < 400:
        return reply
    if reply.status == 401 and of_lease:
        raise NodeError("the lease's box died with its node, which was started again; allocate another", 410)
    data = reply.json()
    if reply.status == 422 and isinstance(data.get("errno"), int):
        raise OSError(data["errno"], str(data.get("error", "")), path)
    raise NodeError(str(data.get("error") or f"the node answered HTTP {reply.status}"), reply.status)


def field(reply: Reply, name: str, kind: type[Any]) -> Any:
    """A field of the answer. Raises NodeError when it is missing or of another kind."""
    value = reply.json().get(name)
    if not isinstance(value, kind):
        raise NodeError(f"the node's answer has no `{name}`; is there a node at this address?", reply.status)
    return value


def read_created(reply: Reply) -> Created:
    """A new box. Raises NodeError when the answer is none."""
    return Created(container_id=field(reply, "container_id", str), name=str(reply.json().get("name", "")))


def read_exec(data: Mapping[str, Any]) -> Exec:
    """A result as the sandbox had it: without the node's own words about a timeout. Raises NodeError."""
    output, code = data.get("output"), data.get("returncode")
    if not isinstance(output, str) or not isinstance(code, int):
        raise NodeError("the node's answer is no command's result; is there a node at this address?")
    timed_out = bool(data.get("timed_out"))
    return Exec(
        code=_KILLED if timed_out else code,
        output=output[: len(output) - int(data.get("noted", 0))],
        timed_out=timed_out,
        omitted=int(data.get("omitted", 0)),
        seconds=float(data.get("seconds", 0.0)),
    )


def read_event(line: bytes) -> dict[str, Any]:
    """One line of a streamed command. Raises NodeError."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise NodeError("the node streams what is not JSON")
    return event
