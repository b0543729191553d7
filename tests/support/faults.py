"""A transport that does to messages what networks, brokers and strange peers do; seeded, so that a run can be repeated.

Wraps any transport and works in both directions: on what is published, and on what arrives at the subscriptions' handlers.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dispatch.messages import Property
from dispatch.outcome import TransportError
from dispatch.transports import Handler, Message, Mode, OnFailure, Publisher, Subscription, Ticket, Transport
from tests.support.rubbish import OddMessage, rubbish, with_other_id


@dataclass(frozen=True)
class FaultPlan:
    """The chance of each fault, for each message; at most one happens to a message. Times are in seconds."""

    drop: float = 0.0
    delay: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Held back until the next message of its topic has gone."""
    malformed: float = 0.0
    missing_id: float = 0.0
    oversized_id: float = 0.0
    foreign_id: float = 0.0
    raising: float = 0.0
    """Reading its properties or its data raises. Only what arrives can do that."""
    send_error: float = 0.0
    """Publishing raises. Only what is published can fail like that, and in the next two ways."""
    late_error: float = 0.0
    """Publishing fails later; half of these messages got through all the same."""
    outage: float = 0.0
    """Nothing gets out for ``outage_s``."""
    max_delay: float = 3.0
    outage_s: float = 0.5

    def chances(self) -> list[tuple[str, float]]:
        names = [f.name for f in fields(self) if f.name not in ("max_delay", "outage_s")]
        return [(name, chance) for name in names if (chance := getattr(self, name)) > 0]


class _Dice:
    def __init__(self, plan: FaultPlan, rng: random.Random) -> None:
        self.plan = plan
        self.rng = rng
        self._chances = plan.chances()
        self._any = sum(chance for _, chance in self._chances)
        assert self._any <= 1, "the chances of a plan are more than certain"

    def throw(self) -> str | None:
        thrown = self.rng.random()
        if thrown >= self._any:
            return None
        for name, chance in self._chances:
            thrown -= chance
            if thrown < 0:
                return name
        return None

    def delay(self) -> float:
        return self.rng.random() * self.plan.max_delay


class FaultyTransport:
    """See the module. ``count`` says how often each fault happened; ``handed`` how many replies reached handlers."""

    def __init__(self, inner: Transport, *, outgoing: FaultPlan, incoming: FaultPlan, seed: int) -> None:
        self.inner = inner
        rng = random.Random(seed)
        self.outgoing = _Dice(outgoing, rng)
        self.incoming = _Dice(incoming, rng)
        self.count: Counter[str] = Counter()
        self._handed = 0
        self._others: list[FaultyTransport] = []
        self.out_until = 0.0
        self.once: str | None = None
        """A topic on which what is published is not repeated."""
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def max_message_bytes(self) -> int:
        return self.inner.max_message_bytes

    @property
    def connected(self) -> bool:
        return self.inner.connected and asyncio.get_running_loop().time() >= self.out_until

    def another(self) -> Transport:
        plans = {"outgoing": self.outgoing.plan, "incoming": self.incoming.plan}
        other = FaultyTransport(self.inner.another(), **plans, seed=self.outgoing.rng.randrange(2**32))
        self._others.append(other)
        return other

    @property
    def handed(self) -> int:
        """Replies that reached handlers, on this connection and on others made of it."""
        return self._handed + sum(other.handed for other in self._others)

    async def start(self) -> None:
        await self.inner.start()

    async def publisher(self, topic: str) -> Publisher:
        return FaultyPublisher(self, await self.inner.publisher(topic))

    async def subscribe(self, topic: str, handler: Handler, *, mode: Mode, name: str) -> Subscription:
        subscription = FaultySubscription(self, handler, counts="/dispatch-hello-" not in topic)
        subscription.inner = await self.inner.subscribe(topic, subscription.arrived, mode=mode, name=name)
        return subscription

    async def flush(self) -> None:
        await self.inner.flush()

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await self.inner.close()

    def heal(self) -> None:
        """No more faults."""
        self.outgoing = _Dice(FaultPlan(), self.outgoing.rng)
        self.incoming = _Dice(FaultPlan(), self.incoming.rng)
        self.out_until = 0.0

    def later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        def due() -> None:
            self._timers.discard(handle)
            callback(*args)

        handle = asyncio.get_running_loop().call_later(delay, due)
        self._timers.add(handle)
        return handle

    def cancel(self, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._timers.discard(timer)


class FaultyTicket:
    """A publish on its way: held back here (then it can be withdrawn), on its way, or bound to fail."""

    def __init__(self, transport: FaultyTransport, on_failure: OnFailure) -> None:
        self._transport = transport
        self.on_failure: OnFailure | None = on_failure
        self.inner: Ticket | None = None
        self.held: asyncio.TimerHandle | None = None

    def cancel(self) -> bool:
        self.on_failure = None
        if self.held is not None:
            self._transport.cancel(self.held)
            self.held = None
            return True
        return self.inner is not None and self.inner.cancel()

    waits = False

    def answered(self) -> None:
        if self.inner is not None:
            self.inner.answered()

    def taken(self) -> None:
        if self.inner is not None:
            self.inner.taken()

    def fail(self, error: TransportError) -> None:
        on_failure, self.on_failure = self.on_failure, None
        if on_failure is not None:
            on_failure(error)


class FaultyPublisher:
    """See :class:`dispatch.transports.base.Publisher`."""

    def __init__(self, transport: FaultyTransport, inner: Publisher) -> None:
        self._transport = transport
        self._inner = inner
        self.topic = inner.topic
        self._held_back: list[Callable[[], None]] = []

    def publish(
        self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure
    ) -> FaultyTicket:
        transport = self._transport
        dice, rng = transport.outgoing, transport.outgoing.rng
        ticket = FaultyTicket(transport, on_failure)

        def go(body: bytes = payload, props: Mapping[str, str] = properties) -> None:
            ticket.held = None
            try:
                ticket.inner = self._inner.publish(body, props, flow=flow, on_failure=ticket.fail)
            except TransportError as error:  # the connection was closed meanwhile
                ticket.fail(error)

        now = asyncio.get_running_loop().time()
        fault = "outage" if now < transport.out_until else dice.throw()
        if fault == "duplicate" and self.topic == transport.once:
            fault = None
        if fault is not None:
            transport.count[f"out {fault}"] += 1
        match fault:
            case "drop":
                pass
            case "delay" if rng.random() < 0.5:
                ticket.held = transport.later(dice.delay(), go)
            case "delay":
                transport.later(dice.delay(), go)
            case "duplicate":
                go()
                transport.later(dice.delay(), go)
            case "reorder":
                sent = False

                def once() -> None:
                    nonlocal sent
                    if not sent:
                        sent = True
                        go()

                self._held_back.append(once)
                transport.later(dice.delay(), once)
                return ticket
            case "malformed":
                go(rubbish(rng, payload))
            case "missing_id" | "oversized_id" | "foreign_id":
                go(payload, with_other_id(rng, properties, fault))
            case "send_error":
                raise TransportError("queue-full", "the queue is full (a fault of the test's)", sent=False)
            case "late_error":
                got_through = rng.random() < 0.5
                if got_through:
                    go()
                error = TransportError("send-failed", "lost (a fault of the test's)", sent=got_through)
                transport.later(dice.delay(), ticket.fail, error)
            case "outage":
                if now >= transport.out_until:
                    transport.out_until = now + dice.plan.outage_s
                if rng.random() < 0.5:
                    raise TransportError("unreachable", "no connection (a fault of the test's)", sent=False)
                error = TransportError("connection-lost", "the connection ended (a fault of the test's)")
                transport.later(dice.delay(), ticket.fail, error)
            case _:
                go()
        while self._held_back:
            self._held_back.pop()()
        return ticket

    async def writable(self, flow: str) -> None:
        await self._inner.writable(flow)

    async def close(self) -> None:
        await self._inner.close()


class FaultySubscription:
    """See :class:`dispatch.transports.base.Subscription`."""

    inner: Subscription

    def __init__(self, transport: FaultyTransport, handler: Handler, *, counts: bool) -> None:
        self._transport = transport
        self._handler: Handler | None = handler
        self._counts = counts
        self._held_back: list[Message] = []

    @property
    def topic(self) -> str:
        return self.inner.topic

    def arrived(self, message: Message) -> None:
        transport = self._transport
        dice, rng = transport.incoming, transport.incoming.rng
        fault = dice.throw()
        if fault is not None:
            transport.count[f"in {fault}"] += 1
        match fault:
            case "drop":
                pass
            case "delay":
                transport.later(dice.delay(), self._hand, message)
            case "duplicate":
                self._hand(message)
                transport.later(dice.delay(), self._hand, message)
            case "reorder":
                self._held_back.append(message)
                transport.later(dice.delay(), self._release)
                return
            case "malformed":
                self._hand(OddMessage(rubbish(rng, message.data()), message.properties()))
            case "missing_id" | "oversized_id" | "foreign_id":
                self._hand(OddMessage(message.data(), with_other_id(rng, message.properties(), fault)))
            case "raising":
                raises = rng.choice(("properties", "data"))
                self._hand(OddMessage(message.data(), message.properties(), raises=raises))
            case _:
                self._hand(message)
        self._release()

    def _release(self) -> None:
        while self._held_back:
            self._hand(self._held_back.pop())

    def _hand(self, message: Message) -> None:
        if self._handler is not None:
            if self._counts and _is_reply(message):
                self._transport._handed += 1
            self._handler(message)

    async def close(self) -> None:
        await self.inner.close()
        self._handler = None
        self._held_back.clear()


def _is_reply(message: Message) -> bool:
    """Everything but the word that a request has arrived, or an instance. What cannot be read might have been a reply."""
    try:
        return not {Property.TAKEN, Property.HERE} & message.properties().keys()
    except Exception:
        return True
