"""TrustGraph's permissions were not enough: a dispatcher produced to the response namespace and every agent could read all
requests there. Now agents produce to the request namespace and consume from the response namespace, services the reverse,
and with an agent's token nothing can be announced, no other agent's request be read and no other agent's call be ended."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Awaitable
from typing import Any

import pulsar
import pytest

import dispatch
from dispatch import Security
from dispatch.devtools.localbroker import Admin, LocalBroker
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.echo_service import Echo

pytestmark = pytest.mark.pulsar

GRANTS = {
    "agent": {"tg/request": ["produce"], "tg/response": ["consume"]},
    "other-agent": {"tg/request": ["produce"], "tg/response": ["consume"]},
    "service": {"tg/request": ["consume"], "tg/response": ["produce"]},
}


def grant(broker: LocalBroker) -> None:
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

    def __init__(self, broker: LocalBroker) -> None:
        token = pulsar.AuthenticationToken(broker.token("other-agent"))
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(
            broker.service_url, authentication=token, operation_timeout_seconds=5, logger=logger
        )

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


async def thread(function: Any, *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)


async def test_trustgraphs_permissions_are_enough_and_an_agents_token_reaches_no_other_agent(
    secured_broker: LocalBroker,
) -> None:
    broker = secured_broker
    await thread(grant, broker)
    await thread(check_grants_hold_at_all, broker)
    former = await thread(topics_of, broker)
    topic = unique_topic()
    security = {role: Security(token=broker.token(role)) for role in GRANTS}
    server = dispatch.ToolServer(
        Echo(), broker.service_url, service=topic, security=security["service"], instance="one"
    )
    async with (
        server,
        dispatch.connect(broker.service_url, catalog_of(topic), security=security["agent"]) as dispatcher,
    ):
        first = await dispatcher.execute("echo", {"text": "hello"}, timeout=20)
        assert first.text == "hello", first.error
        assert [view.id for view in dispatcher.instances(f"{topic}-service")] == ["one"], "it is known by name"
        agent = await thread(Agent, broker)
        try:
            ours = await thread(topics_of, broker) - former
            await attack(agent, ours, topic, dispatcher, first.request_id)
        finally:
            await thread(agent.client.close)
        assert server.counts()["malformed"] > 0, "what was forged is counted"


def topics_of(broker: LocalBroker) -> set[str]:
    admin = Admin(broker.web_url, broker.token("admin"))
    return {*admin.topics("tg/request"), *admin.topics("tg/response")}


async def attack(agent: Agent, ours: set[str], topic: str, dispatcher: dispatch.Dispatcher, request_id: str) -> None:
    assert len(ours) >= 6, ours
    for each in ours:
        # It cannot read what agents send, and cannot announce or answer.
        assert not await thread(agent.may, "consume" if "/request/" in each else "produce", each), each
    (own,) = (each for each in ours if "dispatch-instance-" in each)
    (reply_topic,) = (each for each in ours if "dispatch-reply-" in each)
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


def check_grants_hold_at_all(broker: LocalBroker) -> None:
    agent = Agent(broker)
    try:
        assert agent.may("produce", "non-persistent://tg/request/any")
        assert agent.may("consume", "non-persistent://tg/response/any")
        assert not agent.may("consume", "non-persistent://tg/request/any")
        assert not agent.may("produce", "non-persistent://tg/response/any")
    finally:
        agent.client.close()
