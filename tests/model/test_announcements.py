"""Announced services against a list of what runs: instances start, change, end and die, messages are lost and repeated, the
connection fails, and a forger publishes whatever it wants, but cannot read questions.

Guards against tools that no service offers, tools that are missing although a service offers them, and descriptors that no
instance has.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch.announcements import MAX_TTL_S
from dispatch.announcements.table import GONE_S, AnnouncementTable
from dispatch.announcements.trust import Trust
from dispatch.catalog.items import Refused
from tests.helpers.announcing import AnnouncingInstance, names, service, settle, tool
from tests.helpers.run_profile import by_profile
from tests.helpers.state_machine_settings import machine

SERVICES, INSTANCES = ("shop", "bank"), ("a", "b", "c")
TTL_S, HEARTBEAT_S = 15.0, 5


class Announcements(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = AnnouncementTable(Trust().within("tg"))
        self.now = 50.0
        self.table.tick(self.now)
        self.is_connected = True
        self.running: dict[tuple[str, str], AnnouncingInstance] = {}
        self.offered: dict[str, set[str]] = {name: set() for name in SERVICES}
        """Tools that a service has had."""
        self.heard: list[bytes] = []
        self.incarnation = 0
        self.longest_life = TTL_S
        """Seconds that a service that has ended can stay: a forger may name another ttl."""

    def _publish(self, *messages: bytes, loses: bool = False) -> None:
        if self.is_connected and not loses:
            self.heard += messages
            for message in messages:
                self.table.receive(message)
            settle(self.table, *self.running.values())

    def _note(self, name: str) -> None:
        for (running, _), each in self.running.items():
            if running == name:
                self.offered[name].add(each.parts.tools[0]["name"])

    @rule(name=st.sampled_from(SERVICES), id=st.sampled_from(INSTANCES), number=st.integers(1, 2), loses=st.booleans())
    def start(self, name: str, id: str, number: int, loses: bool) -> None:
        self.incarnation += 1
        described = service(name)
        one = AnnouncingInstance(
            id,
            incarnation=f"{self.incarnation:05}",
            described=described,
            tools=[tool(f"{name}-{number}", service=name)],
        )
        self.running[name, id] = one
        self._note(name)
        self._publish(*one.writer.write_all(one.parts), loses=loses)

    @rule(data=st.data(), number=st.integers(1, 2))
    def change(self, data: st.DataObject, number: int) -> None:
        if self.running:
            (name, _), one = data.draw(st.sampled_from(sorted(self.running.items(), key=lambda each: each[0])))
            messages = one.change([tool(f"{name}-{number}", service=name)])
            self._note(name)
            self._publish(*messages)

    @rule(data=st.data(), says_bye=st.booleans())
    def stop(self, data: st.DataObject, says_bye: bool) -> None:
        if self.running:
            key = data.draw(st.sampled_from(sorted(self.running)))
            self._note(key[0])
            one = self.running.pop(key)
            if says_bye:
                self._publish(one.bye())

    @rule(seconds=st.integers(1, 100))
    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.table.tick(self.now, is_connected=self.is_connected)
            for (name, _), one in self.running.items():
                self._note(name)
                if self.now % HEARTBEAT_S == 0:
                    self._publish(one.heartbeat())
            settle(self.table, *self.running.values())

    @rule()
    def toggle_connection(self) -> None:
        self.is_connected = not self.is_connected
        self.table.tick(self.now, is_connected=self.is_connected)

    @precondition(lambda self: self.is_connected)
    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 20))
    def forge(self, seed: int, count: int) -> None:
        chosen = random.Random(seed)
        self.longest_life = MAX_TTL_S
        for _ in range(count):
            if self.heard:
                self.table.receive(mutate(chosen.choice(self.heard), chosen))
        settle(self.table, *self.running.values())

    @invariant()
    def only_what_is_or_was_offered_is_in_the_catalogue(self) -> None:
        for item in self.table.items():
            if item.kind == "tool" and isinstance(item.raw, dict):
                name = str(item.raw["service"])  # type: ignore[index] # an object
                assert name in SERVICES
                # A forger can extend the life of a service that has ended by its heartbeats, and cannot bring another one.
                assert item.key in self.offered[name]

    @invariant()
    def what_runs_is_in_the_catalogue(self) -> None:
        for (name, id), one in self.running.items():
            found = self.table.services.get((name, None))
            if found is not None and id in found.instances and found.instances[id].is_proved:
                assert found.items
                if (
                    len(found.instances) == 1
                    and found.instances[id].info.incarnation == one.writer._instance.incarnation
                ):
                    assert len(found.items) == 2

    def teardown(self) -> None:
        """At the end, without forgeries, the catalogue is what runs."""
        self.is_connected = True
        self.table.tick(self.now)
        self.wait(int(self.longest_life + GONE_S) + 30)
        found = {key.partition("-")[0] for key in names(self.table)}
        assert found == {name for name, _ in self.running}
        for (name, _), one in self.running.items():
            others = {each.parts.digest for (other, _), each in self.running.items() if other == name}
            found_service = self.table.services[name, None]
            assert found_service.digest in others
            instance = found_service.instances[one.id]
            assert instance.is_proved or instance.digest == found_service.digest


TestAnnouncements = pytest.mark.costly(Announcements.TestCase)
TestAnnouncements.settings = machine(30, 30)


VALUES: tuple[Any, ...] = (
    *(None, 0, -1, 2**64, 1.5, "", "x" * 300, "bank", "persistent://evil/a/b"),
    *([], {}, [1, 2], True, "here", "bye"),
)


def mutate(message: bytes, chosen: random.Random) -> bytes:
    """Return a message with other values at some places, or with other bytes."""
    if chosen.random() < 0.2:
        data = bytearray(message)
        for _ in range(chosen.randint(1, 8)):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        return bytes(data[: chosen.randint(0, len(data))] if chosen.random() < 0.3 else data)
    raw = json.loads(message) if message[:1] == b"{" else None
    if not isinstance(raw, dict):
        return message
    for _ in range(chosen.randint(1, 4)):
        at: Any = raw
        while isinstance(at, dict) and at:
            key = chosen.choice(list(at))
            if isinstance(at[key], dict) and at[key] and chosen.random() < 0.6:
                at = at[key]
                continue
            if chosen.random() < 0.2:
                del at[key]
            else:
                at[key] = chosen.choice([*VALUES, chosen.randrange(10**6), f"n{chosen.randrange(50)}"])
            break
    return json.dumps(raw).encode()


@pytest.mark.long
def test_mutated_announcements_and_answers_bring_nothing_outside_the_trust() -> None:
    chosen = random.Random(7)
    trust = Trust(namespaces=("tg/request", "tg/response"), services=("shop", "n?"), max_items=200)
    table = AnnouncementTable(trust.within("tg"))
    originals = [
        AnnouncingInstance("a", described=service(version="1.0.0")),
        AnnouncingInstance(
            "b", described=service(instances=[{"id": "i", "request-queue": "non-persistent://tg/request/i"}])
        ),
        AnnouncingInstance("c", tools=[tool(f"t{number}", description="d" * 9_000) for number in range(60)]),
    ]
    messages = [one.heartbeat() for one in originals] + [
        m for one in originals for m in one.writer.write_all(one.parts)
    ]
    messages = [message for message in messages if len(message) < 4_000]
    now = 0.0
    for number in range(by_profile(short=4_000, long=200_000)):
        table.receive(mutate(chosen.choice(messages), chosen))
        if number % 10 == 0:
            now += 1
            table.tick(now, is_connected=chosen.random() < 0.9)
            for inquiry in table.pop_inquiries():
                kind = chosen.random()
                answer = None if kind < 0.3 else mutate(chosen.choice(messages), chosen)
                if kind > 0.6:  # a trusted instance that lies about everything else
                    raw = json.loads(chosen.choice(messages))
                    raw["instance"]["id"] = inquiry.instance
                    raw["service"]["request-queue"] = inquiry.request_queue
                    answer = json.dumps(raw).encode()
                table.receive_answer(inquiry, answer)
            for item in table.items():
                raw = item.raw
                if isinstance(raw, Refused):
                    continue
                assert isinstance(raw, dict)
                if item.kind == "tool-service":
                    for queue in (raw["request-queue"], raw["response-queue"]):
                        assert queue.startswith(
                            ("non-persistent://tg/re", "persistent://tg/re", "request:tg:", "response:tg:")
                        )
                    assert raw["id"] in ("shop", *(f"n{digit}" for digit in range(10)))
                assert not {"read-only", "idempotent"} & raw.keys()
            table.pop_reports()
            assert sum(not isinstance(item.raw, Refused) for item in table.items()) <= 200
    assert sum(table.refused.values()) > 1_000
    for part in (table._waiting, table._early, table._checked, table._asked_at, table._reported_at, table._assemblies):
        assert len(part) <= 4_096
