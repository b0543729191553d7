"""The dispatch client: ``Dispatcher.call``, on a catalogue of one service and one tool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import dispatch
from benchmarks.workers.channel import ARGUMENTS, Spec, run_client
from benchmarks.workers.load import Load
from dispatch.telemetry.settings import DEFAULT_TELEMETRY, Telemetry
from dispatch.transports import Security

GUARDED: Mapping[str, Any] = {"bulkhead": 1_024}
"""The default guards, with a bulkhead above the largest number of calls in flight."""


@asynccontextmanager
async def connect(
    spec: Spec, policy: Mapping[str, Any] = GUARDED, telemetry: Telemetry = DEFAULT_TELEMETRY
) -> AsyncIterator[Load]:
    """Connect the client. ``policy`` is that of its tool; ``telemetry`` defaults to metrics."""
    catalog = dispatch.Catalog.of(
        services=[{"id": "echo-service", "request-queue": spec.request, "response-queue": spec.response}],
        # Read-only: on persistent topics, a non-repeatable request waits 0.15 s for its acknowledgement.
        tools=[
            {
                "type": "tool-service",
                "name": "echo",
                "description": "Echoes.",
                "service": "echo-service",
                "read-only": True,
                "policy": dict(policy),
            }
        ],
    )
    security = Security(token=spec.token)
    async with dispatch.connect(spec.url, catalog, security=security, telemetry=telemetry) as dispatcher:

        async def call() -> str:
            return await dispatcher.call("echo", ARGUMENTS, timeout=spec.timeout)

        yield Load(call, spec.text, dispatch.DispatchError)


if __name__ == "__main__":
    run_client(connect)
