"""Nodes without boxes: they answer as nodes do, in this process, as slowly and as badly as they are told.

For tests and benchmarks of the pool: `Pool(urls, SimulatedNodes().connect, ...)` instead of real nodes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from patchwright.fleet import api
from patchwright.fleet.link import Streamed
from patchwright.fleet.node_reply import Reply

__all__ = ["SimulatedBox", "SimulatedNode", "SimulatedNodes"]


@dataclass(slots=True)
class SimulatedBox:
    """What a simulated node keeps of a box."""

    lease_id: str
    image: str
    ttl: float
    deadline: float


class SimulatedNode:
    """One node. Its attributes may be changed at any time.

    Example: `node = SimulatedNode(); node.down = True`, and nobody reaches it.
    """

    def __init__(
        self,
        *,
        create_seconds: float = 0.0,
        work_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.create_seconds = create_seconds
        """How long a box takes to make."""
        self.work_seconds = work_seconds
        """How long everything else takes."""
        self.down = False
        """It cannot be reached."""
        self.hangs = False
        """It takes requests and answers none."""
        self.healthy = True
        """What it says of itself."""
        self.fails = False
        """It makes no boxes."""
        self.bad_images: frozenset[str] = frozenset()
        """Images it cannot make boxes of."""
        self.foreign_images: frozenset[str] = frozenset()
        """Images that it does not have and refuses to make boxes of."""
        self.images: tuple[str, ...] = ("host",)
        self.boxes: dict[str, SimulatedBox] = {}
        self.creates = 0
        """Times it was asked for a box."""
        self.ran: Counter[str] = Counter()
        """Command -> times it was run."""
        self._clock = clock
        self._fences: dict[str, int] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._routes: dict[str, Callable[[dict[str, Any], str], Any]] = {
            api.CREATE: self._create,
            api.FORK: self._fork,
            api.EXEC: self._exec,
            api.DIFF: self._diff,
            api.RENEW: self._renew,
            api.CLOSE_LEASE: self._close_lease,
            api.HEALTH: lambda fields, key: {"ok": self.healthy, "running_containers": str(len(self.boxes))},
            api.IMAGES: lambda fields, key: {"images": list(self.images), "count": len(self.images)},
            api.STATUS: self._status,
        }

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        key: str = "",
        token: str = "",
        timeout: float = 60.0,
        retry: bool = True,
    ) -> Reply:
        """Answer as a node would. Raises NodeError when it is down."""
        self._check_up()
        if self.hangs:
            await asyncio.sleep(timeout)
            raise api.NodeError("the simulated node hangs")
        slow = self.create_seconds if path in (api.CREATE, api.FORK) else self.work_seconds
        await asyncio.sleep(slow)
        self._reap()
        try:
            status, content = 200, self._routes[path](json.loads(body or b"{}"), key)
        except api.NodeError as error:
            status, content = error.status, {"error": str(error)}
        self._check_up()
        return Reply(
            status=status, body=json.dumps(content).encode(), headers={"content-type": "application/json"}
        )

    @asynccontextmanager
    async def stream(
        self, path: str, body: bytes, *, key: str, token: str = "", timeout: float = 60.0
    ) -> AsyncIterator[Streamed]:
        """Run a command, its output in one piece. Raises NodeError when it is down."""
        reply = await self.request("POST", api.EXEC, body=body, key=key, timeout=timeout)
        yield Streamed(status=reply.status, headers=reply.headers, chunks=_streamed(reply))

    async def close(self) -> None:
        """Nothing to drop."""

    def _check_up(self) -> None:
        if self.down:
            raise api.NodeError("the simulated node is down")

    def _reap(self) -> None:
        now = self._clock()
        self.boxes = {id: box for id, box in self.boxes.items() if box.deadline > now}

    def _create(self, fields: dict[str, Any], key: str) -> dict[str, Any]:
        self.creates += 1
        if key in self._answers:
            return self._answers[key]
        lease_id, fence = fields.get("lease_id", ""), fields.get("fence", 0)
        if fence <= self._fences.get(lease_id, -1):
            raise api.NodeError("the fence is stale", 409)
        if self.fails or fields["image"] in self.bad_images:
            raise api.NodeError("the simulated node makes no such box", 500)
        if fields["image"] in self.foreign_images:
            raise api.NodeError("the simulated node has no such image", 400)
        container, ttl = secrets.token_hex(16), fields.get("ttl") or float("inf")
        self.boxes[container] = SimulatedBox(lease_id, fields["image"], ttl, self._clock() + ttl)
        answer = {"ok": True, "container_id": container, "name": f"swe-{container[:12]}"}
        return self._answers.setdefault(key or container, answer)

    def _fork(self, fields: dict[str, Any], key: str) -> dict[str, Any]:
        return self._create({**fields, "image": self._box(fields).image}, key)

    def _exec(self, fields: dict[str, Any], key: str) -> dict[str, Any]:
        self._box(fields)
        if key not in self._answers:
            self.ran[fields["command"]] += 1
            self._answers[key or secrets.token_hex(8)] = {}
        return {
            "ok": True,
            "returncode": 0,
            "output": fields["command"],
            "timed_out": False,
            "omitted": 0,
            "seconds": 0.0,
        }

    def _diff(self, fields: dict[str, Any], key: str) -> dict[str, Any]:
        self._box(fields)
        return {"ok": True, "patch": "", "returncode": 0, "error": ""}

    def _renew(self, fields: dict[str, Any], key: str) -> dict[str, Any]:
        leases = fields["leases"]
        for box in self.boxes.values():
            if box.lease_id in leases:
                box.deadline = self._clock() + leases[box.lease_id]
        known = {box.lease_id for box in self.boxes.values()}
        return {"unknown": [lease_id for lease_id in leases if lease_id not in known]}

    def _close_lease(self, fields: dict[str, Any], key: str) -> dict[str, Any]:
        lease_id = fields["lease_id"]
        self._fences[lease_id] = max(fields["fence"], self._fences.get(lease_id, -1))
        self.boxes = {id: box for id, box in self.boxes.items() if box.lease_id != lease_id}
        return {"ok": True}

    def _status(self, fields: dict[str, Any], key: str) -> dict[str, Any]:
        boxes = [
            {"container_id": id, "image": x.image, "lease_id": x.lease_id} for id, x in self.boxes.items()
        ]
        return {"active_containers": len(boxes), "containers": boxes}

    def _box(self, fields: dict[str, Any]) -> SimulatedBox:
        box = self.boxes.get(fields["container_id"])
        if box is None:
            raise api.NodeError("there is no such box", 404)
        box.deadline = self._clock() + box.ttl
        return box


async def _streamed(reply: Reply) -> AsyncIterator[bytes]:
    if reply.status != 200:
        yield reply.body
        return
    yield b'{"output":"%s"}\n' % base64.b64encode(reply.json()["output"].encode())
    yield b'{"result":%s}\n' % reply.body


class SimulatedNodes(dict[str, SimulatedNode]):
    """Address -> node.

    Example: `nodes = SimulatedNodes.many(64); Pool(list(nodes), nodes.connect, Journal())`
    """

    @classmethod
    def many(cls, count: int, *, create_seconds: float = 0.0, work_seconds: float = 0.0) -> SimulatedNodes:
        """As many nodes, all alike."""
        return cls(
            {
                f"http://node-{number}:5000": SimulatedNode(
                    create_seconds=create_seconds, work_seconds=work_seconds
                )
                for number in range(count)
            }
        )

    def connect(self, url: str) -> SimulatedNode:
        """The node at an address: what a `Pool` is given instead of `NodeClient`."""
        return self[url]
