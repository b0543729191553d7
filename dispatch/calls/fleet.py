"""A dispatcher's part in its fleet: the messages of :mod:`dispatch.resilience.fleet` over the dispatcher's connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from dispatch._internal import cancel_and_wait, loop_clock, wait_set
from dispatch.errors import TransportError
from dispatch.messaging.wire import TopicName
from dispatch.resilience.breaker import CircuitBreaker, State
from dispatch.resilience.fleet import KEEP_S, QUOTA, RATE, SLOTS, TICK_S, Fleet, FleetFigures, Record
from dispatch.resilience.leases import QuotaLease, RateLease, SlotsLease
from dispatch.transports import Message, Mode, Publisher, Subscription, Transport
from dispatch.transports.base import DurableMessage
from dispatch.transports.errors import describe_without_call

_log = logging.getLogger("dispatch.calls")

START_S: Final = 3.0
"""Seconds for which a dispatcher that starts waits for its leases."""
MIN_TICK_S: Final = 0.02
"""Seconds between two ticks, at least."""
LOAD_S: Final = 5.0
"""Seconds for which a new leader waits for the records of quotas."""
DIFFERS_S: Final = 3.0
"""Seconds after which different numbers for a limit are reported: dispatchers read a changed policy one after the other."""
HINT_S: Final = 2.0
"""Seconds for which reports have a circuit that has opened or closed: four reports."""
MAX_RETRY_S: Final = 30.0
SUBSCRIPTION: Final = "dispatch-quota"
"""The durable subscription that retains the newest record of each quota."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?", re.ASCII)


def fleet_topic(name: str) -> str:
    """Return the topic of a fleet: ``notify:tg:dispatch-NAME``.

    Raises:
        ValueError: ``name`` is no name of a fleet.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the name of a fleet has 1 to 64 lower-case letters, digits and hyphens, and {name!r:.80} has not; "
            "give for instance fleet='shop'"
        )
    return str(TopicName.parse(f"notify:tg:dispatch-{name}"))


def quota_topic(name: str) -> str:
    """Return the persistent topic with the quotas of a fleet."""
    topic = TopicName.parse(fleet_topic(name))
    return str(TopicName(True, topic.tenant, topic.namespace, f"{topic.name}-quota"))


class FleetLink:
    """Exchanges the messages of one member.

    Args:
        transport: the dispatcher's connection.
        name: of the fleet.
        client_id: of the dispatcher.

    Attributes:
        core: the member.
        circuits: returns the circuit breakers of this dispatcher, with the labels of their tools.
    """

    def __init__(self, transport: Transport, name: str, client_id: str) -> None:
        self.name = name
        self.topic = fleet_topic(name)
        self._transport = transport
        self._client_id = client_id
        self.core = Fleet(f"{client_id}-{os.urandom(3).hex()}", loop_clock(), time.time, client_id)
        self.circuits: Callable[[], Iterable[tuple[str, CircuitBreaker]]] = tuple
        self._hints = _CircuitHints(self.core)
        self._publisher: Publisher | None = None
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_warned = False
        self._differing: dict[str, float] = {}
        """Since when another member has a smaller number for a limit, by its key; infinite: that was reported."""
        self._is_due = asyncio.Event()
        self._quotas = _QuotaStore(transport, quota_topic(name), self._client_id)

    async def start(self) -> None:
        """Join the fleet, and wait for the leases for at most :data:`START_S`."""
        await self._open()
        self._task = asyncio.create_task(self._run(), name="dispatch-fleet")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                while not self.core.has_lease:  # noqa: ASYNC110 - the core has no event loop
                    await asyncio.sleep(TICK_S / 2)

    async def close(self) -> None:
        """Leave the fleet: its other members share the leases of this one at once."""
        if self._task is not None:
            await cancel_and_wait({self._task})
            with contextlib.suppress(TransportError):
                await self._publish(self.core.leave())
        await self._quotas.close()
        for opened in (self._subscription, self._publisher):
            if opened is not None:
                await opened.close()
        self._subscription = self._publisher = None

    async def _open(self) -> bool:
        try:
            if self._subscription is None:
                self._subscription = await self._transport.subscribe(
                    self.topic, self._on_message, mode=Mode.FANOUT, name=f"dispatch-fleet-{self._client_id}"
                )
            if self._publisher is None:
                self._publisher = await self._transport.publisher(self.topic)
        except TransportError as error:
            if not self._is_warned:
                self._is_warned = True
                text = "limits of the fleet '%s' are not shared, because %s is out of reach: each dispatcher uses an equal "
                text += "part of each limit, by the number of dispatchers known last (%d). %s"
                _log.warning(text, self.name, self.topic, self.core.size, describe_without_call(error))
            return False
        return True

    def _on_message(self, message: Message) -> None:
        self.core.receive(message.data())
        if self.core.hints:
            self._hints.apply(self.circuits())
        if self.core.is_due:
            self._is_due.set()

    def figures(self) -> FleetFigures:
        """Return what metrics show; also called on other threads."""
        core = self.core
        table, shares, quotas = core.table, {}, {}
        for lease in list(core.leases):
            if not isinstance(lease, RateLease | SlotsLease | QuotaLease):
                continue  # those of users, whose number has no limit
            share = core.share_of(lease.key, lease.limit)
            kind, _, tool = lease.key.partition(":")
            if kind == QUOTA:
                entry = share.entry
                tool, _, per = tool.rpartition(":")
                quotas[tool, per] = (0.0 if entry is None else entry.reserved), lease.limit
            else:
                shares[kind, tool] = share.part if kind == RATE else share.part / max(1.0, lease.limit)
        return FleetFigures(self.name, 0 if table is None else len(table.members), core.is_reachable, shares, quotas)

    async def _run(self) -> None:
        retry_at, wait = 0.0, 1.0
        was_reachable = True
        now = self.core.clock
        began = now()
        while True:
            if (self._publisher is None or self._subscription is None) and now() >= retry_at:
                wait = 1.0 if await self._open() else min(wait * 2, MAX_RETRY_S)
                retry_at = now() + wait
            self._hints.give(self.circuits())
            messages = self.core.tick()
            if not self.core.leads:
                await self._quotas.close()  # a second consumer of the subscription would hide records from the leader
            if self.core.wants_records:
                self.core.stored = await self._quotas.load()
            with contextlib.suppress(TransportError):  # the next message has the same
                await self._publish(messages)
            if self.core.is_reachable != was_reachable and now() - began > START_S:
                was_reachable = self.core.is_reachable
                if was_reachable:
                    _log.info("the topic of the fleet '%s' is in reach again", self.name)
                elif self._subscription is not None:
                    text = "the topic of the fleet '%s' is out of reach: this dispatcher keeps its last share of each "
                    text += "limit, then an equal one of %d dispatchers"
                    _log.warning(text, self.name, self.core.size)
                    if placeless := self._find_placeless():
                        text = (
                            "the fleet '%s' has more dispatchers than places for %s: from %.0f s on this one has none"
                        )
                        _log.warning(text, self.name, ", ".join(placeless), KEEP_S)
            self._report_differing(now())
            await asyncio.sleep(MIN_TICK_S)
            await wait_set(self._is_due, TICK_S - MIN_TICK_S)
            self._is_due.clear()

    def _report_differing(self, now: float) -> None:
        smaller = self.core.find_smaller()
        self._differing = {key: self._differing.get(key, now) for key in smaller}
        for key, since in self._differing.items():
            if now - since >= DIFFERS_S:
                self._differing[key] = math.inf
                other, own = smaller[key]
                text = "dispatchers of the fleet '%s' have different numbers for the %s: %g and, in this one, %g; "
                text += "the smallest one holds. Give all of them the same policy."
                _log.warning(text, self.name, _describe_limit(key), other, own)

    def _find_placeless(self) -> list[str]:
        """Return the tools whose bulkhead has no place for this dispatcher while the topic is out of reach."""
        core = self.core
        leases = [each for each in core.leases if isinstance(each, SlotsLease)]
        return [each.key.partition(":")[2] for each in leases if core.share_of(each.key, each.limit).fair < 1.0]

    async def _publish(self, messages: list[bytes | Record]) -> None:
        for each in messages:
            if isinstance(each, Record):
                await self._quotas.write(each)
            elif self._publisher is not None:
                self._publisher.publish(each, {}, flow=self.topic, on_failure=lambda _error: None)


def _describe_limit(key: str) -> str:
    """Return the name of a limit, with its unit."""
    kind, _, label = key.partition(":")
    if kind == QUOTA:
        label, _, per = label.rpartition(":")
        return f"quota of '{label}', in calls a {per}"
    if kind == SLOTS:
        return f"bulkhead of '{label}'"
    whose = "each user of " if label.endswith(":") else ""
    return f"rate limit of {whose}'{label.rstrip(':')}', in calls a second"


class _CircuitHints:
    """Circuits of this dispatcher whose half-open calls have failed or succeeded lately, for others, and those of others.

    A hint changes no state: a circuit that is open makes its half-open calls at once when another one has closed, and later
    when those of another one have just failed.
    """

    def __init__(self, core: Fleet) -> None:
        self._core = core
        self._states: dict[str, tuple[State, int, float]] = {}
        """State and epoch of each circuit, and when its half-open calls have ended."""
        self._heard: dict[tuple[str, str, bool], float] = {}

    def give(self, circuits: Iterable[tuple[str, CircuitBreaker]]) -> None:
        """Put the hints for others into the next report."""
        now, core = self._core.clock(), self._core
        opened, closed = {}, []
        for label, breaker in circuits:
            former, epoch, since = self._states.get(label, (State.CLOSED, 0, -math.inf))
            if breaker.epoch != epoch:  # half-open calls may begin and end between two ticks
                is_tried = former is State.HALF_OPEN or (former is State.OPEN and breaker.epoch > epoch + 1)
                since = now if is_tried else -math.inf
                core.is_urgent = core.is_urgent or is_tried
                self._states[label] = breaker.state, breaker.epoch, since
            if now - since <= HINT_S:
                if breaker.state is State.OPEN:
                    opened[label] = round(breaker.retry_after or 0.0, 3)
                elif breaker.state is State.CLOSED:
                    closed.append(label)
        core.open, core.closed = opened, tuple(closed)

    def apply(self, circuits: Iterable[tuple[str, CircuitBreaker]]) -> None:
        """Apply the hints of others, each once."""
        now = self._core.clock()
        breakers = {label: breaker for label, breaker in circuits if breaker.state is State.OPEN}
        self._heard = {hint: at for hint, at in self._heard.items() if now - at <= 2 * HINT_S}
        for report in self._core.hints:
            for label, breaker in breakers.items():
                if label in report.closed:
                    breaker.expect_recovery(self._heard.setdefault((report.member, label, False), now))
                elif label in report.open:
                    since = self._heard.setdefault((report.member, label, True), now)
                    breaker.delay_half_open(since + report.open[label], since)
        self._core.hints.clear()


class _QuotaStore:
    """Records of quotas on a persistent topic. A durable subscription, whose only consumer is the leader, retains the newest
    record of each quota: an older one is acknowledged. So the topic holds one message for each quota, whatever the
    namespace retains or compacts.
    """

    def __init__(self, transport: Transport, topic: str, client_id: str) -> None:
        self._transport = transport
        self._topic = topic
        self._client_id = client_id
        self._publisher: Publisher | None = None
        self._subscription: Subscription | None = None
        self._newest: dict[str, tuple[Record, DurableMessage]] = {}
        self._is_marked = asyncio.Event()
        self._marker = ""
        self._is_failed = False

    async def load(self) -> dict[str, Record]:
        """Return the newest record of each quota."""
        self._marker = os.urandom(8).hex()
        try:
            if self._subscription is None:
                self._subscription = await self._transport.subscribe(
                    self._topic, self._on_message, mode=Mode.SHARED, name=SUBSCRIPTION
                )
            await self.write(Record(_MARKER, self._marker, 0.0))
            async with asyncio.timeout(LOAD_S):
                await self._is_marked.wait()
        except (TransportError, TimeoutError) as error:
            self._report(error)
        return {key: record for key, (record, _) in self._newest.items()}

    def _report(self, error: Exception) -> None:
        if not self._is_failed:
            self._is_failed = True
            reason = describe_without_call(error) if isinstance(error, TransportError) else "it does not answer"
            text = "quotas of the fleet may not survive its end, because %s cannot be used: %s"
            _log.warning(text, self._topic, reason)

    async def write(self, record: Record) -> None:
        """Write a record."""
        try:
            if self._publisher is None:
                self._publisher = await self._transport.publisher(self._topic)
            payload = msgspec.json.encode(record)
            self._publisher.publish(payload, {"key": record.key}, flow=self._topic, on_failure=self._report)
        except TransportError as error:
            self._report(error)

    def _on_message(self, message: Message) -> None:
        assert isinstance(message, DurableMessage)
        try:
            record = msgspec.json.decode(message.data(), type=Record)
        except msgspec.DecodeError:
            return
        if record.key == _MARKER:
            if record.period == self._marker:
                self._is_marked.set()
            return
        known = self._newest.get(record.key)
        if known is not None and known[0].period > record.period:
            return
        message.keep()
        self._newest[record.key] = (record, message)
        if known is not None:
            known[1].acknowledge()

    async def close(self) -> None:
        """Close the topic. The newest records stay there."""
        if self._publisher is not None:
            await self._transport.flush()
        for opened in (self._subscription, self._publisher):
            if opened is not None:
                await opened.close()
        self._subscription = self._publisher = None
        self._newest.clear()
        self._is_marked.clear()


_MARKER: Final = ""
"""Key of a record behind all others, by which a reader knows that it has read them."""
