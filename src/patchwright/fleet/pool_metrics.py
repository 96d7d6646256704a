"""A pool's figures for Prometheus, read off the pool when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from patchwright.fleet.pool import Pool

__all__ = ["exposition"]

_COUNTERS = {
    "leases": "Leases granted.",
    "create_failures": "Boxes a node failed to make.",
    "expired": "Leases that ended because nobody used them.",
    "lost": "Leases whose box died under them.",
}


def exposition(pool: Pool) -> tuple[bytes, str]:
    """The figures as text, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_PoolFigures(pool))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _PoolFigures(Collector):
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client."""
        pool = self._pool
        for name, about in _COUNTERS.items():
            yield CounterMetricFamily(f"patchwright_pool_{name}", about, value=pool.counts[name])
        yield GaugeMetricFamily("patchwright_pool_waiting", "Requests in the queue.", value=len(pool.line))
        boxes = GaugeMetricFamily("patchwright_pool_node_boxes", "Slots taken at a node.", labels=["node"])
        healthy = GaugeMetricFamily("patchwright_pool_node_healthy", "1 while it works.", labels=["node"])
        for node in pool.nodes.values():
            boxes.add_metric([node.url], node.state.busy)
            healthy.add_metric([node.url], float(node.state.healthy))
        yield from (boxes, healthy)
