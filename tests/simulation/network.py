"""Non-persistent topics in virtual time: packets are lost, copied, delayed and reordered."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol

from tests.simulation.conditions import Conditions
from tests.simulation.scheduler import Scheduler

LARGE_BYTES = 30_000
REQUESTS, RESPONSES = "requests/", "responses/"
"""Namespaces: agents write the first one and read the second one (protocol.md, "Topics and trust")."""


def response_inbox(secret: str, name: str) -> str:
    """Return an inbox that only the holder of the secret can claim."""
    return f"{RESPONSES}{blake2b(secret.encode(), digest_size=8).hexdigest()}-{name}"


def may_reply_to(inbox: str, secret: str) -> bool:
    return inbox.startswith(response_inbox(secret, ""))


class Subscriber(Protocol):
    def receive(self, packet: bytes, *, delay: float, is_forged: bool) -> None: ...


class Network:
    """Delivers packets to the subscribers of a topic."""

    def __init__(self, scheduler: Scheduler, r: random.Random, conditions: Conditions, counts: Counter[str]) -> None:
        self._scheduler = scheduler
        self._random = r
        self.conditions = conditions
        self._counts = counts
        self._subscribers: defaultdict[str, list[Subscriber]] = defaultdict(list)
        self._last_arrival: defaultdict[str, float] = defaultdict(float)
        self.is_silent = False
        """An outage: every packet is lost."""
        self.on_response: Callable[[str, bytes], None] = lambda topic, packet: None
        """Called with each packet published to the response namespace, which agents can read."""

    def subscribe(self, topic: str, subscriber: Subscriber) -> None:
        self._subscribers[topic].append(subscriber)

    def unsubscribe(self, topic: str, subscriber: Subscriber) -> None:
        if subscriber in self._subscribers[topic]:
            self._subscribers[topic].remove(subscriber)

    def publish(self, topic: str, packet: bytes, *, is_forged: bool = False) -> None:
        r, conditions = self._random, self.conditions
        self._counts["packets"] += 1
        if self.is_silent:
            self._counts["lost in an outage"] += 1
            return
        if topic.startswith(RESPONSES):
            self.on_response(topic, packet)
        loss = conditions.loss if len(packet) < LARGE_BYTES else max(conditions.loss, conditions.large_loss)
        delay = conditions.delay_to_instances if topic.startswith(REQUESTS) else conditions.delay_to_dispatchers
        copies = 1
        if r.random() < conditions.duplicates:
            copies = 2
            self._counts["duplicated"] += 1
        for _ in range(copies):
            if r.random() < loss:
                self._counts["lost"] += 1
                continue
            arrival = self._scheduler.now + delay * (0.5 + r.random())
            if r.random() < conditions.reordering:
                self._counts["reordered"] += 1
                arrival += conditions.max_overtaken_s * r.random()
            else:
                arrival = self._last_arrival[topic] = max(arrival, self._last_arrival[topic])
            self._scheduler.schedule(
                arrival - self._scheduler.now, self._deliver, topic, packet, self._scheduler.now, is_forged
            )

    def _deliver(self, topic: str, packet: bytes, published_at: float, is_forged: bool) -> None:
        for subscriber in tuple(self._subscribers[topic]):
            subscriber.receive(packet, delay=self._scheduler.now - published_at, is_forged=is_forged)

    def become_perfect(self) -> None:
        """End all faults, so that the processes come to rest."""
        self.is_silent = False
        self.conditions = CALM


CALM = Conditions(
    loss=0.0,
    large_loss=0.0,
    duplicates=0.0,
    reordering=0.0,
    max_overtaken_s=0.0,
    delay_to_instances=0.0002,
    delay_to_dispatchers=0.0002,
    outage_s=0.0,
    disconnection_s=0.0,
    restarts=0,
    has_twin=False,
    drains=0,
    closes=0,
    has_adversary=False,
    has_deadlines=False,
    cancelled=0.0,
    coalesce_s=0.0,
)
