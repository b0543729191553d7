"""One forged announcement made an instance of its sender, which then read arguments and forged answers; 300 of them took a
tool out of service. Requests travelled in the response namespace, where every agent may subscribe. Now an announcement is
believed after its sender has proved that it consumes the instance's own topic, in the request namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from dispatch.transports import Mode
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, Peer, Service, dispatching, serving

OTHERS = "non-persistent://tg/response/"


class Listening(MemoryTransport):
    """A connection that shows its topics, and writes down what it publishes."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.topics: set[str] = set()
        self.published: list[tuple[str, bytes, Mapping[str, str]]] = []

    async def subscribe(self, topic: str, handler: Any, *, mode: Mode, name: str) -> Any:
        self.topics.add(topic)
        return await super().subscribe(topic, handler, mode=mode, name=name)

    async def publisher(self, topic: str) -> Any:
        connection = self

        class Noting(MemoryPublisher):
            def publish(self, payload: bytes, properties: Mapping[str, str], **more: Any) -> Any:
                connection.published.append((topic, payload, dict(properties)))
                return super().publish(payload, properties, **more)

            def send_packet(self, payload: bytes) -> bool:
                connection.published.append((topic, payload, {}))
                return super().send_packet(payload)

        return Noting(self, topic)


async def forged(forger: Peer, topics: set[str], name: str) -> str:
    """Send forged announcements to every topic in the response namespace, and return the topic on which requests would come,
    as far as an agent may consume it."""
    own = f"{OTHERS}dispatch-control-lab-{name}"
    said = {"here": REQUESTS, "instance": name, "incarnation": "f" * 32, "control": own, "features": "session"}
    for topic in sorted(topics):
        if topic.startswith(OTHERS):
            await forger.send(topic, b"", said)
    return own


@pytest.mark.parametrize("count", [1, 300])
async def test_a_forged_announcement_gets_no_request_and_costs_no_call(count: int) -> None:
    service, connection = Service(lambda _: "genuine"), Listening()
    async with (
        serving(service),
        dispatching(transport=connection) as dispatcher,
        Peer.as_caller(f"{OTHERS}dispatch-control-lab-forger-0") as forger,
    ):
        assert await dispatcher.call("work") == "genuine"
        for number in range(count):
            await forged(forger, connection.topics, f"forger-{number}")
        await advance(0.1)
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(100)))
        assert [result.text for result in results] == ["genuine"] * 100
        assert forger.arrived.empty(), "it was sent a request"
        assert len(dispatcher.instances("lab")) == 1


async def test_nothing_that_agents_can_read_has_a_request_in_it() -> None:
    connection = Listening()
    async with serving(lambda _: "done"), dispatching(transport=connection) as dispatcher:
        for _ in range(100):
            assert await dispatcher.call("work", {"card": "4111"}) == "done"
    assert len(connection.published) > 100
    in_the_open = [topic for topic, _, _ in connection.published if "/request/" not in topic]
    assert in_the_open == []


async def test_calls_that_come_together_to_one_new_instance_all_succeed() -> None:
    async with serving(lambda _: "done"), dispatching() as dispatcher:
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(100)))
        assert [result.text for result in results] == ["done"] * 100


async def test_a_forged_challenge_or_hello_makes_no_instance_speak_to_another_dispatcher() -> None:
    connection = Listening()
    async with (
        serving(lambda _: "done") as server,
        dispatching(transport=connection) as dispatcher,
        Peer.as_caller(RESPONSES) as agent,
    ):
        assert await dispatcher.call("work") == "done"
        (reply_topic,) = (topic for topic in connection.topics if "dispatch-reply-" in topic)
        requests = "non-persistent://tg/request/"
        before = server.counts()["malformed"]
        for topic in (f"{requests}dispatch-hello-lab", f"{requests}dispatch-instance-3-lab-{server.instance}"):
            asked = {"hello": REQUESTS, "challenge": "1", "incarnation": server.incarnation, "reply-to": reply_topic}
            await agent.send(topic, b"", asked)
            await agent.send(topic, b"", asked | {"session": "an agent's own"})
        taken: list[Any] = []
        await agent.transport.subscribe(reply_topic, taken.append, mode=Mode.FANOUT, name="agent")
        await idle()
        assert taken == []
        assert server.counts()["malformed"] == before + 2, "those on the instance's own topic, which are no packets"
