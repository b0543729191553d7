"""The two clients and the two services, each made as its own users make it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

from trustgraph.base import RequestResponseClient
from trustgraph.base.async_pulsar_backend import AsyncPulsarBackend
from trustgraph.base.request_response_spec import _make_impl_wrapper
from trustgraph.base.tool_service_client import ToolServiceClient
from trustgraph.schema import ToolServiceRequest, ToolServiceResponse

import dispatch
from tests.helpers.dispatcher_and_service import UNGUARDED
from tests.integration.interop.tool_behaviour import act, stream

TIMEOUT_S = 20.0


class Client(Protocol):
    """What TrustGraph's client and both of ours have in common."""

    async def call(self, config: Any, arguments: Any, timeout: float = ...) -> str: ...

    async def call_streaming(self, config: Any, arguments: Any, callback: Any, timeout: float = ...) -> str: ...


def request_topic(topic: str) -> str:
    """TrustGraph's whole name for the short one; a whole name, of any kind, is TrustGraph's too."""
    return topic if "://" in topic else f"non-persistent://tg/request/{topic}"


def response_topic(topic: str) -> str:
    """As :func:`request_topic`."""
    return f"{topic}-response" if "://" in topic else f"non-persistent://tg/response/{topic}"


async def call_again(client: Client, arguments: Any, config: Any = None) -> str:
    """A call whose messages are so large that the broker may drop one, or one behind it: again, then, as a person would.

    On a non-persistent topic that is seen about once in a thousand messages of a mebibyte, whoever sends them to whom. What
    is asked here is whether they arrive as they were; how many arrive, other tests ask.
    """
    for _ in range(4):
        with contextlib.suppress(TimeoutError):
            return await client.call(config or {}, arguments, timeout=5)
    return await client.call(config or {}, arguments, timeout=5)


def catalog(topic: str) -> dispatch.Catalog:
    """One service, ``peer``, on ``topic``."""
    return dispatch.Catalog.of(
        [
            {
                "id": "peer",
                "request-queue": request_topic(topic),
                "response-queue": response_topic(topic),
                "policy": UNGUARDED,
            }
        ]
    )


@contextlib.asynccontextmanager
async def registered(
    url: str, request: tuple[str, type], response: tuple[str, type], client_class: type
) -> AsyncIterator[Any]:
    """A client of TrustGraph, as its ``RequestResponseSpec.register`` makes it for a flow.

    Args:
        request: topic and schema; likewise ``response``.
    """
    backend = AsyncPulsarBackend(host=url)
    try:
        requests = await RequestResponseClient.create(
            backend=backend,
            request_topic=request[0],
            response_topic=response[0],
            request_schema=request[1],
            response_schema=response[1],
        )
        client = _make_impl_wrapper(requests, client_class)
        try:
            yield client
        finally:
            await client.close()
    finally:
        await backend.close()


def their_client(url: str, topic: str) -> contextlib.AbstractAsyncContextManager[Client]:
    """TrustGraph's client of a tool service."""
    request, response = (request_topic(topic), ToolServiceRequest), (response_topic(topic), ToolServiceResponse)
    return registered(url, request, response, ToolServiceClient)


@contextlib.asynccontextmanager
async def our_client(url: str, topic: str) -> AsyncIterator[dispatch.ToolServiceClient]:
    """Our face of the same shape."""
    async with dispatch.connect(url, catalog(topic)) as dispatcher:
        yield dispatch.ToolServiceClient(dispatcher, service="peer")


@contextlib.asynccontextmanager
async def wrapped_client(url: str, topic: str) -> AsyncIterator[dispatch.WrappedClient]:
    """TrustGraph's client within our path."""
    async with their_client(url, topic) as client:
        yield dispatch.wrap(client, tool="peer")


CLIENTS: dict[str, Any] = {"theirs": their_client, "ours": our_client, "theirs, wrapped": wrapped_client}


class Peer(dispatch.ToolService):
    """Our test service, which does what TrustGraph's does."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        if "pieces" in arguments:
            return stream(arguments)
        return "ours" if arguments.get("who") else act(config, arguments)
