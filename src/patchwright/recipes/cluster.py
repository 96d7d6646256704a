"""`[cluster]`: the machines a run is on, and who gets which GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from patchwright.config import Config
from patchwright.errors import ConfigError

__all__ = ["ClusterConfig", "Node", "place"]


class ClusterConfig(Config):
    """The machines a run is on. `--dry-run` reckons with them. A run takes the GPUs of the machine it is
    started on (`train.ranks`) and the servers it is told (`line.engine.url`), unless `use` says otherwise."""

    use: Literal["here", "ray"] = "here"
    """`here`, or `ray`: `train rl` spreads engines, trainer ranks and rollout drivers over the machines of
    a Ray cluster (`docs/ray.md`). Other commands run on this machine alone; those that train say so."""
    address: str = "auto"
    """Ray only: HOST:PORT of the cluster; `auto` is the one this machine or job belongs to."""
    open_network: bool = False
    """Ray only: nobody else is in the cluster's network, so it may go without tokens."""
    drivers: int = Field(default=0, ge=0)
    """Ray only: rollout drivers, each with its own gateway and boxes; 0: as many as `nodes`."""
    restarts: int = Field(default=3, ge=0)
    """Ray only: how often the trainer is started again from the last checkpoint when a rank of it is lost."""
    placement_seconds: float = Field(default=600.0, gt=0)
    """Ray only: how long the cluster may take to have room for all."""
    cache: str = ""
    """Ray only: folder on every machine for the model and its versions; one of temporary files when empty."""
    model: str = ""
    """The model the numbers are for, as hubs name it: its shape is taken where `--model` is no folder."""
    nodes: int = Field(default=1, ge=1)
    """Machines with GPUs."""
    gpus_per_node: int = Field(default=1, ge=0)
    """GPUs of each; 0: engines and ranks take a CPU each."""
    gpu_memory_gb: float = Field(default=80.0, gt=0)
    """Memory of a GPU, in GB (10^9 bytes)."""
    engines: int = Field(default=0, ge=0)
    """Model servers that sample, all with the same weights; 0: the local engine, on the trainer's device."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs of one such server, all in one machine."""
    engine_memory: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU that a server takes for weights, keys and values (SGLang's `--mem-fraction-static`,
    vLLM's `--gpu-memory-utilization`). Only reckoned with: servers that are started are told it by
    `line.engine.args`."""
    judge_model: str = ""
    """The judge of single steps, as hubs name it."""
    judges: int = Field(default=0, ge=0)
    """Servers of that judge; 0: none of these machines runs one."""
    judge_parallel: int = Field(default=1, ge=1)
    """GPUs of one such server."""
    box_nodes: int = Field(default=0, ge=0)
    """Machines that make boxes (`patchwright node serve`); 0: the machine of the run makes them."""
    boxes_per_node: int = Field(default=16, ge=1)
    """Most boxes on one of them (`patchwright pool serve --max-per-node`)."""


@dataclass(slots=True)
class Node:
    """One machine. Example: `Node(8, ["engine 0", "engine 0", "rank 0"])` has 5 GPUs free"""

    gpus: int
    users: list[str] = field(default_factory=list)
    """Who has each of its GPUs; the last ones are free."""

    @property
    def free(self) -> int:
        """GPUs that nobody has."""
        return self.gpus - len(self.users)


def place(cluster: ClusterConfig, ranks: int) -> list[Node]:
    """The machines, with servers and `ranks` trainer processes placed.

    Whoever wants most GPUs is placed first, each where most are free: servers stay whole, and the rest is
    spread evenly. Raises ConfigError when they do not fit.
    """
    wanted = cluster.judges * cluster.judge_parallel + cluster.engines * cluster.tensor_parallel + ranks
    slots = cluster.gpus_per_node or wanted  # machines without GPUs have no such bound
    nodes = [Node(slots) for _ in range(cluster.nodes)]
    groups = [("judge", cluster.judge_parallel)] * cluster.judges
    groups += [("engine", cluster.tensor_parallel)] * cluster.engines
    groups.sort(key=lambda group: -group[1])
    for kind, size in [*groups, *[("rank", 1)] * ranks]:
        node = max(nodes, key=lambda node: node.free)
        if node.free < size:
            raise ConfigError(_full(cluster, ranks, kind, size))
        node.users += [kind] * size
    sizes = {"judge": cluster.judge_parallel, "engine": cluster.tensor_parallel, "rank": 1}
    seen: Counter[str] = Counter()
    for node in nodes:  # numbers follow the machines: neighbours talk most
        for place_, kind in enumerate(node.users):
            node.users[place_] = f"{kind} {seen[kind] // sizes[kind]}"
            seen[kind] += 1
    return nodes


def _full(cluster: ClusterConfig, ranks: int, who: str, size: int) -> str:
    engines = f"{cluster.engines} engines of {cluster.tensor_parallel} GPUs"
    judges = f", {cluster.judges} judges of {cluster.judge_parallel}" if cluster.judges else ""
    return (
        f"`[cluster]` has {cluster.nodes} machines of {cluster.gpus_per_node} GPUs, too few for {engines}"
        f"{judges} and {ranks} trainer ranks: no machine has {size} left for one {who}; give more `nodes`, "
        "or lower `engines`, `tensor_parallel` or `train.ranks`"
    )
