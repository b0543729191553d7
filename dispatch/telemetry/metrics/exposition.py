"""Exposition of the metrics: as an ASGI application, or on a port of its own.

The text is rendered on a thread, in pieces of some tenths of a millisecond. The thread sleeps after each piece: a computing
thread releases the interpreter lock only every 5 ms, and the event loop would wait that long.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted

from dispatch._internal.utf8 import encode_text
from dispatch.errors import ErrorType, TransportError
from dispatch.telemetry.metrics.text_family import TextFamily
from dispatch.telemetry.settings import METRICS_ADDRESS, Telemetry

logger = logging.getLogger("dispatch.telemetry")

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that sets prometheus-client's multiprocess mode."""
PAUSE_S = 0.0003
"""Seconds that the thread sleeps after each piece: long enough for a waiting thread to acquire the interpreter lock."""
PATH = "/metrics"
"""Path of the metrics on a port of their own."""
GZIP_LEVEL = 6
GZIP = 16 + zlib.MAX_WBITS
"""``wbits`` with which zlib writes gzip's format."""

Headers = list[tuple[str, str]]


def registry_of(telemetry: Telemetry) -> CollectorRegistry:
    """Return the registry of the metrics. The first call warns if prometheus-client runs in its multiprocess mode."""
    _warn_of_multiprocess_mode()
    return REGISTRY if telemetry.registry is None else telemetry.registry


@functools.cache
def _warn_of_multiprocess_mode() -> None:
    """Log a warning, once in a process. dispatch's series are updated without locks, in memory: prometheus-client's files,
    which a worker reads for all of them, have none of them."""
    if MULTIPROCESS_VARIABLE in os.environ:
        logger.warning(
            "%s is set, but the metrics of dispatch are not in its files: serve those of each worker on a port of its own "
            "(docs/how-to/observe.md, Several workers)",
            MULTIPROCESS_VARIABLE,
        )


def render_metrics(
    registry: CollectorRegistry,
    accept: str,
    accept_encoding: str,
    names: Sequence[str] = (),
    *,
    pause: Callable[[], None] = lambda: time.sleep(PAUSE_S),
) -> tuple[Headers, bytes]:
    """Render the metrics as text. Takes up to seconds: do not call it on an event loop's thread.

    Args:
        registry: of the metrics.
        accept, accept_encoding: headers of the request. A client that accepts OpenMetrics, as Prometheus does, gets that
            format with exemplars; others get Prometheus' text format.
        names: only samples of these names; empty: all.
        pause: called after each piece of some tenths of a millisecond.

    Returns:
        The headers and the body of the response.
    """
    encoder, content_type = choose_encoder(accept)
    open_metrics = content_type.startswith("application/openmetrics-text")
    headers = [("Content-Type", content_type)]
    families: Iterable[Metric] = (registry.restricted_registry(names) if names else registry).collect()
    plain = "escaping=dots" not in content_type  # which writes an underscore as two

    def pieces() -> Iterator[bytes]:
        others = []
        for family in families:
            if plain and isinstance(family, TextFamily):
                yield from (encode_text(piece) for piece in family.text(open_metrics))
            else:
                others.append(family)
        yield encoder(_FamilyList(others))  # ends with OpenMetrics' end mark

    zipped = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP) if gzip_accepted(accept_encoding) else None
    body = []
    for piece in pieces():
        body.append(piece if zipped is None else zipped.compress(piece))
        pause()
    if zipped is not None:
        headers.append(("Content-Encoding", "gzip"))
        body.append(zipped.flush())
    return headers, b"".join(body)


class _FamilyList:
    """Families in the shape of a registry, as prometheus-client's encoders need them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


def metrics_app(telemetry: Telemetry) -> Any:
    """Return an ASGI application that answers every request with the metrics. It renders them on a thread of its own: the
    event loop does not wait for it, and no shared executor delays a scrape."""
    registry = registry_of(telemetry)

    async def app(
        scope: MutableMapping[str, Any], receive: Callable[[], Any], send: Callable[[MutableMapping[str, Any]], Any]
    ) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the metrics are served over HTTP only, not over '{scope['type']}'")
        fields: Mapping[str, str] = _negotiation_headers(scope["headers"])
        names = parse_qs(scope.get("query_string", b"").decode()).get("name[]", ())
        thread = ThreadPoolExecutor(1, "dispatch-metrics")
        try:
            headers, body = await asyncio.get_running_loop().run_in_executor(
                thread, render_metrics, registry, fields["accept"], fields["accept-encoding"], names
            )
        finally:
            thread.shutdown(wait=False)
        request = await receive()
        if request["type"] == "http.request":
            start = {
                "type": "http.response.start",
                "status": 200,
                "headers": [(name.encode(), value.encode()) for name, value in headers],
            }
            await send(start)
            await send({"type": "http.response.body", "body": body})

    return app


def _negotiation_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the header fields that choose the format; a field that was sent several times is one list."""
    found: dict[str, list[str]] = {"accept": [], "accept-encoding": []}
    for name, value in headers:
        found.get(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return {name: ",".join(values) for name, values in found.items()}


class _Server(ThreadingMixIn, WSGIServer):
    """An HTTP server with a thread for each request."""

    daemon_threads = True


class _SilentHandler(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _wsgi_app(registry: CollectorRegistry) -> Callable[..., list[bytes]]:
    def app(environ: Mapping[str, Any], start_response: Callable[[str, Headers], object]) -> list[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Allow", "GET")])
            return [b"Read the metrics with GET.\n"]
        if environ["PATH_INFO"] != PATH:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [f"The metrics are at {PATH}.\n".encode()]
        names = parse_qs(environ.get("QUERY_STRING", "")).get("name[]", ())
        accept, encoding = (environ.get(name, "") for name in ("HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING"))
        headers, body = render_metrics(registry, accept, encoding, names)
        start_response("200 OK", headers)
        return [body]

    return app


@contextmanager
def expose_metrics(telemetry: Telemetry, port: int, address: str = METRICS_ADDRESS) -> Iterator[int]:
    """Serve the metrics at ``http://ADDRESS:PORT/metrics`` on a thread, while the context is entered.

    Args:
        telemetry: settings with the registry.
        port: 0: any free port.
        address: address to listen on; by default only this machine can connect.

    Yields:
        The port.

    Raises:
        TransportError: the port is in use, or cannot be opened.
    """
    try:
        family, *_, (host, *_) = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        kind = type("_Server", (_Server,), {"address_family": family})
        server: WSGIServer = make_server(str(host), port, _wsgi_app(registry_of(telemetry)), kind, _SilentHandler)
    except (OSError, OverflowError) as error:  # OverflowError: the number of the port is too large
        reason = getattr(error, "strerror", None) or error
        raise TransportError(
            ErrorType.PORT_TAKEN,
            f"No tool was executed: the metrics cannot be served on {address}:{port} ({reason}). Use another port "
            "(0: any free one).",
            sent=False,
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="dispatch-metrics-server", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
