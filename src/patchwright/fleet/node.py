"""One node: makes boxes, lends them, and takes them back. No HTTP in here; that is `node_server.py`.

Only boxes that the node made can be touched. A box lives until it is destroyed, its lease is closed, its
time without use is over, or the node ends; it leaves the books only when it is really gone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from patchwright.errors import ConfigError, InfraError, PatchwrightError, SandboxError
from patchwright.fleet.answers import Job
from patchwright.fleet.api import CreateRequest, EvaluateRequest, ExecRequest, ForkRequest, NodeError
from patchwright.fleet.boxes import Boxes, NodeBox, digest
from patchwright.fleet.evaluate import Apply, Decide, Evaluation, evaluate
from patchwright.fleet.leases import Fences
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.types import Exec, Limits

__all__ = ["Health", "Machinery", "Node"]

_HEALTHY_FOR = 5.0
"""Seconds one look at the machinery is believed."""
_PROBE = 10.0
"""Seconds the machinery has to answer."""
_FORK = 120.0
"""Seconds a fork may take."""
_ROUND = 1.0
"""Seconds between two looks for boxes whose time is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machinery:
    """What a node is made of; injected, for a node knows neither Docker nor graders."""

    backend: SandboxBackend
    probe: Callable[[], Awaitable[str | None]]
    """None when boxes can be made now, else one sentence that says why not."""
    images: Callable[[], Awaitable[list[str]]]
    """Names of the images that are here."""
    apply: Apply
    """Applies a patch as the graders do."""
    decide: Decide
    """Whether the tests in an output passed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Whether boxes can be made; `reason` says why not."""

    ok: bool
    reason: str = ""


class Node:
    """The books of a node and what can be done with its boxes. Methods raise NodeError with an HTTP status.

    Example::

        node = Node(machinery, max_boxes=64)
        box = await node.create(CreateRequest(image="host"))
        done = await node.exec(box, ExecRequest(container_id=box.id, command="true"))
        await node.drain(grace=10)
    """

    def __init__(self, machinery: Machinery, *, max_boxes: int = 64, ttl: float = math.inf) -> None:
        """`ttl` (seconds without use) is that of boxes which are made without one."""
        self.boxes = Boxes()
        self.draining = False
        self.jobs: set[asyncio.Task[bytes]] = set()
        """Commands that run."""
        self._machinery = machinery
        self._max_boxes = max_boxes
        self._ttl = ttl
        self._fences = Fences()
        self._opening = 0
        self._health = Health(ok=False, reason="not looked yet")
        self._looked = -math.inf
        self._looking = asyncio.Lock()

    # --- boxes --------------------------------------------------------------------------------

    async def create(self, request: CreateRequest) -> NodeBox:
        """A new box. 400 an impossible image or workdir, 409 a stale fence, 503 full or draining."""
        ticket = self._fences.admit(request.lease_id, request.fence) if request.lease_id else 0
        limits = {name: value for name, value in request.limits if value is not None}
        spec = BoxSpec(
            image=request.image,
            workdir=request.cwd,
            archive=request.archive,
            env=request.env,
            limits=Limits(**limits),
        )
        sandbox = await self._make(lambda: self._machinery.backend.open(spec), request.timeout)
        box = NodeBox(
            sandbox=sandbox,
            image=request.image,
            lease_id=request.lease_id,
            owner=digest(request.lease_token),
            ttl=self._ttl if request.ttl is None else request.ttl,
        )
        return await self._enter(box, ticket)

    async def fork(self, parent: NodeBox, request: ForkRequest) -> NodeBox:
        """A copy of a box, its files at this moment; what the request leaves out is inherited."""
        lease_id = request.lease_id or parent.lease_id
        ticket = self._fences.admit(lease_id, request.fence) if lease_id else 0
        sandbox = await self._make(parent.sandbox.fork, _FORK)
        box = NodeBox(
            sandbox=sandbox,
            image=parent.image,
            lease_id=lease_id,
            owner=digest(request.lease_token) or parent.owner,
            ttl=parent.ttl if request.ttl is None else request.ttl,
        )
        return await self._enter(box, ticket)

    async def destroy(self, id: str) -> None:
        """End a box; fine when it is gone already. 404 for one that never was, 500 while it lives on."""
        self.boxes.check_known(id)
        box = self.boxes.open.get(id)
        if box is not None:
            await self._close(box)

    def renew(self, leases: Mapping[str, float]) -> list[str]:
        """The boxes of these leases are in use for so many seconds; the leases that have none here."""
        unknown = []
        for lease_id, ttl in leases.items():
            boxes = self.boxes.of_lease(lease_id)
            for box in boxes:
                box.touch(ttl)
            if not boxes:
                unknown.append(lease_id)
        return unknown

    async def close_lease(self, lease_id: str, fence: int) -> None:
        """End every box of a lease, and those being made. 409 under a stale fence."""
        self._fences.close(lease_id, fence)
        await asyncio.gather(*(self._close(box) for box in self.boxes.of_lease(lease_id)))

    # --- work ---------------------------------------------------------------------------------

    async def exec(
        self, box: NodeBox, request: ExecRequest, on_output: Callable[[bytes], None] | None = None
    ) -> Exec:
        """Run a command. 410 when the box was closed meanwhile, 500 when it died."""
        try:
            return await box.sandbox.exec(
                request.command,
                timeout=request.timeout,
                cwd=request.cwd or None,
                env=request.env,
                stdin=request.stdin,
                on_output=on_output,
            )
        except SandboxError as error:
            raise self._explain(box, error) from error

    async def evaluate(self, box: NodeBox, request: EvaluateRequest) -> Evaluation:
        """The verdict on a patch. 400 unknown parser or rules; 500 when no test reported, or the box died."""

        def decide(log: str) -> bool | None:
            named = (request.fail_to_pass, request.pass_to_pass)
            return self._machinery.decide(log, request.parser, request.rules, *named)

        try:
            decide("")  # unknown parsers and rules are told before the script runs
            return await evaluate(
                box.sandbox,
                request.patch,
                request.eval_script,
                cwd=request.cwd or None,
                timeout=request.timeout,
                apply=self._machinery.apply,
                decide=decide,
            )
        except ConfigError as error:
            raise NodeError(str(error), 400) from error
        except PatchwrightError as error:
            raise self._explain(box, error) from error

    def track(self, job: Job) -> Job:
        """Count a command among those that run, until it ends."""
        self.jobs.add(job.task)
        job.task.add_done_callback(self.jobs.discard)
        return job

    def check_working(self) -> None:
        """Raises NodeError (503) when the node takes no more work."""
        if self.draining:
            raise NodeError("this node is draining; use another one", 503)

    # --- life ---------------------------------------------------------------------------------

    async def health(self) -> Health:
        """Whether boxes can be made; looked at afresh every 5 seconds at most."""
        async with self._looking:
            if time.monotonic() - self._looked > _HEALTHY_FOR:
                self._health = await self._look()
                self._looked = time.monotonic()
        return Health(ok=False, reason="draining") if self.draining else self._health

    async def images(self) -> list[str]:
        """Names of the images that are here. 500 when the engine does not answer."""
        try:
            return await self._machinery.images()
        except SandboxError as error:
            raise NodeError(str(error), 500) from error

    def status(self) -> list[dict[str, object]]:
        """The open boxes; `idle` and `ttl` in seconds, `ttl` null for boxes that stay until destroyed."""
        now = time.monotonic()
        return [
            {
                "container_id": box.id,
                "name": box.name,
                "image": box.image,
                "created": box.created,
                "lease_id": box.lease_id,
                "idle": 0.0 if box.clients else round(now - box.used, 3),
                "ttl": None if math.isinf(box.ttl) else box.ttl,
            }
            for box in self.boxes.open.values()
        ]

    async def reap_forever(self) -> None:
        """Close the boxes whose time is over, again and again, and those that could not be closed."""
        while True:
            await asyncio.sleep(_ROUND)
            now = time.monotonic()
            late = [box for box in self.boxes.open.values() if box.lingers or box.deadline <= now]
            await asyncio.gather(*(self._reap(box) for box in late), return_exceptions=True)

    async def drain(self, grace: float) -> None:
        """No new work; what runs has `grace` seconds to end; then every box is closed, and the backend."""
        self.draining = True
        if self.jobs:
            await asyncio.wait(set(self.jobs), timeout=grace)
        closings = (self._close(box) for box in tuple(self.boxes.open.values()))
        await asyncio.gather(*closings, return_exceptions=True)
        await self._machinery.backend.close()

    # --- parts --------------------------------------------------------------------------------

    async def _make(self, make: Callable[[], Awaitable[Sandbox]], timeout: float) -> Sandbox:
        """A new sandbox, within the cap and `timeout`."""
        self.check_working()
        if len(self.boxes.open) + self._opening >= self._max_boxes:
            raise NodeError(f"this node is full: it has {self._max_boxes} boxes; try again later", 503)
        self._opening += 1
        try:
            async with asyncio.timeout(timeout):
                return await make()
        except TimeoutError:
            raise NodeError(f"the box did not open within {timeout:g} s", 500) from None
        except ConfigError as error:
            raise NodeError(str(error), 400) from error
        except InfraError as error:
            raise NodeError(str(error), 500) from error
        finally:
            self._opening -= 1

    async def _enter(self, box: NodeBox, ticket: int) -> NodeBox:
        """Write a box into the books; it ends at once if its lease or the node did meanwhile."""
        box.touch()
        self.boxes.add(box)
        try:
            self._fences.confirm(box.lease_id, ticket)
            self.check_working()
        except NodeError:
            await self._close(box)
            raise
        return box

    async def _reap(self, box: NodeBox) -> None:
        if box.lingers:
            await self._close(box)
        elif not await box.abandoned():
            box.touch()
        elif box.deadline <= time.monotonic():
            await self._close(box)

    async def _close(self, box: NodeBox) -> None:
        """End a box, once however many ask. Raises NodeError (500) when it could not be ended."""
        if box.closing is None or box.lingers:
            box.closing = asyncio.create_task(box.sandbox.close())
        try:
            await asyncio.shield(box.closing)
        except (InfraError, OSError) as error:
            raise NodeError(f"container {box.id} could not be closed: {error}", 500) from error
        self.boxes.remove(box)

    def _explain(self, box: NodeBox, error: PatchwrightError) -> NodeError:
        if box.closing is not None or box.id not in self.boxes.open:
            return NodeError(f"container {box.id} was closed during the command", 410)
        return NodeError(str(error), 500)

    async def _look(self) -> Health:
        try:
            async with asyncio.timeout(_PROBE):
                reason = await self._machinery.probe()
        except TimeoutError:
            reason = f"no answer within {_PROBE:.0f} s"
        except PatchwrightError as error:
            reason = str(error)
        return Health(ok=not reason, reason=reason or "")
