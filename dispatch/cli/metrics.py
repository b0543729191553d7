"""The option ``--metrics-port``: the metrics of a command that runs for a while, for Prometheus to scrape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from dispatch.cli.output import say

MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Serve metrics for Prometheus at http://ADDRESS:PORT/metrics; 0: a port that is free.",
        show_default=False,
    ),
]
MetricsAddress = Annotated[
    str,
    typer.Option("--metrics-address", metavar="ADDRESS", help="Where to serve them; 0.0.0.0: to other machines, too."),
]
LOOPBACK = "127.0.0.1"


@contextmanager
def serving_metrics(port: int | None, address: str = LOOPBACK) -> Iterator[None]:
    """Serve them while this is entered, and say where; None: do not.

    Raises:
        TransportError: the port is taken.
    """
    if port is None:
        yield
        return
    from dispatch.telemetry.metrics.exposition import served
    from dispatch.telemetry.settings import DEFAULT_TELEMETRY

    with served(DEFAULT_TELEMETRY, port, address) as actual:
        say(f"Metrics: http://{address}:{actual}/metrics")
        yield
