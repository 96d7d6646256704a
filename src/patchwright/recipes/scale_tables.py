"""The tables of docs/scale.md, made from the code that reckons: `python -m patchwright.recipes.scale_tables`.

Also how `patchwright bench scale` prints one simulated fleet.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from rich.table import Table

from patchwright.fleet.scale import Load, Site, simulate
from patchwright.recipes.plan_memory import engine_memory, trainer_memory
from patchwright.recipes.plan_model import find_shape
from patchwright.train.config import TrainConfig

__all__ = ["fill", "load_table", "tables"]

_MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "Qwen/Qwen3-Coder-30B-A3B-Instruct")
_RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
_CONTEXT = 32_768
_SERVERS = (1, 8, 32, 64, 128)
_DISKS = (10, 50)
"""GB/s."""
_SITES: Mapping[str, Site] = {
    "1,000 boxes, 64 nodes": Site(boxes=1000, nodes=64),
    "10,000 boxes, 625 nodes, one driver": Site(),
    "the same, 4 drivers": Site(drivers=4),
    "the same, 4 drivers, all through the pool": Site(drivers=4, direct=False),
    "4 drivers, a model that answers in 3 s, through the pool": Site(drivers=4, think=3.0, direct=False),
    "the same, direct, 8 drivers": Site(drivers=8, think=3.0),
    "10,000 boxes, 64 nodes, 4 drivers": Site(drivers=4, nodes=64),
}
_SECONDS = 60.0


def load_table(site: Site, load: Load) -> Table:
    """One simulated fleet, for the terminal."""
    title = f"{site.boxes:,} boxes on {site.nodes:,} nodes of {site.cores} cores, {site.drivers} drivers"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, min_width=len(title))
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in _figures(load).items():
        table.add_row(name, value)
    return table


def _figures(load: Load) -> dict[str, str]:
    return {
        "commands/s": f"{load.commands:,.0f}",
        "attempts/min": f"{60 * load.attempts:,.0f}",
        "overhead of a command, ms, p50 p95": f"{load.wait_p50:,.1f} {load.wait_p95:,.1f}",
        "driver busy": f"{load.driver:.0%}",
        "pool busy": f"{load.pool:.0%}",
        "nodes busy": f"{load.nodes:.0%}",
        "busiest": load.bottleneck,
    }


def tables() -> dict[str, str]:
    """Marker of docs/scale.md -> the table that stands behind it."""
    return {"trainer": _trainer(), "engine": _engine(), "update": _update(), "fleet": _fleet()}


def _trainer() -> str:
    """GB of a GPU that trains, by ranks."""
    plain = TrainConfig(device="cuda", dtype="bfloat16", recompute=True, micro_batch_tokens=_CONTEXT)
    rows = []
    for name, offload in product(_MODELS, (False, True)):
        shape, cells = find_shape(None, name), []
        for ranks in _RANKS:
            train = plain.model_copy(update={"ranks": ranks, "offload": offload})
            cells.append(f"{sum(part.bytes for part in trainer_memory(shape, train, _CONTEXT)) / 1e9:.0f}")
        rows.append([f"{name}, `offload`" if offload else name, *cells])
    return _markdown(["ranks", *map(str, _RANKS)], rows)


def _engine() -> str:
    """Contexts whose keys and values fit a server on GPUs of 80 GB, by its GPUs."""
    rows = []
    for name in _MODELS:
        shape, cells = find_shape(None, name), []
        for parallel in (1, 2, 4, 8):
            size = engine_memory(shape, 80e9, share=0.85, parallel=parallel)
            cells.append(f"{size.tokens // _CONTEXT}")
        rows.append([name, f"{2 * shape.parameters / 1e9:.1f}", f"{shape.kv_bytes():,}", *cells])
    return _markdown(["", "weights, GB", "bytes a token", "1 GPU", "2", "4", "8"], rows)


def _update() -> str:
    """Seconds until so many servers have read new weights, which are float32, from one disk."""
    rows = []
    for name, disk in product(_MODELS, _DISKS):
        size = 4 * find_shape(None, name).parameters / 1e9
        cells = [f"{servers * size / disk:,.0f}" for servers in _SERVERS]
        rows.append([f"{name}, {disk} GB/s", f"{size:.0f}", *cells])
    return _markdown(["", "GB", "1 server", *map(str, _SERVERS[1:])], rows)


def _fleet() -> str:
    rows = [[name, *_figures(simulate(site, seconds=_SECONDS)).values()] for name, site in _SITES.items()]
    head = ["", "commands/s", "attempts/min", "overhead ms, p50 p95", "driver", "pool", "nodes", "busiest"]
    return _markdown(head, rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def fill(text: str) -> str:
    """A page with its tables made anew, between `<!-- NAME -->` and `<!-- /NAME -->`."""
    for name, table in tables().items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        text = f"{before}{start}{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(fill(file.read_text(encoding="utf-8")), encoding="utf-8")
