"""TrustGraph's ``ToolServiceClient``, made as its own ``RequestResponseSpec.register`` makes it for a flow."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trustgraph.base import RequestResponseClient
from trustgraph.base.async_pulsar_backend import AsyncPulsarBackend
from trustgraph.base.request_response_spec import _make_impl_wrapper
from trustgraph.base.tool_service_client import ToolServiceClient
from trustgraph.schema import ToolServiceRequest, ToolServiceResponse

from benchmarks.workers.channel import ARGUMENTS, Spec, run_client
from benchmarks.workers.load import Load


@asynccontextmanager
async def connect(spec: Spec) -> AsyncIterator[Load]:
    """The client, connected. Its process ends with it."""
    backend = AsyncPulsarBackend(host=spec.url, api_key=spec.token)
    requests = await RequestResponseClient.create(
        backend=backend,
        request_topic=spec.request,
        response_topic=spec.response,
        request_schema=ToolServiceRequest,
        response_schema=ToolServiceResponse,
    )
    client = _make_impl_wrapper(requests, ToolServiceClient)

    async def call() -> str:
        text: str = await client.call({}, ARGUMENTS, timeout=spec.timeout)
        return text

    yield Load(call, spec.text, TimeoutError)
    # Closing the client just before the process ends aborts the process in a third of the runs on a busy machine, after
    # the measurement. The broker detects the closed connection anyway.
    os._exit(0)


if __name__ == "__main__":
    run_client(connect)
