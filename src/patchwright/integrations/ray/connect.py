"""The Ray cluster a run is on: connected to, and refused when anybody could run programs on it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import ray

from patchwright.errors import ConfigError, EngineError
from patchwright.recipes.cluster import ClusterConfig

__all__ = ["LostError", "answer", "connected", "other", "refuse_strangers"]


_PATIENCE = 10.0
"""Seconds a connection may take."""


class LostError(EngineError):
    """An actor is gone, or its machine; Ray may be starting it again."""


@asynccontextmanager
async def connected(cluster: ClusterConfig) -> AsyncIterator[str]:
    """Join the cluster at `cluster.address`; yields the name of this job, which no other has.

    Raises ConfigError when there is none, when its versions are not ours, or when it lets everybody in.
    """
    _refuse_absent(cluster.address)
    try:
        ray.init(
            address=cluster.address, log_to_driver=False, logging_level=logging.ERROR, namespace="patchwright"
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"no Ray cluster can be joined at `cluster.address` {cluster.address!r} ({reason}); start one "
            "with `ray start --head`, or give its address as HOST:PORT"
        ) from error
    try:
        if not cluster.open_network:
            nodes = ray.nodes()  # type: ignore[no-untyped-call]
            refuse_strangers([str(node["NodeManagerAddress"]) for node in nodes])
        yield f"job-{ray.get_runtime_context().get_job_id()}-{os.getpid()}"
    finally:
        ray.shutdown()


def _refuse_absent(address: str) -> None:
    """Raises ConfigError where Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    try:
        if "/" in host or not host or not port.isdecimal():
            raise ValueError("that is not HOST:PORT; from outside the cluster, use `ray job submit`")
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"no Ray cluster can be joined at `cluster.address` {address!r}: {error}") from None


def refuse_strangers(machines: Sequence[str]) -> None:
    """Raises ConfigError for a cluster without tokens, some of whose machines others can reach.

    Whoever joins in another mode than the cluster's gets no answer of it, so the environment tells both."""
    outside = [address for address in machines if not _loopback(address)]
    if outside and os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        raise ConfigError(
            f"the Ray cluster at {outside[0]} runs programs for whoever reaches it; set RAY_AUTH_MODE=token "
            "where it is started and here, or say that nobody else is in its network with "
            "`cluster.open_network = true`"
        )


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def other(run: str, name: str) -> Any:
    """Another actor of the run, by name: a handle given at the start might be gone when Ray restarts one."""
    return ray.get_actor(f"{run}-{name}")


async def answer(call: Any) -> Any:
    """What an actor's method returns or raises. Cancelled here, it is cancelled there.

    Raises LostError when the actor is gone, and EngineError when it cannot even begin: Ray does not try
    that again.
    """
    try:
        return await call
    except asyncio.CancelledError:
        ray.cancel(call)
        raise
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        if isinstance(error, ray.exceptions.RayActorError) and error.actor_init_failed:
            told = str(error).strip().splitlines()[-1]
            raise EngineError(f"an actor cannot begin on its machine: {told}") from error
        raise LostError(f"an actor on Ray is gone ({type(error).__name__})") from error
