"""The metrics, served: as an ASGI application, or on a port of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, make_asgi_app, start_http_server

from dispatch.outcome import TransportError
from dispatch.telemetry.settings import Telemetry


def registry_of(telemetry: Telemetry) -> CollectorRegistry:
    """Where the metrics are."""
    return REGISTRY if telemetry.registry is None else telemetry.registry


def metrics_app(telemetry: Telemetry) -> Any:
    """An ASGI application that answers every request with the metrics: in OpenMetrics, with exemplars, for whoever accepts
    that, as Prometheus does; else in Prometheus' text format."""
    return make_asgi_app(registry_of(telemetry))


@contextmanager
def served(telemetry: Telemetry, port: int, address: str = "127.0.0.1") -> Iterator[int]:
    """The metrics at ``http://ADDRESS:PORT/metrics``, from a thread of its own, for as long as this is entered.

    Args:
        port: 0: any that is free.
        address: where to listen; by default nobody else's machine can ask.

    Returns:
        The port.

    Raises:
        TransportError: the port is taken, or cannot be had.
    """
    try:
        server, thread = start_http_server(port, address, registry_of(telemetry))
    except (OSError, OverflowError) as error:  # the latter: no number of a port
        why = getattr(error, "strerror", None) or error
        raise TransportError(
            "port-taken",
            f"The metrics cannot be served on {address}:{port}: {why}. Take another port (0: any).",
            sent=False,
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
