"""Discovery of instances with sessions: hellos, announcements, handshakes, and the ends of sessions."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatch.messaging.endpoint import Endpoint
from dispatch.messaging.plain import Correlator
from dispatch.messaging.sessions import SessionExchange
from dispatch.messaging.wire import MAX_PROPERTY_BYTES, Identity, reply_topic
from dispatch.protocol import SessionTable
from dispatch.protocol.events import Failure, PeerConflict
from dispatch.routing.discovery import (
    EVICTABLE_AFTER_S,
    FIRST_HELLOS_S,
    HANDSHAKE_S,
    HELLO_AGAIN_S,
    HELLO_EVERY_S,
    HELLO_URGENT_S,
    MAX_HANDSHAKES,
    PROBE_EVERY_S,
    WARN_EVERY_S,
    Discovery,
)
from dispatch.routing.instance import SessionInstance, TopicChannel
from dispatch.testing import EmbeddedBroker, FaultInjector
from dispatch.transports import Message, Mode
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import START, advance, idle
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, Service, catalog
from tests.helpers.endpoint_peers import Callee, new_topics
from tests.helpers.fakes import FakePublisher, lost
from tests.helpers.malformed_messages import AlteredMessage
from tests.helpers.session import KEY, SECRET

URL = "memory://discovery"


class Scene:
    """A dispatcher with one channel, and instances that announce themselves when the test says so."""

    def __init__(self) -> None:
        self.topics = new_topics()
        self.transport = MemoryTransport(URL)
        self.correlator = Correlator()
        self.correlator.identity = Identity(SECRET)
        self.sessions = SessionExchange(self.correlator.replies)
        self.inbox = reply_topic(self.topics[1], f"{KEY}-one")
        table = SessionTable("one", "1", [self.inbox], random_bytes=os.urandom, secret=SECRET)
        self.endpoint = Endpoint(self.transport, table, self.sessions.handle_events)
        self.channels: dict[tuple[str, str], TopicChannel] = {}
        self.discovery = Discovery(self.correlator, self.sessions, self.channels)
        self.sessions.on_session_event = self.discovery.on_session_event
        self.hellos = FakePublisher()
        self.channel = self.open_channel()
        self.callees: list[Callee] = []

    def open_channel(self) -> TopicChannel:
        channel = TopicChannel(
            self.topics[0], FakePublisher(), self.inbox, self.endpoint, self.correlator, self.discovery
        )
        channel.hello = self.hellos
        self.channels[self.topics[0], f"{self.topics[1]}-{len(self.channels)}"] = channel
        return channel

    async def start(self) -> None:
        await self.transport.start()

        def on_message(message: Message) -> None:
            self.endpoint.receive_packet(message.data())

        await self.transport.subscribe(self.inbox, on_message, mode=Mode.FANOUT, name="dispatch-one")

    async def stop(self) -> None:
        for channel in self.channels.values():
            channel.close()
        await self.discovery.close_handshakes()
        await self.endpoint.close()
        for callee in self.callees:
            await callee.stop()
        await self.transport.close()

    async def serve(self, name: str) -> Callee:
        callee = Callee(MemoryTransport(URL), self.topics, name)
        await callee.start()
        self.callees.append(callee)
        return callee

    def announce(self, name: str, incarnation: str = "1", **changes: str) -> None:
        properties = {"here": self.topics[0], "instance": name, "incarnation": incarnation, "features": "x,session"}
        self.discovery.on_announcement(AlteredMessage(b"", {**properties, **changes}))

    async def meet(self, name: str) -> Callee:
        """Serve, announce, and wait until the instance is known."""
        callee = await self.serve(name)
        self.announce(name, callee.table.incarnation)
        while not len(self.channel.instances):
            await self.channel.create_turn()
        await idle()
        return callee

    def known(self) -> list[str]:
        return sorted(instance.name for instance in self.channel.instances)

    def instance(self, name: str) -> SessionInstance:
        found = self.channel.instances.get(name)
        assert found is not None
        return found


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


# -- announcements and handshakes ---------------------------------------------------------------------------------


async def test_an_announced_instance_is_known_when_its_session_is_open() -> None:
    async with scene() as made:
        callee = await made.serve("a")
        made.announce("a", callee.table.incarnation)
        assert made.known() == []
        await idle()
        assert made.known() == ["a"]
        assert made.channel.had_instances
        assert made.instance("a").incarnation == callee.table.incarnation
        made.announce("a", callee.table.incarnation)
        await idle()
        assert len(made.endpoint.table.sessions) == 1, "no other session"


@pytest.mark.parametrize(
    "changes",
    [
        {"here": "non-persistent://tg/request/other"},
        {"features": "other"},
        {"features": ""},
        {"instance": ""},
        {"instance": "x" * (MAX_PROPERTY_BYTES + 1)},
        {"incarnation": ""},
        {"refused": "draining"},
    ],
)
async def test_other_announcements_begin_no_handshake(changes: dict[str, str]) -> None:
    async with scene() as made:
        await made.serve("a")
        made.announce("a", **changes)
        made.discovery.on_announcement(AlteredMessage(b"", {"instance": "a"}))
        await idle()
        assert made.known() == []
        assert not made.endpoint.table.sessions


async def test_the_handshake_with_an_absent_instance_is_given_up() -> None:
    async with scene() as made:
        made.announce("absent")
        await advance(HANDSHAKE_S - 0.1)
        assert len(made.endpoint.table.sessions) == 1
        await advance(0.2)
        assert not made.endpoint.table.sessions
        assert not made.discovery._handshakes
        await made.meet("absent")
        assert made.known() == ["absent"]


async def test_an_instance_of_another_name_on_the_topic_is_not_known() -> None:
    async with scene() as made:
        (await made.serve("a")).table.name = "b"
        made.announce("a")
        await idle()
        assert made.known() == []
        assert not made.endpoint.table.sessions


async def test_a_flood_of_announcements_has_few_handshakes_and_hides_no_instance() -> None:
    async with scene() as made:
        for number in range(3 * MAX_HANDSHAKES):
            made.announce(f"forged-{number}")
        await idle()
        assert len(made.discovery._handshakes) == len(made.endpoint.table.sessions) == MAX_HANDSHAKES
        callee = await made.serve("a")
        made.announce("a", callee.table.incarnation)
        await idle()
        assert made.known() == []
        await advance(EVICTABLE_AFTER_S)
        made.announce("a", callee.table.incarnation)
        await idle()
        assert made.known() == ["a"]
        assert len(made.discovery._handshakes) == MAX_HANDSHAKES - 1


async def test_a_topic_that_cannot_be_opened_ends_the_handshake() -> None:
    async with scene() as made:
        await made.transport.close()
        made.announce("a")
        await idle()
        assert not made.discovery._handshakes
        await made.transport.start()


async def test_two_channels_of_one_service_share_a_session() -> None:
    async with scene() as made:
        other = made.open_channel()
        await made.meet("a")
        assert other.instances.get("a") is made.instance("a")
        third = made.open_channel()
        made.announce("a", made.instance("a").incarnation)
        assert third.instances.get("a") is made.instance("a")
        assert len(made.endpoint.table.sessions) == 1


# -- hello --------------------------------------------------------------------------------------------------------


async def test_hellos_are_sent_three_times_at_first_because_each_may_be_lost() -> None:
    async with scene() as made:
        made.discovery.seek(made.channel)
        await advance(5)
        found = [dict(each.properties) for each in made.hellos.sent]
        assert found == [{"hello": made.topics[0], "reply-to": made.inbox, "session": SECRET}] * len(FIRST_HELLOS_S)
        assert not made.channel.timers
        made.hellos.sent.clear()
        made.discovery.seek(made.channel)
        await made.meet("a")
        await advance(1)
        assert len(made.hellos.sent) == 1


async def test_while_calls_wait_hellos_go_on() -> None:
    async with scene() as made:
        turn = made.channel.create_turn()
        made.discovery.seek(made.channel)
        await advance(0.1 + 4 * HELLO_URGENT_S)
        assert len(made.hellos.sent) == pytest.approx(len(FIRST_HELLOS_S) + 4, abs=1)
        await made.meet("a")
        await idle()
        assert turn.done()
        sent = len(made.hellos.sent)
        await advance(HELLO_URGENT_S + 0.1)
        assert len(made.hellos.sent) == sent


async def test_hellos_are_due_each_second_until_an_instance_is_known() -> None:
    async with scene() as made:
        made.hellos.refusal = lost()
        made.discovery.send_due_hello(made.channel)  # a failure is no concern of the call that sends it
        made.hellos.refusal = None
        assert sent_within(made, HELLO_AGAIN_S + 0.01) == 0
        await advance(HELLO_AGAIN_S + 0.01)
        assert sent_within(made, 1) == 1
        await made.meet("a")
        await advance(HELLO_AGAIN_S)
        assert sent_within(made, 1) == 1
        await advance(HELLO_EVERY_S - 0.1)
        assert sent_within(made, 1) == 0
        await advance(0.2)
        assert sent_within(made, 1) == 1


def sent_within(made: Scene, uses: float) -> int:
    """Return the hellos that using the channel sends."""
    before = len(made.hellos.sent)
    for _ in range(max(2, int(uses))):
        made.discovery.send_due_hello(made.channel)
    return len(made.hellos.sent) - before


# -- another incarnation ------------------------------------------------------------------------------------------


async def test_a_forged_incarnation_changes_nothing_and_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with scene() as made:
        await made.meet("a")
        instance = made.instance("a")
        await advance(1)
        probes = instance.session.statistics.probes
        for number in range(50):
            made.announce("a", f"forged-{number}")
        await advance(PROBE_EVERY_S - 0.1)
        assert instance.session.statistics.probes - probes == instance.session.settings.probe_copies
        assert made.instance("a") is instance
        assert caplog.text.count("another instance of") == 1
        await advance(0.2)
        made.announce("a", "forged")
        await advance(1)
        assert instance.session.statistics.probes - probes == 2 * instance.session.settings.probe_copies
        assert caplog.text.count("another instance of") == 1
        await advance(WARN_EVERY_S)
        made.announce("a", "forged")
        await advance(1)
        assert caplog.text.count("another instance of") == 2


async def test_a_restarted_instance_is_known_again_at_once() -> None:
    async with scene() as made:
        callee = await made.meet("a")
        await advance(1)
        former = made.instance("a")
        assert isinstance(callee.transport, MemoryTransport)
        callee.transport.cut()
        again = await made.serve("a")
        made.announce("a", again.table.incarnation)
        await advance(0.2)
        assert made.instance("a").incarnation == again.table.incarnation
        assert former.session.end_reason is Failure.RESTARTED


# -- the end ------------------------------------------------------------------------------------------------------


async def test_a_draining_instance_gets_nothing_new_and_its_session_ends_when_it_is_idle() -> None:
    async with scene() as made:
        callee = await made.meet("a")
        [session] = callee.table.sessions.values()
        session.drain()  # type: ignore[attr-defined] # of a callee
        callee.endpoint.wake(session)
        await idle()
        assert made.known() == []
        assert not len(made.channel.instances)
        assert len(made.endpoint.table.sessions) == 1
        assert sent_within(made, 1) == 1, "another instance is searched for"
        assert not made.endpoint.table.sessions, "nothing is in flight there"


@pytest.mark.parametrize(
    ("reason", "is_opened_again"),
    [
        (Failure.CLOSED, False),
        (Failure.EVICTED, False),
        (Failure.BROKER_REFUSED, False),
        (Failure.SILENT, False),
        (Failure.RESTARTED, True),
        (Failure.IDLE, True),
        (Failure.REPLACED, True),
        (Failure.VIOLATION, True),
    ],
)
async def test_the_end_of_a_session_may_begin_another_one(reason: Failure, is_opened_again: bool) -> None:
    async with scene() as made:
        await made.meet("a")
        sent_within(made, 1)
        made.endpoint.end(made.instance("a").session, reason)
        assert made.known() == []
        assert not len(made.channel.instances)
        assert made.channel.hello_at == 0.0, "the next call asks for instances"
        await idle()
        assert made.known() == (["a"] if is_opened_again else [])


async def test_a_closed_channel_ends_sessions_that_no_other_one_uses() -> None:
    async with scene() as made:
        other = made.open_channel()
        await made.meet("a")
        instances = list(made.channel.instances)
        made.channels.pop(next(key for key, each in made.channels.items() if each is made.channel)).close()
        made.discovery.close_sessions(instances)
        assert len(made.endpoint.table.sessions) == 1
        made.channels.clear()
        other.close()
        made.discovery.close_sessions(other.instances)
        assert not made.endpoint.table.sessions


async def test_two_processes_of_one_name_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with scene() as made:
        await made.meet("a")
        for _ in range(3):
            made.discovery.on_session_event(made.instance("a").session, PeerConflict())
        assert caplog.text.count("are both named a") == 1
        await advance(WARN_EVERY_S + 1)
        made.discovery.on_session_event(made.instance("a").session, PeerConflict())
        assert caplog.text.count("are both named a") == 2


async def test_closing_gives_up_the_handshakes_of_one_endpoint_or_all() -> None:
    async with scene() as made:
        for name in ("x", "y"):
            made.announce(name)
        await idle()
        other = Endpoint(
            made.transport, SessionTable("o", "1", ["o"], random_bytes=bytes), lambda _session, _events: None
        )
        await made.discovery.close_handshakes(other)
        assert len(made.discovery._handshakes) == 2
        await made.discovery.close_handshakes(made.endpoint)
        assert not made.discovery._handshakes
        assert not made.endpoint.table.sessions
        made.announce("x")
        await made.discovery.close_handshakes()  # its publisher is being opened
        await idle()
        assert not made.endpoint.table.sessions
        await other.close()


async def test_calls_after_an_outage_go_to_instances_that_are_back() -> None:
    gone, back, broker = FaultInjector(), FaultInjector(), EmbeddedBroker()

    async def work(_arguments: dict[str, Any]) -> str:
        await asyncio.sleep(0.01)
        return "done"

    async with (
        broker.serve(Service(work), REQUESTS, response_queue=RESPONSES, faults=gone),
        broker.serve(Service(work), REQUESTS, response_queue=RESPONSES, faults=back),
        broker.connect(catalog()) as dispatcher,
    ):
        for _ in range(20):
            await dispatcher.call("work")
        gone.disconnect(1e6)  # as one that was killed in the outage
        for each in (back, broker.injector):
            each.disconnect(20)
        await advance(21)
        calls = [asyncio.create_task(dispatcher.call("work", timeout=60)) for _ in range(20)]
        assert await asyncio.gather(*calls) == ["done"] * 20
        assert asyncio.get_running_loop().time() < START + 23
        gone.heal()
