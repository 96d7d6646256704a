"""Two ways to lease boxes, as `bench.py` needs them: our client's, and that of swe-rl's client."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Protocol, Self

from patchwright.fleet import api, pool_api
from patchwright.fleet.client import PoolClient, RemoteLease
from patchwright.fleet.node_client import NodeClient
from patchwright.fleet.node_reply import checked, read_exec
from patchwright.fleet.pool_api import PoolError

__all__ = ["Leasing", "OwnLeasing", "SeedLeasing"]

_SECONDS = 600.0
"""How long one request may take."""
_PATIENCE = 1.0


class Leasing(Protocol):
    """A pool in use. What it cannot do raises InfraError."""

    async def allocate(self) -> Any:
        """A lease on a new box."""
        ...

    async def exec(self, lease: Any, command: str) -> None:
        """Run a command, through the pool."""
        ...

    async def exec_direct(self, lease: Any, command: str) -> None:
        """Run a command, straight at the node."""
        ...

    async def fork(self, lease: Any) -> Any:
        """A lease on a copy of a box."""
        ...

    async def close(self, lease: Any) -> None:
        """Give a box back."""
        ...

    async def leases(self) -> int | None:
        """Leases that the pool has; None when it does not say."""
        ...

    async def boxes(self) -> int | None:
        """Boxes at its nodes; None when they do not say."""
        ...


class _Census:
    """A pool and its nodes, asked what they hold: `token` is the pool's, `node_token` its nodes'."""

    def __init__(self, url: str, token: str, node_token: str) -> None:
        self._pool = NodeClient(url, token)
        self._node_token = node_token
        self._nodes: dict[str, NodeClient] = {}

    async def __aenter__(self) -> Self:
        """Nothing is sent."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the connections."""
        for client in (self._pool, *self._nodes.values()):
            await client.close()

    async def leases(self) -> int | None:
        """From the pool's `/status`."""
        total = (await self._status()).get("total_leases")
        return total if isinstance(total, int) else None

    async def boxes(self) -> int | None:
        """From every node's own `/status`."""
        total = 0
        for node in (await self._status()).get("nodes", []):
            try:
                status = await self._node(node["url"]).status()
            except api.NodeError:
                return None
            total += int(status["active_containers"])
        return total

    async def _status(self) -> dict[str, Any]:
        status = (await self._pool.request("GET", pool_api.STATUS)).json().get("pool")
        return status if isinstance(status, dict) else {}

    def _node(self, url: str) -> NodeClient:
        if url not in self._nodes:
            self._nodes[url] = NodeClient(url, self._node_token, patience=_PATIENCE)
        return self._nodes[url]


class OwnLeasing(_Census):
    """Our client with all it does: leases kept alive, idempotency keys, commands through the pool or not.

    Example::

        async with OwnLeasing("http://127.0.0.1:18090", "host", token, node_token) as fleet:
            figures = await bench_leases("ours", fleet)
    """

    def __init__(self, url: str, image: str, token: str, node_token: str) -> None:
        super().__init__(url, token, node_token)
        self._image = image
        self._direct = PoolClient(url, token)
        self._through_pool = PoolClient(url, token, direct=False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the connections."""
        await self._direct.aclose()
        await self._through_pool.aclose()
        await super().__aexit__(kind, error, trace)

    async def allocate(self) -> RemoteLease:
        """As `PoolClient.allocate`."""
        return await self._direct.allocate(self._image)

    async def exec(self, lease: RemoteLease, command: str) -> None:
        """As `PoolClient.exec`, through the pool."""
        await self._through_pool.exec(lease, command)

    async def exec_direct(self, lease: RemoteLease, command: str) -> None:
        """As `PoolClient.exec`."""
        await self._direct.exec(lease, command)

    async def fork(self, lease: RemoteLease) -> RemoteLease:
        """As `PoolClient.fork`."""
        return await self._direct.fork(lease)

    async def close(self, lease: RemoteLease) -> None:
        """As `PoolClient.close`."""
        await self._direct.close(lease)


class SeedLeasing(_Census):
    """The requests of swe-rl's client, and a fork, which other servers refuse; nothing is asked twice.

    Example::

        async with SeedLeasing("http://127.0.0.1:18090", "python:3.12") as fleet:
            figures = await bench_leases("theirs", fleet)
    """

    def __init__(self, url: str, image: str, token: str = "", node_token: str = "") -> None:
        super().__init__(url, token, node_token)
        self._image = image

    async def allocate(self) -> dict[str, Any]:
        """POST `/allocate`."""
        return await _post(self._pool, pool_api.ALLOCATE, {"image": self._image, "instance_id": "bench"})

    async def exec(self, lease: dict[str, Any], command: str) -> None:
        """POST `/exec`."""
        body = {"lease_id": lease["lease_id"], **_command(command)}
        read_exec(await _post(self._pool, pool_api.EXEC, body))

    async def exec_direct(self, lease: dict[str, Any], command: str) -> None:
        """POST `/container/exec` at the lease's node."""
        body = {"container_id": lease["container_id"], **_command(command)}
        node = self._node(lease["node_url"])
        read_exec(await _post(node, api.EXEC, body, str(lease.get("token", ""))))

    async def fork(self, lease: dict[str, Any]) -> dict[str, Any]:
        """POST `/fork`."""
        return await _post(self._pool, pool_api.FORK, {"lease_id": lease["lease_id"]})

    async def close(self, lease: dict[str, Any]) -> None:
        """POST `/close`."""
        await _post(self._pool, pool_api.CLOSE, {"lease_id": lease["lease_id"]})


def _command(command: str) -> dict[str, Any]:
    return {"command": command, "cwd": "/testbed", "timeout": 180, "env": {}}


async def _post(client: NodeClient, path: str, fields: dict[str, Any], token: str = "") -> dict[str, Any]:
    """One POST, once. Raises InfraError unless it went well."""
    body = json.dumps(fields).encode()
    reply = await client.request("POST", path, body=body, token=token, timeout=_SECONDS, retry=False)
    answer = checked(reply).json()
    if answer.get("ok") is not True:
        raise PoolError(f"{client.url}{path} refused: {answer.get('error', 'it does not say why')}")
    return answer
