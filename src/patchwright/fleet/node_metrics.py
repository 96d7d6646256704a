"""What a node counts, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from patchwright.fleet.node import Node

__all__ = ["NodeMetrics"]

_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)


class NodeMetrics:
    """Requests by route and status, their seconds, boxes and running commands of one node."""

    def __init__(self, node: Node) -> None:
        self._registry = CollectorRegistry()
        name = "patchwright_node"
        self._requests = Counter(
            f"{name}_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            f"{name}_request_seconds",
            "Seconds until the answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        boxes = Gauge(f"{name}_boxes", "Open boxes.", registry=self._registry)
        boxes.set_function(lambda: len(node.boxes.open))
        running = Gauge(f"{name}_running_commands", "Commands that run now.", registry=self._registry)
        running.set_function(lambda: len(node.jobs))

    def count(self, route: str, status: int, seconds: float) -> None:
        """One request was answered."""
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)
