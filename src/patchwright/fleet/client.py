"""The client of a pool: leases, and what is done in their boxes.

Leases are asked for and closed at the pool; what is done in a box goes to its node directly, with the
lease's own token, or through the pool where the nodes cannot be reached. A lost connection is made again
with the same idempotency key, so that a command never runs twice.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from patchwright.errors import SandboxError
from patchwright.fleet import api, pool_api
from patchwright.fleet.node_client import NodeClient
from patchwright.fleet.node_reply import Diff, Reply, Verdict
from patchwright.fleet.pool_api import PoolError
from patchwright.types import Exec, Limits

__all__ = ["PoolClient", "RemoteLease"]

_BEATS = 3
"""Heartbeats in one term of a lease."""
_NODE_SECONDS = 240.0
"""How long making a box may take once it is its turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteLease:
    """A box that was lent. Example: `lease = await client.allocate("host")`"""

    lease_id: str
    container_id: str
    node_url: str
    token: str
    """Opens this lease's boxes at the node, and nothing else."""
    fence: int
    ttl: float
    """Seconds it lives without use."""


class PoolClient:
    """Talks to one pool and to its nodes. Every method raises PoolError or NodeError (SandboxErrors with the
    HTTP `status`). Leases are kept alive in the background until they are closed.

    Example::

        async with PoolClient("http://127.0.0.1:18090", token) as client:
            lease = await client.allocate("host")
            done = await client.exec(lease, "git status")
            await client.close(lease)
    """

    def __init__(
        self, url: str, token: str = "", *, direct: bool = True, patience: float = 30.0,
        verify: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        """`direct` False sends everything through the pool. Connection errors are retried for `patience`
        seconds."""
        self._pool = NodeClient(url, token, patience=patience, verify=verify)
        self._through_pool = _ThroughPool(url, token, patience=patience, verify=verify)
        self._direct = direct
        self._patience = patience
        self._verify = verify
        self._nodes: dict[str, NodeClient] = {}
        self._beats: dict[str, asyncio.Task[None]] = {}
        self._late: set[asyncio.Task[None]] = set()
        """Takings-back of what nobody waited for."""

    # --- leases -------------------------------------------------------------------------------

    async def allocate(
        self,
        image: str,
        *,
        instance_id: str = "",
        cwd: str = "/testbed",
        env: Mapping[str, str] | None = None,
        archive: bytes = b"",
        limits: Limits | None = None,
        ttl: float | None = None,
        wait: float = 600.0,
    ) -> RemoteLease:
        """A lease on a new box; waits up to `wait` seconds while every node is full."""
        fields: dict[str, Any] = {
            "image": image,
            "instance_id": instance_id,
            "cwd": cwd,
            "env": dict(env or {}),
        }
        fields |= {"archive": base64.b64encode(archive).decode(), "limits": _limits(limits)}
        return await self._lease(pool_api.ALLOCATE, fields, ttl, wait)

    async def fork(self, lease: RemoteLease, *, ttl: float | None = None, wait: float = 600.0) -> RemoteLease:
        """A lease on a copy of a lease's box, at the same node."""
        return await self._lease(pool_api.FORK, {"lease_id": lease.lease_id}, ttl, wait)

    async def heartbeat(self, lease: RemoteLease) -> None:
        """A new term for a lease. Done in the background already."""
        await self._ask(pool_api.HEARTBEAT, {"lease_id": lease.lease_id})

    async def close(self, lease: RemoteLease) -> None:
        """Give a box back. Closing twice is allowed."""
        beat = self._beats.pop(lease.lease_id, None)
        if beat is not None:
            beat.cancel()
        await self._ask(pool_api.CLOSE, {"lease_id": lease.lease_id})

    async def status(self) -> dict[str, Any]:
        """The pool's nodes and leases."""
        return _content(await self._pool.request("GET", pool_api.STATUS))

    # --- boxes --------------------------------------------------------------------------------

    async def exec(
        self,
        lease: RemoteLease,
        command: str,
        *,
        timeout: float = 180.0,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        on_output: Callable[[bytes], None] | None = None,
    ) -> Exec:
        """Run a command. Cancelling it kills the command."""
        node, box, token = self._route(lease)
        key = secrets.token_hex(16)
        try:
            return await node.exec(
                box, command, timeout=timeout, cwd=cwd, env=env, stdin=stdin, key=key, token=token,
                on_output=on_output,
            )  # fmt: skip
        except SandboxError:
            raise
        except BaseException:  # cancelled here, or `on_output` wants no more
            await asyncio.shield(self._cancel(node, box, key, token))
            raise

    async def diff(self, lease: RemoteLease, *, cwd: str = "") -> Diff:
        """What changed in the box's repository."""
        node, box, token = self._route(lease)
        return await node.diff(box, cwd=cwd, token=token)

    async def evaluate(
        self,
        lease: RemoteLease,
        patch: str,
        eval_script: str,
        *,
        cwd: str = "",
        timeout: float = 3600.0,
        parser: str = "pytest",
        rules: str = "strict",
        fail_to_pass: tuple[str, ...] = (),
        pass_to_pass: tuple[str, ...] = (),
    ) -> Verdict:
        """Reset the box's repository, apply a patch, run a script and read its tests."""
        node, box, token = self._route(lease)
        return await node.evaluate(
            box, patch, eval_script, cwd=cwd, timeout=timeout, parser=parser, rules=rules,
            fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass, token=token,
        )  # fmt: skip

    async def read(self, lease: RemoteLease, path: str) -> bytes:
        """The content of a file. Raises OSError as `Sandbox.read` does."""
        node, box, token = self._route(lease)
        return await node.read(box, path, token=token)

    async def write(self, lease: RemoteLease, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file. Raises OSError as `Sandbox.write` does."""
        node, box, token = self._route(lease)
        await node.write(box, path, data, mode=mode, token=token)

    # --- life ---------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Stop the heartbeats and drop the connections; leases that are not closed end with their term."""
        for beat in self._beats.values():
            beat.cancel()
        await asyncio.gather(*self._beats.values(), *self._late, return_exceptions=True)
        self._beats.clear()
        for client in (self._pool, self._through_pool, *self._nodes.values()):
            await client.close()

    async def __aenter__(self) -> Self:
        """Ready as it is."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """`aclose`."""
        await self.aclose()

    # --- parts --------------------------------------------------------------------------------

    async def _lease(self, path: str, fields: dict[str, Any], ttl: float | None, wait: float) -> RemoteLease:
        fields |= {"wait": wait} if ttl is None else {"wait": wait, "ttl": ttl}
        key = secrets.token_hex(16)
        try:
            granted = await self._ask(path, fields, key=key, timeout=wait + _NODE_SECONDS)
        except asyncio.CancelledError:
            self._late = {task for task in self._late if not task.done()}
            self._late.add(asyncio.create_task(self._take_back(path, {**fields, "wait": 0}, key)))
            raise
        lease = RemoteLease(**{name: granted[name] for name in RemoteLease.__slots__})
        self._beats[lease.lease_id] = asyncio.create_task(self._keep_alive(lease))
        return lease

    async def _keep_alive(self, lease: RemoteLease) -> None:
        while True:
            await asyncio.sleep(lease.ttl / _BEATS)
            try:
                await self.heartbeat(lease)
            except PoolError as error:
                if error.status in (404, 410):
                    return
            except api.NodeError:  # the pool is away: it may come back within the term
                continue

    async def _cancel(self, node: NodeClient, box: str, key: str, token: str) -> None:
        try:
            await node.cancel(box, key, token=token)
        except SandboxError:  # the box is gone, and the command with it
            pass

    async def _take_back(self, path: str, fields: dict[str, Any], key: str) -> None:
        """Close what was granted to somebody who did not wait for it: the same key names the same lease."""
        try:
            granted = await self._ask(path, fields, key=key, timeout=_NODE_SECONDS)
            await self._ask(pool_api.CLOSE, {"lease_id": granted["lease_id"]})
        except SandboxError:  # it left the queue, or its term ends it
            pass

    async def _ask(
        self, path: str, fields: dict[str, Any], *, key: str = "", timeout: float = 60.0
    ) -> dict[str, Any]:
        """POST to the pool."""
        body = json.dumps(fields).encode()
        return _content(await self._pool.request("POST", path, body=body, key=key, timeout=timeout))

    def _route(self, lease: RemoteLease) -> tuple[NodeClient, str, str]:
        """Who to talk to about a box, its name there, and the token; the pool's own when it is empty."""
        if not self._direct:
            return self._through_pool, lease.lease_id, ""
        node = self._nodes.get(lease.node_url)
        if node is None:
            node = NodeClient(lease.node_url, patience=self._patience, verify=self._verify)
            self._nodes[lease.node_url] = node
        return node, lease.container_id, lease.token


class _ThroughPool(NodeClient):
    """Speaks to a pool as to a node: paths and the name of the box are the pool's."""

    _box = "lease_id"
    _without = "/container"


def _limits(limits: Limits | None) -> dict[str, Any]:
    """The bounds a box has; the others are the caller's affair."""
    known = asdict(limits) if limits else {}
    return {name: known[name] for name in api.BoxLimits.model_fields if name in known}


def _content(reply: Reply) -> dict[str, Any]:
    """The JSON object of the pool's answer. Raises PoolError with its own words."""
    try:
        content = json.loads(reply.body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise PoolError(
            f"the pool's answer is no JSON object (status {reply.status}); is it a pool?", reply.status
        )
    if reply.status != 200:
        raise PoolError(str(content.get("error", f"the pool answered {reply.status}")), reply.status)
    return content
