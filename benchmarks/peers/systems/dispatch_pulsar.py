"""dispatch on Pulsar: its default settings, with every guard and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import dispatch
from benchmarks.peers.system import SERVICE, Call, Failure, Place, Tool
from benchmarks.workers.pacing import is_certainly_not_executed
from dispatch.errors import DispatchError

LABEL: Final = "dispatch on Pulsar"
OFFERS: Final = (
    "circuit breaker, bulkhead, rate limits, retries, hedging, outlier ejection; no message lost and no tool run twice "
    "between its two sides; typed outcomes; metrics"
)
SERVER: Final[Literal["pulsar"]] = "pulsar"
POLICY: Final = {"rate-limit": "1000000/s", "user-rate-limit": "1000000/s"}


class Service(dispatch.ToolService):
    """Runs the tool."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        """The tool."""
        return await self._tool(arguments)


def queues(place: Place) -> dict[str, str]:
    """Topics of requests and replies, where TrustGraph has them too."""
    return {
        "request_queue": f"non-persistent://tg/request/{place.topic}",
        "response_queue": f"non-persistent://tg/response/{place.topic}",
    }


@asynccontextmanager
async def serve(place: Place, instance: int, tool: Tool) -> AsyncIterator[None]:
    """Serve one instance; leaving drains it, as SIGTERM does."""
    server = dispatch.ToolServer(
        Service(tool),
        place.url,
        service=SERVICE,
        security=dispatch.Security(token=None),
        concurrency=place.concurrency,
        **queues(place),
    )
    async with server:
        try:
            yield
        finally:
            await server.drain()


def describe(place: Place) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the service and its two tools, one of them declared read-only."""
    topics = {name.replace("_", "-"): topic for name, topic in queues(place).items()}
    tools = [
        {
            "type": "tool-service",
            "name": name,
            "description": "Returns a digest.",
            "service": SERVICE,
            "read-only": name == "read",
            "policy": {**POLICY, "timeout": place.timeout},
        }
        for name in ("read", "write")
    ]
    return [{"id": SERVICE, **topics}], tools


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Connect a dispatcher."""
    services, tools = describe(place)
    catalog = dispatch.Catalog.of(services=services, tools=tools)
    async with dispatch.connect(place.url, catalog, security=dispatch.Security(token=None)) as dispatcher:

        async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
            return await dispatcher.call("read" if repeatable else "write", arguments)

        yield call


def read_failure(error: Exception) -> Failure:
    """The error's type, and whether its fields exclude an execution."""
    if not isinstance(error, DispatchError):
        return Failure(type(error).__name__)
    return Failure(error.type, is_certainly_not_executed(error))
