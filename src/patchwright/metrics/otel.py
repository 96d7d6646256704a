"""Spans to an OpenTelemetry collector, by OTLP over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from patchwright import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from patchwright.metrics.config import MetricsConfig

__all__ = ["tracing"]

_TIMEOUT = 10
"""Seconds one post may take, retries included."""


@contextmanager
def tracing(config: MetricsConfig, run: str, say: Callable[[str], None]) -> Iterator[Tracer]:
    """A tracer whose spans are posted in batches, from a thread, and the last of them at the end."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # failures are said once, by `_Telling`
    resource = Resource.create({"service.name": config.project, "patchwright.run": run})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    inner = OTLPSpanExporter(endpoint=config.otel_endpoint or None, timeout=_TIMEOUT)
    provider.add_span_processor(BatchSpanProcessor(_Telling(inner, say)))
    try:
        yield provider.get_tracer("patchwright", __version__)
    finally:
        provider.shutdown()


class _Telling(SpanExporter):
    """Says once that spans cannot be sent; and goes on trying, since collectors come back."""

    def __init__(self, inner: SpanExporter, say: Callable[[str], None]) -> None:
        self._inner, self._say = inner, say
        self._said = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Post a batch; a failure loses it."""
        try:
            result, why = self._inner.export(spans), "the collector does not take them"
        except Exception as error:
            result, why = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        if result is not SpanExportResult.SUCCESS and not self._said:
            self._said = True
            self._say(f"sink otel loses spans, the run goes on: {why}; see metrics.otel_endpoint")
        return result

    def shutdown(self) -> None:
        """Close the connection."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
        return self._inner.force_flush(timeout_millis)
