"""The dispatch client with metrics, and one call in a hundred traced by a genuine OpenTelemetry SDK, which exports spans in
batches on its own thread to an exporter that discards them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.micro.otel_sdk import Dropping, exporting
from benchmarks.workers.channel import Spec, run_client
from benchmarks.workers.dispatch_client import connect
from benchmarks.workers.load import Load
from dispatch import Telemetry

SAMPLE = 0.01


@asynccontextmanager
async def sampled(spec: Spec) -> AsyncIterator[Load]:
    """The client, connected."""
    provider = exporting(Dropping())
    try:
        async with connect(spec, telemetry=Telemetry(tracer_provider=provider, sample=SAMPLE)) as load:
            yield load
    finally:
        provider.shutdown()


if __name__ == "__main__":
    run_client(sampled)
