"""A collector of spans on loopback, which keeps them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Received:
    """What came."""

    url: str
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: Any) -> list[str]:
        """Names of the spans right below one, in the order they began."""
        own = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return [span.name for span in sorted(own, key=lambda span: span.start_time_unix_nano)]


def attributes(span: Any) -> dict[str, Any]:
    return {item.key: _plain(item.value) for item in span.attributes}


def _plain(value: Any) -> Any:
    if value.HasField("array_value"):
        return [_plain(one) for one in value.array_value.values]
    return getattr(value, value.WhichOneof("value"))


@contextmanager
def collector() -> Iterator[Received]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                received.resources.append(attributes(resource.resource))
                received.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received = Received(url=f"http://127.0.0.1:{server.server_port}/v1/traces")
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()
