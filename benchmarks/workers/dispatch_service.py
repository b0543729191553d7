"""The dispatch service, with a tool that answers at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pulsar
from prometheus_client import REGISTRY

import dispatch
from benchmarks.workers.channel import Report, Spec, run_service
from benchmarks.workers.execution_counter import ExecutionCounter
from benchmarks.workers.lossy_transport import open_lossy_transport
from benchmarks.workers.wire import client_options

SESSION_COUNTERS = {
    "dispatch_session_packets_sent_total": "packets",
    "dispatch_session_retransmissions_total": "retransmissions",
}
"""Metrics that the service reports, and their names in the report."""


class Echo(dispatch.ToolService):
    """Answers."""

    def __init__(self, spec: Spec) -> None:
        self._answer = spec.text
        self._large_answer = spec.large_text
        self.counter = ExecutionCounter() if spec.is_counting else None

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        """The tool."""
        if self.counter is not None:
            self.counter.record(arguments["number"])
        return self._large_answer if "large" in arguments else self._answer


@asynccontextmanager
async def serve(spec: Spec) -> AsyncIterator[Report]:
    """Start the service's instances with the default settings, each on a connection of its own."""
    echo = Echo(spec)
    async with AsyncExitStack() as stack:
        for _ in range(spec.instances):
            transport = open_lossy_transport(spec)
            await transport.start()
            stack.push_async_callback(transport.close)
            server = dispatch.ToolServer(
                echo, transport, request_queue=spec.request, response_queue=spec.response, service="echo"
            )
            await stack.enter_async_context(server)
        yield partial(_report, echo.counter)
    if spec.request.startswith("persistent://"):
        _forget(spec)


def _report(counter: ExecutionCounter | None) -> dict[str, int]:
    """Return the counters of the service; those of sessions are missing in a release without sessions."""
    found = {} if counter is None else {"repeated": counter.repeated}
    for family in REGISTRY.collect():
        for sample in family.samples:
            key = SESSION_COUNTERS.get(sample.name)
            if key is not None:
                found[key] = found.get(key, 0) + int(sample.value)
    return found


def _forget(spec: Spec) -> None:
    """Delete the durable subscription: a broker of the user must retain nothing."""
    client = pulsar.Client(spec.url, **client_options(spec))
    try:
        client.subscribe(spec.request, "echo-request", consumer_type=pulsar.ConsumerType.Shared).unsubscribe()
    finally:
        client.close()


if __name__ == "__main__":
    run_service(serve)
