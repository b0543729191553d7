"""Admin endpoints announce themselves: which processes a console lists, what a forger can do, and what is opened for it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx2
import pytest

import dispatch
from dispatch import Admin, ToolServer
from dispatch.admin import ADMIN_LABEL, is_endpoint
from dispatch.admin.peers import MAX_ANNOUNCED, SILENT_S, PeerTable
from dispatch.announcements import (
    BYE,
    DEFAULT_TOPIC,
    HERE,
    MAX_TEXT,
    Announce,
    AnnouncementWriter,
    DescriptorParts,
    InstanceInfo,
    Question,
    admin_topic,
    hash_secret,
)
from dispatch.announcements.trust import Trust
from dispatch.calls.fleet import fleet_topic, quota_topic
from dispatch.cli import admin as cli_admin
from dispatch.cli.base import Settings
from dispatch.cli.wire import collect
from dispatch.messaging.wire import TopicError, TopicName
from dispatch.transports import Mode
from dispatch.transports.memory import MemoryTransport
from dispatch.trustgraph.config import ConfigBroker
from tests.helpers.admin_endpoint import eventually, price
from tests.helpers.mcp_servers.programs import free_port

KEYS = {"2026": b"k" * 32}
TOPIC = admin_topic(DEFAULT_TOPIC)
PARTS = DescriptorParts({"id": "agent", "request-queue": "request:tg:x", "response-queue": TOPIC}, ())


class Received:
    """A message."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def data(self) -> bytes:
        return self.payload

    def properties(self) -> dict[str, str]:
        return {}


class Process:
    """A process that announces an endpoint."""

    def __init__(self, name: str, url: str, run: str = "", keys: dict[str, bytes] | None = None) -> None:
        self.secret = f"secret of {name}"
        self.run = run or f"1-{hash_secret(self.secret)}"
        self.writer = AnnouncementWriter(InstanceInfo(name, self.run, labels={ADMIN_LABEL: url}), keys or {})

    def here(self) -> Received:
        return Received(self.writer.write(HERE, PARTS))

    def bye(self, secret: str | None = None) -> Received:
        return Received(self.writer.write(BYE, PARTS, secret=self.secret if secret is None else secret))


class Table(PeerTable):
    """A table with a clock that the test sets."""

    def __init__(self, trust: Trust | None = None) -> None:
        self.time, self.lost_at = 1_000.0, 0.0
        super().__init__(trust or Trust(), lambda: self.time, lambda since: self.lost_at >= since)


def test_a_process_is_listed_until_its_own_bye() -> None:
    table, one, two = Table(), Process("agent-1", "http://10.0.0.1:9464"), Process("agent-2", "https://10.0.0.2:9464")
    for message in (one.here(), two.here(), one.here()):
        table.receive(message)
    assert table.names() == {"http://10.0.0.1:9464": "agent-1", "https://10.0.0.2:9464": "agent-2"}
    table.receive(one.bye())
    assert table.names() == {"https://10.0.0.2:9464": "agent-2"}


def test_a_process_that_is_silent_leaves_after_a_minute_of_a_connection() -> None:
    table, one = Table(), Process("agent-1", "http://10.0.0.1:9464")
    table.receive(one.here())
    table.time += SILENT_S
    assert len(table.names()) == 1
    table.lost_at = table.time
    table.time += SILENT_S
    assert len(table.names()) == 1  # its heartbeats may have been lost with the connection
    table.time += 0.1
    assert table.names() == {}


@pytest.mark.parametrize("secret", ["", "another", hash_secret("secret of agent-1")])
def test_a_forged_bye_ends_no_other_process(secret: str) -> None:
    table, url = Table(), "http://10.0.0.1:9464"
    one = Process("agent-1", url)
    table.receive(one.here())
    table.receive(Process("agent-1", url, one.run).bye(secret))
    assert table.names() == {url: "agent-1"}


def test_a_forged_announcement_adds_a_row_at_most() -> None:
    table, url = Table(), "http://10.0.0.1:9464"
    one = Process("agent-1", url)
    table.receive(one.here())
    other = Process("evil", url, "9-run")  # the same address, with a later incarnation
    table.receive(other.here())
    table.receive(Process("agent-1", "http://evil:1", one.run).here())
    assert table.names() == {url: "agent-1", "http://evil:1": "agent-1"}
    table.receive(one.bye())
    assert table.names()[url] == "evil"


def test_the_number_of_processes_is_bounded_and_those_that_are_listed_stay() -> None:
    table, one = Table(), Process("agent-1", "http://10.0.0.1:9464")
    table.receive(one.here())
    for number in range(MAX_ANNOUNCED + 10):
        table.receive(Process("flood", f"http://evil:{number + 1}").here())
    assert len(table.names()) == MAX_ANNOUNCED
    assert "http://10.0.0.1:9464" in table.names()
    table.time += SILENT_S + 1
    late = Process("agent-2", "http://10.0.0.2:9464")
    table.receive(late.here())
    assert table.names() == {"http://10.0.0.2:9464": "agent-2"}


def test_where_only_signed_announcements_are_accepted_others_are_none() -> None:
    table = Table(Trust(keys=KEYS, signed_only=True))
    for keys in ({}, {"2026": b"x" * 32}, {"other": KEYS["2026"]}):
        table.receive(Process("forged", "http://evil:1", keys=keys).here())
    assert table.names() == {}
    table.receive(Process("agent-1", "http://10.0.0.1:9464", keys=KEYS).here())
    assert list(table.names().values()) == ["agent-1"]


@pytest.mark.parametrize("payload", [b"", b"[]", b"\xff", b"[" * 10_000, b'{"announce": "here"}'])
def test_what_is_no_announcement_changes_nothing(payload: bytes) -> None:
    table = Table()
    table.receive(Received(payload))
    assert table.names() == {}


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("http://10.0.0.1:9464", True),
        ("https://agents.example/shop", True),
        ("http://[::1]:9464", True),
        ("", False),
        ("10.0.0.1:9464", False),
        ("javascript:alert(1)", False),
        ("file:///etc/passwd", False),
        ("ftp://host:21", False),
        ("http://", False),
        ("http://host:99999", False),
        ("http://host:0", False),
        ("http://good.example@evil.example:1", False),
        ("http://host:1/api/log-level?x=1", False),
        ("http://host:1/#x", False),
        ("http://host:1\\@evil", False),
        ("http://ho st:1", False),
        ("http://host:1/\u202e", False),
        ("http://[", False),
    ],
)
def test_only_addresses_of_http_are_listed(url: str, *, is_one: bool) -> None:
    assert is_endpoint(url) is is_one
    table = Table()
    table.receive(Process("agent-1", url).here())
    assert list(table.names()) == ([url] if is_one else [])


def test_long_texts_are_refused() -> None:
    table = Table()
    table.receive(Process("n" * (MAX_TEXT + 1), "http://10.0.0.1:9464").here())
    table.receive(Process("agent-1", f"http://10.0.0.1:9464/{'x' * MAX_TEXT}").here())
    assert table.names() == {}


@pytest.mark.parametrize("name", ["admin", "agents", "tool-descriptors", "tool-descriptors-admin", "quota"])
def test_no_fleet_has_the_topic_of_admin_endpoints(name: str) -> None:
    assert str(TopicName.parse(TOPIC)) not in (fleet_topic(name), quota_topic(name))
    assert TOPIC == "non-persistent://tg/notify/tool-descriptors-admin"
    assert admin_topic("persistent://acme/notify/tools") == "non-persistent://acme/notify/tools-admin"


# -- processes on a broker ---------------------------------------------------------------------------------------


def agent(broker: Any, name: str, *catalog: Any, **options: Any) -> dispatch.Dispatcher:
    return dispatch.connect(broker, list(catalog), client_id=name, **{"admin": "127.0.0.1:0", **options})


async def peers(dispatcher: dispatch.Dispatcher) -> dict[str, str]:
    async with httpx2.AsyncClient(base_url=dispatcher.admin_url or "", trust_env=False) as client:
        found = (await client.get("/api/peers")).json()
    assert {each["source"] for each in found} <= {"announcement"}
    return {each["name"]: each["url"] for each in found}


def listed(dispatcher: dispatch.Dispatcher, *names: str) -> Callable[[], Any]:
    async def are() -> bool:
        return set(await peers(dispatcher)) == set(names)

    return are


async def test_agents_and_services_find_each_other_and_leave_at_once() -> None:
    broker = f"memory://{uuid4().hex}"
    shop = ToolServer(functions=[price], service="shop", instance="shop-1", broker=broker, admin="127.0.0.1:0")
    async with agent(broker, "agent-1") as one, shop:
        async with agent(broker, "agent-2") as two:  # it asks, and does not wait for their heartbeats
            await eventually(listed(two, "agent-1", "shop-1"))
            await eventually(listed(one, "agent-2", "shop-1"))
            assert await peers(one) == {"agent-2": two.admin_url, "shop-1": shop.admin_url}
            async with httpx2.AsyncClient(trust_env=False) as client:
                overview = (await client.get(f"{one.admin_url}/", headers={"Accept": "text/html"})).text
                assert f'href="{two.admin_url}"' in overview
        assert set(await peers(one)) == {"shop-1"}


async def test_a_service_of_a_class_without_descriptors_is_found_too() -> None:
    class Shop:
        async def invoke(self, config: object, arguments: object) -> str:
            return "3"

    broker = f"memory://{uuid4().hex}"
    server = ToolServer(Shop(), broker, service="shop", instance="shop-1", admin="127.0.0.1:0")
    quiet = ToolServer(Shop(), broker, service="bank", instance="bank-1", admin="127.0.0.1:0", announce=None)
    async with server, quiet, agent(broker, "agent-1") as one:
        await eventually(listed(one, "shop-1"))


async def test_the_topic_is_beside_that_of_the_announced_services_and_is_signed_with_their_key() -> None:
    broker, topic = f"memory://{uuid4().hex}", "notify:tg:tools-of-today"
    trust = Trust(keys={**KEYS, "b": b"b" * 32, "c": b"c" * 32}, signed_only=True)
    announce = Announce(topic=topic, keys=KEYS)
    shop = ToolServer(
        functions=[price], service="shop", instance="shop-1", broker=broker, announce=announce, admin="127.0.0.1:0"
    )
    transport = MemoryTransport(broker)
    await transport.start()
    cli = ConfigBroker(transport, "cli")
    async with (
        shop,
        agent(broker, "agent-1", dispatch.Announced(trust, topic=topic)) as one,
        agent(broker, "agent-2", dispatch.Announced(trust, topic=topic)),
        agent(broker, "agent-3"),
    ):
        await eventually(listed(one, "agent-2", "shop-1"))
        found = await collect(cli, admin_topic(topic), Question(stats=True), 0.5, Trust(keys=KEYS))
        assert [(each.service, each.instance, each.is_signed, each.tools) for each in found] == [
            ("agent-1", "agent-1", True, []),
            ("agent-2", "agent-2", True, []),
            ("shop-1", "shop-1", True, []),
        ]
    await cli.close()
    await transport.close()


@pytest.mark.parametrize("variable", ["notify:tg:tools-of-today", "off"])
async def test_without_announced_services_the_topic_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    broker = f"memory://{uuid4().hex}"
    monkeypatch.setenv("DISPATCH_ANNOUNCEMENTS", f" {variable}\n")
    async with agent(broker, "agent-1") as one, agent(broker, "agent-2") as two:
        monkeypatch.delenv("DISPATCH_ANNOUNCEMENTS")
        async with agent(broker, "agent-3") as three, agent(broker, "agent-4"):
            await eventually(listed(three, "agent-4"))
            if variable == "off":
                assert await peers(one) == await peers(two) == {}
            else:
                await eventually(listed(one, "agent-2"))
                await eventually(listed(two, "agent-1"))


async def test_a_variable_that_is_no_topic_is_named_and_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, port = f"memory://{uuid4().hex}", free_port()
    monkeypatch.setenv("DISPATCH_ANNOUNCEMENTS", "tools")
    with pytest.raises(TopicError, match=r"DISPATCH_ANNOUNCEMENTS: 'tools' is no whole topic name\. Fix: "):
        await agent(broker, "agent-1", admin=f"127.0.0.1:{port}").start()
    async with agent(broker, "agent-1", dispatch.Announced(), admin=f"127.0.0.1:{port}"):
        pass  # the variable is not needed, and the port is free


async def test_announced_services_that_are_added_later_bring_their_topic() -> None:
    broker, topic = f"memory://{uuid4().hex}", "notify:tg:tools-of-today"
    options = {"announce": Announce(topic=topic), "admin": "127.0.0.1:0"}
    shop = ToolServer(functions=[price], service="shop", instance="shop-1", broker=broker, **options)
    async with shop, agent(broker, "agent-1") as one, agent(broker, "agent-2") as two:
        await eventually(listed(one, "agent-2"))
        await one.registry.add_source(dispatch.Announced(topic=topic))
        await eventually(listed(one, "shop-1"))
        await eventually(listed(two))
        await two.reload(dispatch.Announced(topic=topic))
        await eventually(listed(one, "agent-2", "shop-1"))
        await eventually(listed(two, "agent-1", "shop-1"))
        # Of the same id and state: no event of the source says that it is another one.
        await two.reload(dispatch.Announced(Trust(keys=KEYS, signed_only=True), topic=topic))
        await eventually(listed(two))
        await one.registry.remove_source("announced")
        await eventually(listed(one))


async def test_only_signed_processes_get_the_token_and_a_forger_replaces_none(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = f"memory://{uuid4().hex}"
    trust = Trust(keys=KEYS)
    transport = MemoryTransport(broker)
    await transport.start()
    cli = ConfigBroker(transport, "cli")

    class Connected:
        async def __aenter__(self) -> ConfigBroker:
            return cli

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(cli_admin, "connect_broker", lambda *_: Connected())
    monkeypatch.setattr(Settings, "load_trust", lambda _self: trust)
    async with agent(broker, "agent-1", dispatch.Announced(trust)) as one, agent(broker, "agent-2") as two:
        url = str(one.admin_url)
        forger = await transport.publisher(TOPIC)
        finding = asyncio.ensure_future(cli_admin._find_announced(Settings(), "a-token-of-an-operator"))
        for _ in range(5):
            await asyncio.sleep(0.1)
            for claim in (Process("agent-1", "http://evil:1"), Process("agent-1", url), Process("x", "javascript:1")):
                for parts in (PARTS, DescriptorParts({**PARTS.service, "id": "agent-1"}, ())):
                    payload = claim.writer.write(HERE, parts, stats={})
                    forger.publish(payload, {}, flow="", on_failure=print)
        tokens = {each.url: bool(each._headers) for each in await finding}
        assert tokens == {url: True, "http://evil:1": False, str(two.admin_url): False}
    await cli.close()
    await transport.close()


class Refusing(MemoryTransport):
    """A connection whose broker refuses topics.

    Args:
        refused: parts of their names.

    Attributes:
        opened: names of the topics that were opened, or refused.
    """

    def __init__(self, url: str, *refused: str) -> None:
        super().__init__(url)
        self.refused = refused
        self.opened: list[str] = []

    def _check(self, topic: str) -> None:
        self.opened.append(topic)
        if any(topic.endswith(part) for part in self.refused):
            raise dispatch.TransportError("unauthorized", f"no permission for {topic}.", may_have_run=False)

    async def publisher(self, topic: str) -> Any:
        self._check(topic)
        return await super().publisher(topic)

    async def subscribe(self, topic: str, handler: Any, *, mode: Mode, name: str, answer_late: Any = None) -> Any:
        self._check(topic)
        return await super().subscribe(topic, handler, mode=mode, name=name, answer_late=answer_late)


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (("-admin", "-admin-who"), "the admin endpoint of agent-1 is not announced on non-persistent://tg/notify/tool"),
        (("-admin-who",), "answers no questions about non-persistent://tg/notify/tool-descriptors-admin, so that"),
    ],
)
async def test_a_broker_that_refuses_the_topic_is_one_line_with_the_fix(
    caplog: pytest.LogCaptureFixture, refused: tuple[str, ...], text: str
) -> None:
    url = f"memory://{uuid4().hex}"
    with caplog.at_level(logging.INFO):
        async with (
            agent(Refusing(url, *refused), "agent-1", dispatch.Announced(until="price")) as one,
            ToolServer(functions=[price], service="shop", instance="shop-1", broker=url, admin="127.0.0.1:0"),
        ):
            await eventually(lambda: "price" in one.catalog.tools)
            assert await one.call("price", {"item": "a"}) == "3"
            await eventually(lambda: text in caplog.text)
    (record,) = [each for each in caplog.records if "no permission for" in each.getMessage()]
    assert record.name == "dispatch.admin"
    assert "Name its URL: 'dispatch top URL', --peer or Admin(peers=…)." in record.getMessage()


async def test_an_agent_that_may_only_read_shows_the_others() -> None:
    class ReadOnly(MemoryTransport):
        async def publisher(self, topic: str) -> Any:
            if "-admin" in topic:
                raise dispatch.TransportError("unauthorized", f"no permission for {topic}.", may_have_run=False)
            return await super().publisher(topic)

    url = f"memory://{uuid4().hex}"
    async with agent(url, "agent-2") as two, agent(ReadOnly(url), "agent-1") as one:
        await eventually(listed(one, "agent-2"))
        assert await peers(two) == {}


async def test_without_an_admin_endpoint_nothing_is_opened_for_it() -> None:
    url = f"memory://{uuid4().hex}"
    without, beside = Refusing(url), Refusing(url)
    async with agent(without, "agent-1", admin=None), agent(beside, "agent-2"):
        await eventually(lambda: len([each for each in beside.opened if "-admin" in each]) == 4)
    assert not [each for each in without.opened if "-admin" in each]


async def test_the_end_does_not_wait_for_a_topic_that_does_not_open() -> None:
    class Hanging(MemoryTransport):
        async def publisher(self, topic: str) -> Any:
            if "-admin" in topic:
                await asyncio.get_running_loop().create_future()
            return await super().publisher(topic)

    dispatcher = agent(Hanging(f"memory://{uuid4().hex}"), "agent-1", admin=Admin())
    async with asyncio.timeout(20):
        await dispatcher.start()
        await dispatcher.close()


def test_this_module_is_no_part_of_the_import() -> None:
    code = "import dispatch, sys; dispatch.connect; assert 'dispatch.admin.peers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
