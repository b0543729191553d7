"""The dispatch client: ``Dispatcher.call``, on a catalogue of one service and one tool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import dispatch
from benchmarks.workers.channel import ARGUMENTS, Spec, run_client
from benchmarks.workers.load import Load
from benchmarks.workers.lossy_transport import open_lossy_transport
from dispatch.telemetry.observers import DEFAULT_TELEMETRY, Telemetry

GUARDED: Mapping[str, Any] = {"bulkhead": 1_024}
"""The default guards, with a bulkhead above the largest number of calls in flight."""


@asynccontextmanager
async def connect(
    spec: Spec, policy: Mapping[str, Any] = GUARDED, telemetry: Telemetry = DEFAULT_TELEMETRY
) -> AsyncIterator[Load]:
    """Connect the client. ``policy`` is that of its tool; ``telemetry`` defaults to metrics."""
    catalog = dispatch.Catalog.of(
        services=[{"id": "echo-service", "request-queue": spec.request, "response-queue": spec.response}],
        tools=[
            {
                "type": "tool-service",
                "name": "echo",
                "description": "Echoes.",
                "service": "echo-service",
                # On persistent topics, a non-repeatable request waits 0.15 s for its acknowledgement. Elsewhere the tool
                # is not repeatable, so that no retry hides a lost message.
                "read-only": spec.request.startswith("persistent://"),
                "policy": dict(policy),
            }
        ],
    )
    numbers = count()
    async with dispatch.Dispatcher(open_lossy_transport(spec), catalog, telemetry=telemetry) as dispatcher:

        async def call() -> str:
            return await dispatcher.call("echo", ARGUMENTS, timeout=spec.timeout)

        async def call_numbered() -> str:
            return await dispatcher.call("echo", {**ARGUMENTS, "number": next(numbers)}, timeout=spec.timeout)

        async def call_large() -> str:
            return await dispatcher.call("echo", {**ARGUMENTS, "large": True}, timeout=spec.timeout)

        yield Load(
            call_numbered if spec.is_counting else call,
            spec.text,
            dispatch.DispatchError,
            large_call=call_large,
            large_answer=spec.large_text,
        )


if __name__ == "__main__":
    run_client(connect)
