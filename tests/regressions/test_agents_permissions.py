"""TrustGraph's permissions were not enough: a dispatcher produced to the response namespace and every agent could read all
requests there. Now agents produce to the request namespace and consume from the response namespace, services the reverse,
and with an agent's token nothing can be announced, no other agent's request be read and no other agent's call be ended.
Agents may read each dispatcher's inbox: with all packets of it they forge none that an instance accepts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

import pulsar
import pytest

import dispatch
from dispatch import Security
from dispatch.devtools.localbroker import Admin
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.echo_service import Echo
from tests.helpers.forged_packets import list_forged_packets
from tests.helpers.secured_broker import SecuredBroker

pytestmark = pytest.mark.pulsar

GRANTS = {
    "agent": {"tg/request": ["produce"], "tg/response": ["consume"]},
    "other-agent": {"tg/request": ["produce"], "tg/response": ["consume"]},
    "service": {"tg/request": ["consume"], "tg/response": ["produce"]},
}


def grant(broker: SecuredBroker) -> None:
    """pulsar-admin namespaces grant-permission NAMESPACE --role ROLE --actions ACTIONS"""
    admin = broker.token("admin")
    for role, namespaces in GRANTS.items():
        for namespace, actions in namespaces.items():
            request = urllib.request.Request(
                f"{broker.web_url}/admin/v2/namespaces/{namespace}/permissions/{role}",
                data=json.dumps(actions).encode(),
                headers={"Authorization": f"Bearer {admin}", "Content-Type": "application/json"},
                method="POST",
            )
            urllib.request.urlopen(request, timeout=10).close()


class Agent:
    """Another agent, with a plain client of the broker."""

    def __init__(self, broker: SecuredBroker) -> None:
        token = pulsar.AuthenticationToken(broker.token("other-agent"))
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(
            broker.service_url, authentication=token, operation_timeout_seconds=5, logger=logger
        )

    def listen(self, topic: str) -> pulsar.Consumer:
        """Consume what arrives on ``topic`` from now on, beside its owner."""
        return self.client.subscribe(topic, unique_topic("spy"))

    def read(self, consumer: pulsar.Consumer) -> list[bytes]:
        """Return all messages of ``consumer`` until none arrives any more."""
        messages = []
        with contextlib.suppress(pulsar.Timeout):
            while True:
                messages.append(consumer.receive(timeout_millis=500).data())
        return messages

    def send_packets(self, topic: str, packets: Iterable[bytes]) -> None:
        """Send them one after the other, each when the broker has the one before: it drops what a burst has too much."""
        producer = self.client.create_producer(topic, batching_enabled=False)
        for packet in packets:
            producer.send(packet)

    def send(self, topic: str, payload: bytes, properties: dict[str, str]) -> None:
        self.client.create_producer(topic).send(payload, properties=properties)

    def may(self, action: str, topic: str) -> bool:
        """Is it allowed to ``consume`` or to ``produce``?"""
        try:
            if action == "consume":
                self.client.subscribe(topic, unique_topic("spy")).close()
            else:
                self.client.create_producer(topic).close()
        except pulsar.AuthorizationError:
            return False
        return True


class Recording(Echo):
    """Records the arguments of each execution."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        self.texts.append(arguments["text"])
        return await super().invoke(config, arguments, user)


async def thread(function: Any, *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)


async def test_trustgraphs_permissions_are_enough_and_an_agents_token_reaches_no_other_agent(
    secured_broker: SecuredBroker,
) -> None:
    async with attacked(secured_broker) as (dispatcher, service, server, agent, ours):
        first = await dispatcher.execute("echo", {"text": "first"}, timeout=20)
        assert [view.id for view in dispatcher.instances(f"{server.service}-service")] == ["one"], "it is known by name"
        await attack(agent, ours, server.service, dispatcher, first.request_id)
        assert server.counts()["malformed"] > 0, "what was forged is counted"
        assert sorted(service.texts) == sorted(["hello", "first", *map(str, range(32)), *["after"] * 50])


async def test_packets_forged_from_all_that_an_agent_reads_end_no_call_and_run_nothing(
    secured_broker: SecuredBroker,
) -> None:
    async with attacked(secured_broker) as (dispatcher, service, server, agent, ours):
        inbox = inbox_of_dispatcher(ours)
        consumer = await thread(agent.listen, inbox)
        quick = [f"quick {number}" for number in range(100)]
        assert [await dispatcher.call("echo", {"text": text}, timeout=20) for text in quick] == quick
        overheard = await thread(agent.read, consumer)
        # Not the first one, perhaps: a consumer has no permits yet when its subscription is confirmed.
        assert len(overheard) >= len(quick) - 1, "an agent may read what instances send"
        slow = [f"slow {number}" for number in range(32)]
        calls = [
            asyncio.create_task(dispatcher.call("echo", {"text": text, "sleep": 3.0}, timeout=20)) for text in slow
        ]
        await asyncio.sleep(0.2)
        overheard += await thread(agent.read, consumer)
        own_inbox = f"{inbox.rpartition('/')[0]}/{unique_topic('agent')}"
        forged = list_forged_packets(overheard, inbox, own_inbox)
        before = server.counts()["malformed"]
        await thread(agent.send_packets, inbox_of_instance(ours), forged)
        assert [await call for call in calls] == slow
        after = [f"after {number}" for number in range(50)]
        assert await asyncio.gather(*(dispatcher.call("echo", {"text": text}, timeout=20) for text in after)) == after
        assert sorted(service.texts) == sorted(["hello", *quick, *slow, *after])
        assert server.counts()["malformed"] - before >= 0.9 * len(forged), "what was forged is counted"
        await thread(consumer.close)


@contextlib.asynccontextmanager
async def attacked(
    broker: SecuredBroker,
) -> AsyncIterator[tuple[dispatch.Dispatcher, Recording, dispatch.ToolServer, Agent, set[str]]]:
    """A dispatcher that has called an instance, another agent, and the topics that the two have opened."""
    await thread(grant, broker)
    await thread(check_grants_hold_at_all, broker)
    former = await thread(topics_of, broker)
    topic = unique_topic()
    security = {role: Security(token=broker.token(role)) for role in GRANTS}
    service = Recording()
    server = dispatch.ToolServer(
        service, broker.service_url, service=topic, security=security["service"], instance="one"
    )
    async with (
        server,
        dispatch.connect(broker.service_url, catalog_of(topic), security=security["agent"]) as dispatcher,
    ):
        first = await dispatcher.execute("echo", {"text": "hello"}, timeout=20)
        assert first.text == "hello", first.error
        agent = await thread(Agent, broker)
        try:
            yield dispatcher, service, server, agent, await thread(topics_of, broker) - former
        finally:
            await thread(agent.client.close)


def inbox_of_dispatcher(topics: set[str]) -> str:
    (inbox,) = (each for each in topics if "dispatch-reply-" in each)
    return inbox


def inbox_of_instance(topics: set[str]) -> str:
    (inbox,) = (each for each in topics if "dispatch-instance-" in each)
    return inbox


def topics_of(broker: SecuredBroker) -> set[str]:
    admin = Admin(broker.web_url, broker.token("admin"))
    return {*admin.topics("tg/request"), *admin.topics("tg/response")}


async def attack(agent: Agent, ours: set[str], topic: str, dispatcher: dispatch.Dispatcher, request_id: str) -> None:
    assert len(ours) >= 6, ours
    for each in ours:
        # It cannot read what agents send, and cannot announce or answer.
        assert not await thread(agent.may, "consume" if "/request/" in each else "produce", each), each
    own, reply_topic = inbox_of_instance(ours), inbox_of_dispatcher(ours)
    # Meanwhile it ends none of another agent's calls with what it may send, knowing everything that it may read.
    ids = [request_id.split("-")[0] + f"-{number:x}-aaaaaaaaaaaa" for number in range(2, 40)]
    calls = [asyncio.create_task(dispatcher.execute("echo", {"text": str(n), "sleep": 1.0})) for n in range(32)]
    await asyncio.sleep(0)
    forged: list[Awaitable[Any]] = []
    for session in ({}, {"session": "an agent's own"}):
        about = {"id": ids[-1], "reply-to": reply_topic, "settled": "f" * 14, **session}
        for target in (own, f"non-persistent://tg/request/{topic}"):
            forged += [thread(agent.send, target, b'{"config":"{}","arguments":"{}"}', about)]
            forged += [thread(agent.send, target, b"", {"id": id, "cancel": "1", **session}) for id in ids[:8]]
    await asyncio.gather(*forged)
    assert [(await call).text for call in calls] == [str(number) for number in range(32)]
    results = await asyncio.gather(*(dispatcher.execute("echo", {"text": "after"}, timeout=20) for _ in range(50)))
    assert [result.text for result in results] == ["after"] * 50


def check_grants_hold_at_all(broker: SecuredBroker) -> None:
    agent = Agent(broker)
    try:
        assert agent.may("produce", "non-persistent://tg/request/any")
        assert agent.may("consume", "non-persistent://tg/response/any")
        assert not agent.may("consume", "non-persistent://tg/request/any")
        assert not agent.may("produce", "non-persistent://tg/response/any")
    finally:
        agent.client.close()
