"""Services as processes announce themselves to an agent through a broker: they start, are killed, restarted one after the
other, and forged; the broker is killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.devtools.localbroker import Admin, LocalBroker, create_namespaces
from dispatch.server import ToolServer
from dispatch.transports import Security, open_transport
from tests.helpers.announcing import AnnouncingInstance, service, tool
from tests.helpers.python_processes import Running, finish, running
from tests.helpers.secured_broker import SecuredBroker
from tests.integration.pulsar.test_broker_restart import first_lookup

pytestmark = pytest.mark.pulsar
SHOP = '''
import dispatch

@dispatch.tool(read_only=True)
def price(product: str) -> str:
    """Price of a product."""
    return f"price of {product}"
'''


class Lab:
    """A service that is served by processes, and the agents' source of it.

    Args:
        url: of the broker.
        folder: for its file.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.name = f"shop-{secrets.token_hex(4)}"
        self.topic = f"non-persistent://tg/notify/tools-{self.name}"
        self.file = folder / f"{self.name}.py"
        self.file.write_text(SHOP)

    @contextlib.contextmanager
    def process(self, instance: str) -> Iterator[Running]:
        """Serve until the end of the block."""
        options = ("--instance", instance, "--announce", self.topic, "--broker", self.url, "--drain-timeout", "5")
        with running("-m", "dispatch", "serve", str(self.file), *options, ready="Ctrl-C") as program:
            yield program

    def connect(self) -> tuple[dispatch.Dispatcher, dispatch.Announced]:
        source = dispatch.Announced(topic=self.topic)
        return dispatch.connect(self.url, source), source


async def seen(dispatcher: dispatch.Dispatcher, *names: str, within: float) -> float:
    """Wait until these are the tools. Return the seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while set(dispatcher.catalog.tools) != set(names):
        await asyncio.sleep(0.005)
        assert loop.time() < began + within, sorted(dispatcher.catalog.tools)
    return loop.time() - began


@contextlib.asynccontextmanager
async def calling(dispatcher: dispatch.Dispatcher, callers: int = 4) -> AsyncIterator[list[dispatch.CallResult]]:
    """Call ``price`` again and again, and yield the results."""
    results: list[dispatch.CallResult] = []

    async def call() -> None:
        while True:
            results.append(await dispatcher.execute("price", {"product": "lamp"}))
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call()) for _ in range(callers)]
        try:
            yield results
        finally:
            for task in tasks:
                task.cancel()


@contextlib.asynccontextmanager
async def started(lab: Lab, instance: str) -> AsyncIterator[Running]:
    """Serve until the end of the block; the event loop runs on meanwhile."""
    with contextlib.ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, lab.process(instance))


async def test_a_service_is_called_within_a_second_of_its_start(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    lab = Lab(pulsar_endpoint.service_url, tmp_path)
    dispatcher, source = lab.connect()
    async with dispatcher:
        assert not dispatcher.catalog.tools
        async with started(lab, "a"):
            await seen(dispatcher, "price", within=1)
            assert await dispatcher.call("price", {"product": "lamp"}) == "price of lamp"
            other, _ = lab.connect()
            async with other:  # at once, of a service that runs
                assert await other.call("price", {"product": "lamp"}) == "price of lamp"
            options = ("--broker", lab.url, "--topic", lab.topic, "--json")
            (line,) = json.loads(finish("-m", "dispatch", "stats", *options).stdout)
            assert (line["service"], line["instance"], line["stats"]["requests"]) == (lab.name, "a", 2)
            (line,) = json.loads(finish("-m", "dispatch", "info", *options).stdout)
            assert line["tools"] == ["price"]
        assert source.table.services[lab.name, None].items


@pytest.mark.soak
async def test_a_killed_instance_and_a_rolling_restart_change_nothing(
    pulsar_endpoint: Endpoint, tmp_path: Path
) -> None:
    lab = Lab(pulsar_endpoint.service_url, tmp_path)
    dispatcher, _ = lab.connect()
    async with dispatcher, contextlib.AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(started(lab, f"i{number}")) for number in range(2)]
        await seen(dispatcher, "price", within=5)
        catalog = dispatcher.catalog
        async with calling(dispatcher) as results:
            for number, process in enumerate(processes):
                await asyncio.to_thread(process.end, signal.SIGTERM)
                await stack.enter_async_context(started(lab, f"i{number}"))
            assert [each.error for each in results if not each.ok] == []
            assert len(results) > 100
            doomed = await stack.enter_async_context(started(lab, "doomed"))
            await asyncio.sleep(1)
            await asyncio.to_thread(doomed.end, signal.SIGKILL)
            await asyncio.sleep(3)
        # Its announcements are not signed, so that its calls are not repeated, although it is declared read-only.
        assert {each.error.type for each in results if each.error is not None} <= {"instance-lost"}
        assert dispatcher.catalog is catalog


CALLS_PER_S = 500


@pytest.mark.soak
@pytest.mark.alone
async def test_a_rolling_restart_of_eight_processes_under_load_fails_no_call(
    pulsar_endpoint: Endpoint, tmp_path: Path
) -> None:
    lab = Lab(pulsar_endpoint.service_url, tmp_path)
    dispatcher, source = lab.connect()
    loop = asyncio.get_running_loop()
    results: list[dispatch.CallResult] = []
    async with dispatcher, contextlib.AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(started(lab, f"i{number}")) for number in range(8)]
        await seen(dispatcher, "price", within=5)
        catalog = dispatcher.catalog

        async def call() -> None:
            results.append(await dispatcher.execute("price", {"product": "lamp"}))

        async def load(seconds: float) -> None:
            began, count = loop.time(), 0
            async with asyncio.TaskGroup() as calls:
                while (now := loop.time()) < began + seconds:
                    for _ in range(int((now - began) * CALLS_PER_S) - count):
                        calls.create_task(call())
                        count += 1
                    await asyncio.sleep(0.005)

        async with asyncio.TaskGroup() as group:
            group.create_task(load(60))
            for number, process in enumerate(processes):
                await asyncio.sleep(3)
                await asyncio.to_thread(process.end, signal.SIGTERM)
                await stack.enter_async_context(started(lab, f"i{number}"))
        assert [each.error for each in results if not each.ok] == []
        assert len(results) > 0.9 * 60 * CALLS_PER_S
        assert dispatcher.catalog is catalog
        async with asyncio.timeout(10):  # a process is ready before its announcement has arrived
            while len(source.table.services[lab.name, None].instances) < 8:  # noqa: ASYNC110 - the table has no event
                await asyncio.sleep(0.05)
        assert len(source.table.services[lab.name, None].instances) == 8


@pytest.mark.soak
async def test_a_restarted_broker_leaves_the_catalogue_as_it_is(tmp_path: Path) -> None:
    broker = await asyncio.to_thread(LocalBroker.start)
    try:
        await asyncio.to_thread(create_namespaces, Admin(broker.web_url))
        lab = Lab(broker.service_url, tmp_path)
        dispatcher, source = lab.connect()
        async with started(lab, "a"), dispatcher:
            await seen(dispatcher, "price", within=5)
            catalog = dispatcher.catalog
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(20)  # longer than the ttl
            await asyncio.to_thread(broker.restart)
            await asyncio.to_thread(first_lookup, broker.service_url)
            async with asyncio.timeout(30):  # calls of a longer outage than RECONNECT_WAIT_S are refused until its end
                while not dispatcher.is_connected:  # noqa: ASYNC110 - its event may have come before
                    await asyncio.sleep(0.05)
            assert await dispatcher.call("price", {"product": "lamp"}, timeout=30) == "price of lamp"
            await asyncio.sleep(8)
            assert dispatcher.catalog is catalog
            instance = source.table.services[lab.name, None].instances["a"]
            assert source.table._life - instance.heard_at < 10  # announcements arrive again
    finally:
        await asyncio.to_thread(broker.stop)


class Shop(dispatch.ToolService):
    """Answers with its argument."""

    async def invoke(self, config: dict[str, object], arguments: dict[str, object], user: str = "") -> str:
        return f"price of {arguments['product']}"


def permit(broker: SecuredBroker, namespace: str, role: str, *actions: str) -> None:
    """Permit actions in a namespace, or on a topic: ``tenant/namespace/topic``."""
    kind = "non-persistent" if namespace.count("/") == 2 else "namespaces"
    request = urllib.request.Request(
        f"{broker.web_url}/admin/v2/{kind}/{namespace}/permissions/{role}",
        json.dumps(actions).encode(),
        {"Authorization": f"Bearer {broker.token()}", "Content-Type": "application/json"},
    )
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20).close()


FORGED = 40


@pytest.mark.parametrize("may_announce", [False, True])
async def test_forged_announcements_with_the_token_of_an_agent_change_nothing(
    secured_broker: SecuredBroker, may_announce: bool
) -> None:
    """The agent may only consume announcements; and the same where it may publish them, too."""
    agent, seller = f"agent-{may_announce}", "seller"
    notify = ("consume", "produce") if may_announce else ("consume",)
    for role, rights in (
        (agent, {"request": ("produce",), "response": ("consume",), "notify": notify}),
        (seller, {"request": ("consume",), "response": ("produce",), "notify": ("produce",)}),
    ):
        for namespace, actions in rights.items():
            await asyncio.to_thread(permit, secured_broker, f"tg/{namespace}", role, *actions)
    url = secured_broker.service_url
    own, theirs = (Security(token=secured_broker.token(role)) for role in (agent, seller))
    name = f"shop-{secrets.token_hex(4)}"
    tools = [tool(service=name)]
    async with (
        ToolServer(Shop(), url, service=name, tools=tools, instance="a", security=theirs),
        dispatch.connect(url, source := dispatch.Announced(), security=own) as dispatcher,
    ):
        await seen(dispatcher, "price", within=10)
        catalog = dispatcher.catalog
        transport = open_transport(url, security=own)
        await transport.start()
        refused: list[object] = []
        if not may_announce:
            with pytest.raises(dispatch.TransportError, match=r"not authorized|permission"):
                await transport.publisher(source.topic)
        else:
            publisher = await transport.publisher(source.topic)
            for number in range(FORGED // 4):
                for each in (
                    AnnouncingInstance(f"e{number}", described=service(f"evil-{number}"), tools=[tool("transfer")]),
                    AnnouncingInstance("a", incarnation="z", described=service(name), tools=[tool("other")]),
                    AnnouncingInstance(f"b{number}", described=service(name), tools=[tool("other")]),
                ):
                    publisher.publish(each.heartbeat(), {}, flow="", on_failure=refused.append)
                end = AnnouncingInstance("a", incarnation=f"y{number}", described=service(name)).bye()
                publisher.publish(end, {}, flow="", on_failure=refused.append)
            await transport.flush()
            assert not refused
            await asyncio.sleep(1)
            assert sum("evil" in queue for queue, _ in source.table._asked_at) == FORGED // 4
        await asyncio.sleep(4)
        assert await dispatcher.call("price", {"product": "lamp"}) == "price of lamp"
        assert dispatcher.catalog is catalog
        await transport.close()
