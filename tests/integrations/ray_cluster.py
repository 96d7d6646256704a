"""A Ray cluster of several machines on this one: each has its own raylet, workers and object store, and
nobody gets in without the token."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

_STORE = 100 * 2**20
_HEALTH = {
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 10,
}
"""A machine that is killed is missed within some seconds."""


class Machines:
    """The machines of a cluster. The first is the driver's, and has no room for actors."""

    def __init__(self, count: int, cpus: int) -> None:
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**self._args(0), "_system_config": _HEALTH}
        )
        self.nodes = [self.add() for _ in range(count)]
        self.address: str = self._cluster.address

    def _args(self, cpus: int) -> dict[str, Any]:
        return {"num_cpus": cpus, "object_store_memory": _STORE, "include_dashboard": False}

    def add(self) -> Any:
        """One more machine."""
        return self._cluster.add_node(**self._args(self._cpus))

    def raylet(self, place: int) -> psutil.Process:
        """The process without which a machine is none."""
        return psutil.Process(self.nodes[place].all_processes["raylet"][0].process.pid)

    def close(self) -> None:
        self._cluster.shutdown()


@contextmanager
def machines(count: int, *, cpus: int = 8) -> Iterator[Machines]:
    """A cluster, in a folder of its own; all of it is ended and removed."""
    folder = tempfile.mkdtemp(prefix="pwr-", dir="/tmp")  # sockets have short names
    before = dict(os.environ)
    os.environ |= {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": folder}
    os.environ |= {"RAY_gcs_server_port_wait_time_s": "120"}  # by default 30, and this machine may be busy
    _forget()
    try:
        with _patience():
            made = Machines(count, cpus)
            try:
                yield made
            finally:
                made.close()
    finally:
        os.environ.clear()
        os.environ.update(before)
        _forget()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _patience() -> Iterator[None]:
    """Ray gives a machine 30 s to register, counted between looks at it: this one looks for longer."""
    from ray._private import services

    look = services.get_node

    def patient(address: str, node: str) -> Any:
        deadline = time.monotonic() + 300
        while True:
            try:
                return look(address, node)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_node", patient)
        yield


def _forget() -> None:
    """Ray reads its environment once, when it is imported."""
    from ray._private.authentication_test_utils import reset_auth_token_state

    reset_auth_token_state()


def actors(name: str) -> list[psutil.Process]:
    """Processes of the actors of a class, on all machines."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or [""]
        if words[0].startswith(f"ray::{name}"):
            found.append(process)
    return found


def leftovers(seconds: float = 60.0) -> list[object]:
    """Actors, and caches of runs, that nobody has ended or removed; what is ending has so long."""
    deadline = time.monotonic() + seconds
    while (found := _left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _left() -> list[object]:
    caches = Path(os.environ["TMPDIR"]).glob(f"patchwright-ray-{os.getuid()}/job-*")
    names = ("Board", "EngineActor", "RankActor", "Roller")
    return [*caches, *(process for name in names for process in actors(name))]
