"""The dispatch service, with a tool that answers at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pulsar

import dispatch
from benchmarks.workers.channel import Spec, run_service
from benchmarks.workers.wire import client_options
from dispatch.transports import Security


class Echo(dispatch.ToolService):
    """Answers."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        """The tool."""
        return self._answer


@asynccontextmanager
async def serve(spec: Spec) -> AsyncIterator[None]:
    """Start the service with the default settings."""
    async with dispatch.ToolServer(
        Echo(spec.text),
        spec.url,
        request_queue=spec.request,
        response_queue=spec.response,
        service="echo",
        security=Security(token=spec.token),
    ):
        yield
    if spec.request.startswith("persistent://"):
        _forget(spec)


def _forget(spec: Spec) -> None:
    """Delete the durable subscription: a broker of the user must retain nothing."""
    client = pulsar.Client(spec.url, **client_options(spec))
    try:
        client.subscribe(spec.request, "echo-request", consumer_type=pulsar.ConsumerType.Shared).unsubscribe()
    finally:
        client.close()


if __name__ == "__main__":
    run_service(serve)
