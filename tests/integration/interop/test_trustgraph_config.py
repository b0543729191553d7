"""TrustGraph's published config service: its tools come into force live, whatever happens to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from trustgraph.agent.react.service import Processor
from trustgraph.base import AsyncProcessor, ConfigClient
from trustgraph.schema import ConfigRequest, ConfigResponse

import dispatch
from dispatch.devtools.localbroker import find_free_ports
from dispatch.trustgraph.config import POLL_S, ConfigServiceError, ConfigTopics
from tests.docs.pages import ROOT, blocks
from tests.helpers.followed_config import SERVICE, TOOL
from tests.helpers.lossy_proxy import LossyProxy
from tests.helpers.run_profile import by_profile
from tests.integration.interop.conftest import DEFAULT_CONFIG_TOPICS, serving_config
from tests.integration.interop.peers import registered

pytestmark = pytest.mark.pulsar
GUIDE = ROOT / "docs" / "how-to" / "trustgraph-configuration.md"
RETURN_S = 45.0
"""Seconds in which a source that was out of reach is read again: the longest wait between two attempts, and a timeout."""


@pytest.fixture
def topics() -> ConfigTopics:
    """Topics that no other test uses."""
    name = f"config-{secrets.token_hex(4)}"
    return ConfigTopics(f"request:tg:{name}", f"response:tg:{name}", f"notify:tg:{name}")


def published_client(
    url: str, topics: ConfigTopics = DEFAULT_CONFIG_TOPICS
) -> contextlib.AbstractAsyncContextManager[Any]:
    """TrustGraph's client of the config service."""
    return registered(url, (topics.request, ConfigRequest), (topics.response, ConfigResponse), ConfigClient)


def source_of(dispatcher: dispatch.Dispatcher) -> dispatch.TrustGraphConfig:
    source = dispatcher.registry.source("trustgraph")
    assert isinstance(source, dispatch.TrustGraphConfig)
    return source


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> float:
    """Wait for ``condition``. Return the seconds that it took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is that of the catalogue, at any time
            await asyncio.sleep(0.002)
    return loop.time() - started


async def put_both(source: dispatch.TrustGraphConfig, *names: str) -> None:
    await source.put("tool-service", SERVICE)
    for name in names:
        await source.put("tool", TOOL | {"name": name})


@pytest.mark.slow
@pytest.mark.long
async def test_a_change_with_the_published_client_is_in_force_within_a_second(url: str, workspace: str) -> None:
    puts: list[float] = []
    removals: list[float] = []
    source = dispatch.TrustGraphConfig(workspace)
    async with published_client(url) as client, dispatch.connect(url, source) as dispatcher:
        loop = asyncio.get_running_loop()
        await client.put(workspace, "tool-service", "joke-service", json.dumps(SERVICE))
        for number in range(by_profile(short=5, long=200)):
            name = f"tool-{number}"
            started = loop.time()
            await client.put(workspace, "tool", name, json.dumps(TOOL | {"name": name}))
            await until(lambda: name in dispatcher.catalog.tools)  # noqa: B023 - awaited before the next one
            puts.append(loop.time() - started)
            started = loop.time()
            await client.delete(workspace, "tool", name)
            await until(lambda: name not in dispatcher.catalog.tools)  # noqa: B023 - as above
            removals.append(loop.time() - started)
    for times in (puts, removals):
        p99 = statistics.quantiles(times, n=100, method="inclusive")[98]
        assert p99 < 1.0, f"p50 {statistics.median(times) * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms of {len(times)}"


async def test_a_service_that_is_killed_and_begins_with_an_empty_store(
    url: str, topics: ConfigTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.trustgraph.config.TIMEOUT_S", 1.0)
    source = dispatch.TrustGraphConfig(topics=topics)
    with serving_config(url, topics) as process:
        async with dispatch.connect(url, source) as dispatcher:
            await put_both(source, "tell-joke", "tell-pun")
            await until(lambda: len(dispatcher.catalog.tools) == 2)
            process.end(signal.SIGKILL)
            with pytest.raises(ConfigServiceError, match="did not answer 'getvalues'"):
                await dispatcher.registry.refresh("trustgraph")
            status = dispatcher.registry.sources()[0]
            assert (status.state, status.tools) == ("stale", 2)
            assert "did not answer 'getvalues'" in status.problem
            assert set(dispatcher.catalog.tools) == {"tell-joke", "tell-pun"}
            with serving_config(url, topics):  # its version begins at 0 again
                await until(lambda: not dispatcher.catalog.tools)
                await until(lambda: dispatcher.registry.sources()[0].state == "ok")  # in the next turn of the loop
                await put_both(source, "tell-story")
                await until(lambda: set(dispatcher.catalog.tools) == {"tell-story"})


@pytest.mark.slow
@pytest.mark.long
async def test_a_service_that_is_paused(url: str, topics: ConfigTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.trustgraph.config.TIMEOUT_S", 2.0)
    source = dispatch.TrustGraphConfig(topics=topics)
    loop = asyncio.get_running_loop()
    with serving_config(url, topics) as process:
        async with dispatch.connect(url, source) as dispatcher:
            await put_both(source, "tell-joke")
            await until(lambda: len(dispatcher.catalog.tools) == 1)
            process.process.send_signal(signal.SIGSTOP)
            until_s = loop.time() + by_profile(short=3, long=60)
            try:
                with pytest.raises(ConfigServiceError, match="did not answer 'get' within 2 s"):
                    await source.put("tool", TOOL | {"name": "tell-pun"}, key="tell-joke")
                while loop.time() < until_s:
                    assert set(dispatcher.catalog.tools) == {"tell-joke"}
                    await asyncio.sleep(0.05)
            finally:
                process.process.send_signal(signal.SIGCONT)
            # The request for the tool's service waited at the broker; the write was never sent.
            assert await source.list("tool") == ("tell-joke",)
            await source.put("tool", TOOL | {"name": "tell-pun"}, key="tell-joke")
            await until(lambda: set(dispatcher.catalog.tools) == {"tell-pun"})
            await until(lambda: dispatcher.registry.sources()[0].state == "ok", RETURN_S)


async def test_a_connection_that_is_lost_for_two_seconds(url: str, workspace: str) -> None:
    """Notifications of that time are lost: the configuration is read again before a poll is due."""
    (port,) = find_free_ports(1)
    source = dispatch.TrustGraphConfig(workspace, randomness=lambda: 0.5)
    async with published_client(url) as client, contextlib.AsyncExitStack() as stack:
        await client.put(workspace, "tool-service", "joke-service", json.dumps(SERVICE))
        async with LossyProxy.before(url, port=port) as proxy:
            dispatcher = await stack.enter_async_context(dispatch.connect(proxy.url, source))
            assert dispatcher.registry.sources()[0].items == 1
        await until(lambda: not dispatcher.is_connected)
        await client.put(workspace, "tool", "tell-joke", json.dumps(TOOL))
        await asyncio.sleep(2)
        async with LossyProxy.before(url, port=port):
            await until(lambda: "tell-joke" in dispatcher.catalog.tools, POLL_S / 2)
            await dispatcher.close()


async def test_all_workspaces(url: str, workspace: str) -> None:
    async with published_client(url) as client, dispatch.connect(url, dispatch.TrustGraphConfig("*")) as dispatcher:
        source = source_of(dispatcher)
        for name in (workspace, f"_{workspace}"):
            await client.put(name, "tool-service", "joke-service", json.dumps(SERVICE))
            await client.put(name, "tool", "tell-joke", json.dumps(TOOL))
        name = f"{workspace}-tell-joke"
        await until(lambda: name in dispatcher.catalog.tools)
        assert dispatcher.catalog.tools[name].service == f"{workspace}-joke-service"
        assert not any(name.startswith("_") for name in dispatcher.catalog.tools)
        assert await source.remove("tool", "tell-joke", workspace=workspace)
        await until(lambda: name not in dispatcher.catalog.tools)


async def test_two_services_that_both_answer(url: str, topics: ConfigTopics) -> None:
    """Each request is answered twice, and each write is announced twice."""
    source = dispatch.TrustGraphConfig(topics=topics)
    with serving_config(url, topics, "config-1"), serving_config(url, topics, "config-2"):
        async with dispatch.connect(url, source) as dispatcher:
            await put_both(source, *(f"tool-{number}" for number in range(10)))
            await until(lambda: len(dispatcher.catalog.tools) == 10)
            for number in range(10):
                assert await source.remove("tool", f"tool-{number}")
            await until(lambda: not dispatcher.catalog.tools)
            assert await source.list("tool-service") == ("joke-service",)
            assert dispatcher.registry.sources()[0].state == "ok"


async def test_the_topics_of_one_workspace(url: str, topics: ConfigTopics) -> None:
    own = ConfigTopics(f"{topics.request}:crm", f"{topics.response}:crm", topics.notification)
    with serving_config(url, topics) as process:
        async with published_client(url, topics) as client:
            await client.put("__workspaces__", "workspace", "crm", "{}")
        await until(lambda: "Subscribed to workspace config queue: crm" in process.text())
        async with dispatch.connect(url, dispatch.TrustGraphConfig("crm", topics=own)) as dispatcher:
            await put_both(source_of(dispatcher), "find")
            await until(lambda: set(dispatcher.catalog.tools) == {"find"})
        # It answers no questions about other workspaces.
        async with dispatch.connect(url, dispatch.TrustGraphConfig("*", topics=own)) as dispatcher:
            status = dispatcher.registry.sources()[0]
            assert status.state == "failed"
            assert "refused 'getkeys-all-ws' (bad-operation: Bad operation)" in status.problem


@pytest.mark.usefixtures("config_service")
async def test_the_program_of_the_guide(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in blocks(GUIDE) if block.language == "python")
    program: dict[str, Any] = {"__name__": "follow"}
    exec(compile(block.code, str(block), "exec"), program)
    async with asyncio.timeout(20):
        await program["main"](url)
    assert capsys.readouterr().out == "('tell-joke',)\n"


class Agent(AsyncProcessor):  # type: ignore[misc]  # the package has no type information
    """The part of TrustGraph's agent that follows the configuration."""

    def __init__(self, url: str, id: str) -> None:
        super().__init__(id=id, pulsar_host=url)
        self.agents: dict[str, Any] = {}
        self.config_key = "agent"
        self.register_config_handler(
            lambda *values: Processor.on_tools_config(self, *values), types=["tool", "tool-service"]
        )

    def tools(self, workspace: str) -> set[str]:
        return set(self.agents[workspace].tools) if workspace in self.agents else set()


async def test_an_agent_of_trustgraph_reloads_all_tools_after_each_write(url: str, workspace: str) -> None:
    agent = Agent(url, workspace)
    await agent.start()
    try:
        async with dispatch.connect(url, dispatch.TrustGraphConfig(workspace)) as dispatcher:
            source = source_of(dispatcher)

            async def both_know(*names: str) -> None:
                with contextlib.suppress(TimeoutError):
                    await until(lambda: agent.tools(workspace) == set(names) == set(dispatcher.catalog.tools))
                assert (agent.tools(workspace), set(dispatcher.catalog.tools)) == (set(names), set(names))

            await put_both(source, "tell-joke")
            await both_know("tell-joke")
            await source.put("tool", TOOL | {"name": "tell-pun"})
            await both_know("tell-joke", "tell-pun")
            await source.put("tool-service", SERVICE | {"config-params": ["style"]})
            await source.put("tool", TOOL | {"name": "tell-pun", "style": "pun"})
            await both_know("tell-joke", "tell-pun")
            pun = {"style": "pun"}
            await until(
                lambda: agent.agents[workspace].tools["tell-pun"].implementation.keywords["config_values"] == pun
            )
            await source.remove("tool", "tell-joke")
            await both_know("tell-pun")
            await source.put("tool-service", SERVICE | {"id": "unused"})
            await source.remove("tool-service", "unused")
            await both_know("tell-pun")
            await source.remove("tool", "tell-pun")
            await both_know()
    finally:
        await agent.stop()
