"""The option ``--metrics-port``: a metrics endpoint for Prometheus in long-running commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from dispatch.cli.output import print_err
from dispatch.telemetry.settings import DEFAULT_TELEMETRY, METRICS_ADDRESS

MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Serve metrics for Prometheus at http://ADDRESS:PORT/metrics; 0: any free port.",
        show_default=False,
    ),
]
MetricsAddress = Annotated[
    str,
    typer.Option(
        "--metrics-address",
        metavar="ADDRESS",
        help="Address of the metrics endpoint; 0.0.0.0: reachable from other machines.",
    ),
]


@contextmanager
def serve_metrics(port: int | None, address: str = METRICS_ADDRESS) -> Iterator[None]:
    """Serve metrics inside the context and print the address; no port: do nothing.

    Raises:
        TransportError: the port is in use.
    """
    if port is None:
        yield
        return
    from dispatch.telemetry.metrics.exposition import expose_metrics

    with expose_metrics(DEFAULT_TELEMETRY, port, address) as actual:
        print_err(f"Metrics: http://{address}:{actual}/metrics")
        yield
