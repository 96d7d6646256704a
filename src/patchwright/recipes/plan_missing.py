"""What this machine lacks for a run: files, packages, GPUs, servers. Looks, and starts nothing."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from patchwright.errors import ConfigError
from patchwright.fleet.tokens import POOL_TOKEN, config_folder
from patchwright.recipes.agents import refuse_absent
from patchwright.recipes.cluster import ClusterConfig
from patchwright.recipes.plan_memory import ranks_text
from patchwright.recipes.settings import Settings
from patchwright.sandbox.docker_api import engine_socket
from patchwright.train.config import TrainConfig

__all__ = ["Given", "missing", "silent"]

_GB = 1e9
_PATIENCE = 2.0
"""Seconds a server has to take a connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What a run was told."""

    kind: str
    settings: Settings
    train: TrainConfig
    model: Path | None
    files: tuple[Path, ...]
    host: float
    """Bytes of this machine's memory that a rank of the trainer takes at most."""

    @property
    def spread(self) -> bool:
        """Over the machines of a Ray cluster."""
        return self.kind == "rl" and self.settings.cluster.use == "ray"


def missing(given: Given) -> list[str]:
    """One line for each thing that is not there."""
    found = [*_files(given), *_packages(given.train), *_gpus(given), *_host(given)]
    if given.kind == "rl":
        settings = given.settings
        found += [*_ray(settings.cluster), *_servers(settings), *_boxes(settings), *_agent(settings)]
    return found


def silent(settings: Settings) -> list[str]:
    """One line for each server, besides engine and pool, that a configuration names and that nobody answers
    at: a Ray cluster, a judge."""
    return [*_cluster(settings.cluster), *_judge(settings)]


def _files(given: Given) -> Iterator[str]:
    """Data on a hub (OWNER/NAME) are no file, and are looked for when they are wanted."""
    if given.model is None:
        yield f"model: none was given; --model DIR with {given.settings.cluster.model or 'its weights'}"
    elif not any(given.model.glob("*.safetensors")):
        yield f"model: {given.model} is no folder with *.safetensors"
    what = {"rl": "tasks: none were given; --tasks FILE"}.get(given.kind, "data: none were given; --data")
    if not given.files:
        yield what
    for file in given.files:
        if not file.exists():
            yield f"data: there is no {file}"


def _packages(train: TrainConfig) -> Iterator[str]:
    wanted = {"torch": "local", "transformers": "local"} | ({"peft": "lora"} if train.lora else {})
    for name, extra in wanted.items():
        yield from _package(name, extra)


def _package(name: str, extra: str) -> Iterator[str]:
    if importlib.util.find_spec(name) is None:
        yield f"package: {name}; pip install 'patchwright[{extra}]'"


def _gpus(given: Given) -> Iterator[str]:
    """The GPUs the cluster's machines should have, and ranks that would be on other machines."""
    train, cluster = given.train, given.settings.cluster
    if train.device == "cpu":
        return
    here, wanted = len(list(Path("/dev").glob("nvidia[0-9]*"))), cluster.gpus_per_node
    if here < wanted:
        yield f"GPUs: {wanted} are wanted in each of {cluster.nodes} machines, this one has {here}"
    if train.ranks > wanted and not given.spread:
        unless = ", unless cluster.use is ray" if given.kind == "rl" else ""
        yield (
            f"one machine with {train.ranks} GPUs: the trainer's ranks are processes of one machine{unless} "
            f"(train.ranks = {train.ranks}, cluster.gpus_per_node = {wanted})"
        )


def _host(given: Given) -> Iterator[str]:
    """Memory of this machine, which has all ranks unless they are spread: then others bear a part of it."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    ranks, wanted = given.train.ranks, given.train.ranks * given.host
    if wanted > there and not given.spread:
        yield (
            f"host memory: {wanted / _GB:,.0f} GB for {ranks_text(ranks)}, {given.host / _GB:,.0f} GB each "
            f"(what one reads at its start, or offloads); this machine has {there / _GB:,.0f} GB"
        )


def _ray(cluster: ClusterConfig) -> Iterator[str]:
    if cluster.use != "ray":
        return
    yield from _package("ray", "ray")
    yield from _cluster(cluster)


def _cluster(cluster: ClusterConfig) -> Iterator[str]:
    if cluster.use == "ray" and cluster.address != "auto":
        yield from _unreachable("Ray cluster", f"tcp://{cluster.address}", "cluster.address")


def _servers(settings: Settings) -> Iterator[str]:
    engine = settings.line.engine
    if engine.use != "local" and not (engine.python and not engine.urls):
        for url in engine.urls or [""]:
            yield from _unreachable(f"{engine.use} server", url, "line.engine.url")
    yield from _judge(settings)


def _judge(settings: Settings) -> Iterator[str]:
    judge = settings.rl.scores.judge
    if judge.base_url:
        yield from _unreachable("judge", judge.base_url, "rl.scores.judge.base_url")


def _boxes(settings: Settings) -> Iterator[str]:
    boxes = settings.line.sandbox
    if boxes.use == "remote":
        yield from _unreachable("pool of boxes", boxes.pool, "line.sandbox.pool")
        token = Path(boxes.token_file) if boxes.token_file else config_folder() / POOL_TOKEN
        if not token.exists():
            yield f"the pool's token: there is no {token}; copy it from where the pool runs"
    elif boxes.use == "docker" and not Path(engine_socket()).exists():
        yield f"Docker: there is no {engine_socket()}; start it, or set DOCKER_HOST"


def _agent(settings: Settings) -> Iterator[str]:
    try:
        refuse_absent(settings.line.agent)
    except ConfigError as error:
        yield f"agent: {error}"


def _unreachable(what: str, url: str, key: str) -> Iterator[str]:
    """A connection says that somebody is there; `patchwright check engine` says who."""
    parts = urlsplit(url)
    try:
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        if not parts.hostname:
            raise ValueError("no address")
        socket.create_connection((parts.hostname, port), timeout=_PATIENCE).close()
    except ValueError:
        yield f"{what}: {key} is {url!r}, which is no address"
    except OSError as error:
        yield f"{what}: nobody answers at {url} ({os.strerror(error.errno) if error.errno else error})"
