"""TrustGraph's published service, started as its launcher does, and its client, made as its flows make it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

from trustgraph.base import DynamicToolService, RequestResponseClient
from trustgraph.base.async_pulsar_backend import AsyncPulsarBackend
from trustgraph.base.request_response_spec import _make_impl_wrapper
from trustgraph.base.tool_service_client import ToolServiceClient
from trustgraph.schema import ToolServiceRequest, ToolServiceResponse

from benchmarks.peers.system import Call, Failure, Place, Tool

LABEL: Final = "TrustGraph's client and service on Pulsar"
OFFERS: Final = "service restarted by its launcher, timeout of the client; no guards, no retries, at most once"
SERVER: Final[Literal["pulsar"]] = "pulsar"
RESTART_S: Final = 4.0
"""Seconds after which the launcher starts a processor again that has ended."""
START_S: Final = 60.0


@asynccontextmanager
async def serve(place: Place, instance: int, tool: Tool) -> AsyncIterator[None]:
    """Serve one instance, again and again as the launcher does."""
    started = asyncio.Event()

    class Service(DynamicToolService):  # type: ignore[misc] # the package has no types
        async def start(self) -> None:
            await super().start()
            started.set()

        async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            return await tool(arguments)

    parameters = {
        "id": place.topic,
        "topic": place.topic,
        "pulsar_host": place.url,
        "concurrency": min(place.concurrency, 64),
    }

    async def launch() -> None:
        while True:
            with contextlib.suppress(Exception):
                await Service.launch_async(parameters)
            await asyncio.sleep(RESTART_S)

    launched = asyncio.create_task(launch())
    try:
        async with asyncio.timeout(START_S):
            await started.wait()
        yield
    finally:
        launched.cancel()
        await asyncio.wait([launched], timeout=place.timeout)


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Connect the client. Its process must end with it: closing it just before the end aborts the process at times."""
    requests = await RequestResponseClient.create(
        backend=AsyncPulsarBackend(host=place.url, api_key=None),
        request_topic=f"non-persistent://tg/request/{place.topic}",
        response_topic=f"non-persistent://tg/response/{place.topic}",
        request_schema=ToolServiceRequest,
        response_schema=ToolServiceResponse,
    )
    client = _make_impl_wrapper(requests, ToolServiceClient)

    async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
        text: str = await client.call({}, arguments, timeout=place.timeout)
        return text

    yield call
    os._exit(0)


def read_failure(error: Exception) -> Failure:
    """The class of the error."""
    return Failure("timeout" if isinstance(error, TimeoutError) else type(error).__name__)
