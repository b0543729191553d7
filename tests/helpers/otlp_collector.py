"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP on loopback, as the SDK's exporter sends it, decodes the
protobuf, and keeps the spans."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

PATH = "/v1/traces"
QUEUE = 100_000
"""Spans that may wait for the exporter: the SDK's own 2,048 would drop some of a burst, silently."""


@dataclass(frozen=True)
class Received:
    """A span, as it came.

    Attributes:
        process: ``service.name`` of the resource it belongs to.
        scope: the instrumentation's name, and its schema.
        parent: a span id; ``""`` for a root.
        kind: as the wire names it, such as ``PRODUCER``.
        links: span ids.
        events: names, with their attributes.
    """

    process: str
    scope: tuple[str, str]
    trace: str
    id: str
    parent: str
    name: str
    kind: str
    attributes: dict[str, Any] = field(hash=False)
    links: tuple[str, ...]
    events: tuple[tuple[str, dict[str, Any]], ...] = field(hash=False)
    error: bool


class Collector:
    """What it has received. Made by :func:`collecting`.

    Attributes:
        endpoint: where exporters send to.
        problems: requests that were no export of spans.
    """

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}{PATH}"
        self.problems: list[str] = []
        self._spans: list[Received] = []
        self._lock = threading.Lock()

    @property
    def spans(self) -> list[Received]:
        """So far, in no order."""
        with self._lock:
            return list(self._spans)

    def take(self, body: bytes) -> None:
        """One export."""
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        found = [
            _received(
                span, str(_plain(resource.resource.attributes)["service.name"]), (scope.scope.name, scope.schema_url)
            )
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans += found


def _received(span: WireSpan, process: str, scope: tuple[str, str]) -> Received:
    return Received(
        process,
        scope,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        _plain(span.attributes),
        tuple(link.span_id.hex() for link in span.links),
        tuple((event.name, _plain(event.attributes)) for event in span.events),
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port; gone at the end."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            try:
                if self.path != PATH or self.headers.get("Content-Type") != "application/x-protobuf":
                    raise ValueError(f"{self.path}: {self.headers.get('Content-Type')}")
                collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            except Exception as error:  # it belongs to the test, and not on this thread's stderr
                collector.problems.append(repr(error))
                self.send_error(400)
                return
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def exporting(endpoint: str, process: str) -> TracerProvider:
    """An SDK as a user sets it up, that exports everything to ``endpoint``; ``shutdown`` it, and everything has been sent.

    Args:
        process: its ``service.name``.
    """
    provider = TracerProvider(resource=Resource.create({"service.name": process}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=QUEUE, schedule_delay_millis=200))
    return provider
