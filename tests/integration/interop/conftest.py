"""TrustGraph's service as a process, and the cells: each client with each service."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import pytest

import dispatch
from dispatch.trustgraph.config import ConfigTopics
from tests.helpers.python_processes import Running, running
from tests.integration.interop.peers import CLIENTS, Client, Peer

DEFAULT_CONFIG_TOPICS = ConfigTopics()
Cell = Callable[[], AbstractAsyncContextManager[Client]]


class TheirService(NamedTuple):
    """TrustGraph's service that runs: its topic, and the id it names its subscription by."""

    topic: str
    id: str


@pytest.fixture(scope="session")
def url(pulsar_endpoint: Any) -> str:
    """The broker's address."""
    return str(pulsar_endpoint.service_url)


@pytest.fixture
def topic() -> str:
    """A topic that nobody else uses."""
    return f"interop-{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def their_service(url: str) -> Iterator[TheirService]:
    """TrustGraph's published service, in a process of its own."""
    name = f"interop-{secrets.token_hex(6)}"
    # Its metrics port is fixed and its log collector is a host that is not there: both are flags of its own launcher.
    options = ("--topic", name, "--id", name, "--pulsar-host", url, "--no-metrics", "--no-loki-enabled")
    with running("-m", "tests.integration.interop.trustgraph_service", *options, ready=f"Tool service {name} started"):
        yield TheirService(name, name)


@contextlib.contextmanager
def serving_config(url: str, topics: ConfigTopics = DEFAULT_CONFIG_TOPICS, id: str = "config-svc") -> Iterator[Running]:
    """TrustGraph's published config service in a process of its own, with an empty store."""
    options = ["--id", id, "--pulsar-host", url, "--no-metrics", "--no-loki-enabled"]
    if topics != DEFAULT_CONFIG_TOPICS:
        options += ["--config-request-queue", topics.request, "--config-response-queue", topics.response]
        options += ["--config-push-queue", topics.notification]
    module = "tests.integration.interop.trustgraph_config_service"
    with running("-m", module, *options, ready="Discovered workspaces") as process:
        yield process


@pytest.fixture(scope="session")
def config_service(url: str) -> Iterator[Running]:
    """One config service on the default topics; tests use workspaces of their own."""
    with serving_config(url) as process:
        yield process


@pytest.fixture
def workspace(config_service: Running) -> str:
    """A workspace of the config service that no other test uses."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture(params=list(CLIENTS), ids=lambda name: f"client {name}")
def client_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["theirs", "ours"], ids=lambda name: f"service {name}")
def service_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cell(client_kind: str, service_kind: str, url: str, topic: str, request: pytest.FixtureRequest) -> Cell:
    """One cell: ``async with cell() as client`` connects the client to the service."""
    if service_kind == "theirs":
        topic = request.getfixturevalue("their_service").topic

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[Client]:
        async with contextlib.AsyncExitStack() as stack:
            if service_kind == "ours":
                await stack.enter_async_context(dispatch.ToolServer(Peer(), url, service=topic))
            yield await stack.enter_async_context(CLIENTS[client_kind](url, topic))

    return connect
