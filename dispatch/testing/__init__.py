"""For tests of agents and tool services: injected faults on any transport, a virtual clock, an embedded broker. Guide:
docs/how-to/test-an-agent.md.

No other package of dispatch imports this one. pytest finds the fixtures ``dispatch_broker``, ``make_dispatcher`` and
``fault_injector`` by itself; the package also works without pytest.

Here are the faults and the embedded broker; :mod:`dispatch.testing.clock` has the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import logging
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import partial
from types import ModuleType, NoneType
from typing import Any, Final, Literal
from weakref import WeakSet

import msgspec

from dispatch._internal import check_instance
from dispatch.catalog import Catalog, load_directory
from dispatch.catalog.merge import CatalogLike
from dispatch.dispatcher import Dispatcher
from dispatch.errors import ErrorType, TransportError
from dispatch.functions import FunctionSource
from dispatch.messaging.wire import (
    MAX_PROPERTY_BYTES,
    ErrorInfo,
    MalformedMessageError,
    Property,
    Reply,
    decode_reply,
    encode_reply,
)
from dispatch.protocol.frames import End as FrameOfEnd
from dispatch.protocol.frames import MalformedPacketError, Status, decode_packet, encode, is_packet
from dispatch.protocol.frames import Reply as FrameOfReply
from dispatch.server import ToolServer
from dispatch.testing.clock import DeadlockError, VirtualClockLoop, advance, idle, run, virtual_time
from dispatch.transports import (
    AnswerLate,
    DurableMessage,
    Handler,
    Message,
    Mode,
    OnFailure,
    OnReceipt,
    Subscription,
    Ticket,
    TopicPublisher,
    Transport,
)
from dispatch.transports.base import RECONNECT_WAIT_S, ConnectionListener, PublishedTicket
from dispatch.transports.memory import MemoryTransport

__all__ = [
    "DeadlockError",
    "EmbeddedBroker",
    "FaultInjector",
    "Faults",
    "FaultyTransport",
    "VirtualClockLoop",
    "advance",
    "idle",
    "run",
    "virtual_time",
]

# Messages that a faulty connection delays.


MAX_DELAYED: Final = 100_000
"""Messages that one connection may delay in each direction; a further one is lost, as in a full queue."""

Deliver = Callable[[], object]
"""Delivers a message: publishes it, or calls its handler."""


class DelayedMessage:
    """A message that is delayed. It is delivered once: when it is due, or earlier."""

    def __init__(self, queue: DelayQueue, deliver: Deliver, due: float) -> None:
        self._queue = queue
        self._deliver = deliver
        self._timer = asyncio.get_running_loop().call_at(due, self.deliver)

    @property
    def is_waiting(self) -> bool:
        """It is neither delivered nor cancelled."""
        return self in self._queue.messages

    def deliver(self) -> None:
        """Deliver the message now, unless that is done."""
        if self.cancel():
            self._deliver()

    def cancel(self) -> bool:
        """Drop the message. Return False if it is already delivered or dropped."""
        if not self.is_waiting:
            return False
        self._timer.cancel()
        self._queue.remove(self)
        return True


class DelayQueue:
    """Delayed messages of a connection in one direction.

    Attributes:
        messages: those that wait.
    """

    def __init__(self) -> None:
        self.messages: set[DelayedMessage] = set()
        self._empty = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """No further message can be delayed."""
        return len(self.messages) >= MAX_DELAYED

    def add(self, deliver: Deliver, due: float) -> DelayedMessage:
        """Delay a message until ``due``, on the loop's clock."""
        message = DelayedMessage(self, deliver, due)
        self.messages.add(message)
        return message

    def remove(self, message: DelayedMessage) -> None:
        """Remove a message that waits."""
        self.messages.remove(message)
        if not self.messages:
            self._empty.set()

    async def wait_empty(self) -> None:
        """Wait until no message is delayed."""
        while self.messages:
            self._empty.clear()
            await self._empty.wait()

    def clear(self) -> None:
        """Drop all delayed messages."""
        for message in list(self.messages):
            message.cancel()


Direction = Literal["out", "in"]
"""Direction of a message: ``out`` is published on the connection, ``in`` arrives on it."""

FAULT_KINDS: Final = (
    *("drop", "delay", "duplicate", "reorder", "malformed", "missing_id", "oversized_id", "foreign_id", "raising"),
    *("error", "late_error", "disconnect", "tool_error"),
)
"""Faults of single messages; each is a field of :class:`Faults`."""
SINGLE_DIRECTION: Final[Mapping[str, Direction]] = {"error": "out", "late_error": "out", "raising": "in"}
"""Faults that exist in one direction only."""
_PEER: Final = re.compile("(?<=/dispatch-reply-).*|(?<=/dispatch-instance-).*")
"""The end of a topic's name that has the id of a dispatcher or an instance, which may differ from run to run."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Faults:
    """Probability of each fault for each message, between 0 and 1; a message has at most one fault. Times are in seconds.

    Attributes:
        drop: the message is lost silently. On a durable subscription it is not acknowledged, so that the broker delivers it
            again to another subscriber.
        error: publishing raises ``TransportError("publish-queue-full")``: the message is not sent.
        late_error: publishing fails up to ``max_delay`` later; half of these messages are sent nevertheless.
        disconnect: the whole connection is interrupted for ``reconnect_after``: publishing fails, and no message arrives.
        duplicate: the message arrives a second time, up to ``max_delay`` later. A request on a topic that instances share
            may run twice then, as with a broker whose producer sends it again.
        reorder: the message is held until the next message of its topic, for ``max_delay`` at most.
        delay: the message arrives up to ``max_delay`` later, after later ones.
        malformed: the payload is not readable.
        tool_error: a reply becomes a tool's own error (type ``injected-fault``); other messages do not change.
        missing_id, oversized_id, foreign_id: the property ``id`` is missing, too long, or that of no request.
        raising: reading the properties or the data raises, as a client library may.
        latency: latency of every message that is delivered: from, to; or one number. Messages of a topic keep their order.
        max_delay: see above. 3 s: longer than most tools run.
        reconnect_after: see ``disconnect``. 0.5 s: the time that a broker needs to move a topic.
        topics: patterns of whole topic names (``*/request/*``), as of file names; a string is one pattern.
        direction: direction of the messages, seen from the connection: ``out``, ``in``, or ``both``.
        seed: of the random decisions. With the same seed the n-th message of a topic has the same fault, whatever happens on
            other topics.

    Raises:
        ValueError: a value is out of range, or the probabilities add up to more than 1. The message names the field.
        TypeError: a value is of another type.
    """

    drop: float = 0.0
    error: float = 0.0
    late_error: float = 0.0
    disconnect: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    malformed: float = 0.0
    tool_error: float = 0.0
    missing_id: float = 0.0
    oversized_id: float = 0.0
    foreign_id: float = 0.0
    raising: float = 0.0
    latency: tuple[float, float] | float = 0.0
    max_delay: float = 3.0
    reconnect_after: float = 0.5
    topics: tuple[str, ...] | str = "*"
    direction: Literal["out", "in", "both"] = "both"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in FAULT_KINDS:
            chance = getattr(self, name)
            check_instance(name, chance, (int, float), "a number between 0 and 1")
            if not 0 <= chance <= 1:
                raise ValueError(f"{name}={chance!r} is not a probability: use a number between 0 and 1")
        total = sum(getattr(self, name) for name in FAULT_KINDS)
        if total > 1 + 1e-9:
            raise ValueError(
                f"the probabilities add up to {total:g}: a message has at most one fault, so use 1 at most"
            )
        check_instance(
            "topics", self.topics, (str, tuple, list), "a pattern of topics, such as '*/request/*', or several"
        )
        if isinstance(self.latency, list | tuple) and len(self.latency) != 2:
            raise ValueError(f"latency={self.latency!r} is not a range: use (from, to)")
        low, high = self.latencies
        for name, seconds in (("latency", low), ("latency", high), ("max_delay", self.max_delay)):
            _check_seconds(name, seconds)
        _check_seconds("reconnect_after", self.reconnect_after)
        if low > high:
            raise ValueError(f"latency={self.latency!r} is not a range: use (from, to)")
        if self.direction not in ("out", "in", "both"):
            raise ValueError(f"direction={self.direction!r} is unknown: use 'out', 'in' or 'both'")

    def __repr__(self) -> str:
        shown = [f"{f.name}={value!r}" for f in fields(self) if (value := getattr(self, f.name)) != f.default]
        return f"Faults({', '.join(shown)})"

    @property
    def latencies(self) -> tuple[float, float]:
        """Shortest and longest latency, in seconds."""
        low, high = self.latency if isinstance(self.latency, list | tuple) else (self.latency, self.latency)
        return low, high

    def list_probabilities(self, direction: Direction) -> list[tuple[str, float]]:
        """Return the faults of messages in that direction with their probabilities."""
        return [
            (name, chance)
            for name in FAULT_KINDS
            if (chance := getattr(self, name)) > 0 and SINGLE_DIRECTION.get(name, direction) == direction
        ]

    def apply_to(self, direction: Direction, topic: str) -> bool:
        """Return whether these faults are for messages of ``topic`` in that direction."""
        if self.direction not in (direction, "both"):
            return False
        patterns = (self.topics,) if isinstance(self.topics, str) else self.topics
        return any(fnmatchcase(topic, pattern) for pattern in patterns)


def _check_seconds(name: str, seconds: float) -> None:
    check_instance(name, seconds, (int, float), "a number of seconds")
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError(f"{name}={seconds!r} is not a duration: use seconds, 0 or more")


class FaultSampler:
    """Draws the faults of the messages of one topic in one direction.

    Args:
        faults: the probabilities.
        direction: of the messages.
        fault_rng: is drawn from exactly once for each message, so that a message's fault depends on its number alone.
        rng: for durations and details of faults.
    """

    def __init__(self, faults: Faults, direction: Direction, fault_rng: random.Random, rng: random.Random) -> None:
        self.faults = faults
        self.rng = rng
        self._fault_rng = fault_rng
        self._probabilities = faults.list_probabilities(direction)
        self._low, self._high = faults.latencies

    def draw_fault(self) -> str | None:
        """Draw the fault of the next message; None: no fault."""
        drawn = self._fault_rng.random()
        for name, chance in self._probabilities:
            drawn -= chance
            if drawn < 0:
                return name
        return None

    def draw_delay(self) -> float:
        """Draw a delay in seconds, up to ``max_delay``."""
        return self.rng.random() * self.faults.max_delay

    def draw_latency(self) -> float:
        """Draw a latency in seconds."""
        return self._low if self._low == self._high else self.rng.uniform(self._low, self._high)


def _check_faults(faults: tuple[Faults, ...]) -> tuple[Faults, ...]:
    for each in faults:
        check_instance("each fault", each, Faults, "Faults(…), such as Faults(drop=0.1)")
    return faults


class FaultInjector:
    """The faults in force on any number of connections. They can be changed at any time, and are counted.

    Args:
        faults: the first one that applies to a message (by topic and direction) decides.
    """

    def __init__(self, *faults: Faults) -> None:
        self.faults = _check_faults(faults)
        """The faults in force; :meth:`inject` replaces them."""
        self.count: Counter[str] = Counter()
        """Number of messages by direction and fault: ``in drop``, ``out malformed``; ``out disconnected``: published while
        the connection was interrupted; ``in overflow``: lost because too many messages were delayed."""
        self.epoch = 0
        """Number of changes of the faults."""
        self._connections = 0
        self._open: WeakSet[FaultyTransport] = WeakSet()
        self._rngs: dict[tuple[int, int, Direction, str], tuple[random.Random, random.Random]] = {}

    @classmethod
    def of(cls, faults: Sequence[Faults | FaultInjector]) -> FaultInjector:
        """Return the given injector, or a new one with the given faults.

        Raises:
            TypeError: an injector and faults are given, or neither kind.
        """
        if len(faults) == 1 and isinstance(faults[0], FaultInjector):
            return faults[0]
        plain = [each for each in faults if isinstance(each, Faults)]
        if len(plain) != len(faults):
            raise TypeError("use any number of Faults, or one FaultInjector")
        return cls(*plain)

    def inject(self, *faults: Faults) -> None:
        """Replace the faults in force. Interrupted connections are restored. The random decisions of a seed that was in use
        continue.

        Raises:
            TypeError: one of them is no ``Faults``.
        """
        self.faults = _check_faults(faults)
        self.epoch += 1

    def heal(self) -> None:
        """Remove all faults."""
        self.inject()

    def disconnect(self, seconds: float) -> None:
        """Interrupt every connection with these faults for ``seconds``: publishing fails, and no message arrives. A change
        of the faults ends it."""
        _check_seconds("seconds", seconds)
        for connection in tuple(self._open):
            connection.disconnect(seconds)

    def add_connection(self, connection: FaultyTransport) -> int:
        """Add a connection and return its number; each has random decisions of its own."""
        self._open.add(connection)
        self._connections += 1
        return self._connections

    def find_sampler(self, connection: int, direction: Direction, topic: str) -> FaultSampler | None:
        """Return the sampler of the faults that apply to messages of ``topic`` now; None: no faults."""
        for faults in self.faults:
            if faults.apply_to(direction, topic):
                key = (faults.seed, connection, direction, _PEER.sub("", topic))
                rngs = self._rngs.get(key)
                if rngs is None:
                    name = "/".join(map(str, key))
                    rngs = self._rngs[key] = (random.Random(name), random.Random(f"{name}/how"))
                return FaultSampler(faults, direction, *rngs)
        return None


# Malformed messages: unreadable payloads, wrong ids, and replies that are replaced by errors.


INJECTED_ERROR = "injected-fault"
"""Type of the errors that the fault ``tool_error`` injects."""


class AlteredMessage:
    """A message with this content. ``raises`` names the method that raises, as a client library's may: ``properties`` or
    ``data``."""

    def __init__(self, payload: bytes, properties: Mapping[str, str], *, raises: str = "") -> None:
        self._payload = payload
        self._properties = dict(properties)
        self._raises = raises

    def properties(self) -> dict[str, str]:
        if self._raises == "properties":
            raise RuntimeError("the properties are not readable")
        return dict(self._properties)

    def data(self) -> bytes:
        if self._raises == "data":
            raise UnicodeError("the data is not readable")
        return self._payload


class AlteredDurableMessage(DurableMessage):
    """The content of ``shown`` in place of a durable message's, which is acknowledged with it."""

    __slots__ = ("_inner",)

    def __init__(self, inner: DurableMessage, shown: Message) -> None:
        self._inner = inner
        self._message = shown
        self.lag = inner.lag
        self.backlog = inner.backlog
        self.kept = False

    def keep(self) -> None:
        super().keep()
        self._inner.keep()

    def acknowledge(self) -> None:
        self._inner.acknowledge()

    def release(self) -> None:
        self._inner.release()

    def settle(self, then: Callable[[], object]) -> None:
        self.kept = True
        self._inner.settle(then)


WRONG_TYPES = json.dumps(
    {"error": 5, "response": {}, "end_of_stream": "yes", "user": [], "config": 7, "arguments": [1]}
).encode()

MALFORMED_PAYLOADS: tuple[bytes, ...] = (
    b"",
    b" ",
    b"null",
    b"[]",
    b"17",
    b'"text"',
    b"{",
    b"{}{}",
    b"\x00",
    b"\xff\xfe{}",
    b'{"response": "\xff", "user": "\xff"}',
    b'{"response": "\\ud800", "user": "\\ud800"}',
    b'{"response": NaN, "user": NaN}',
    b'{"response": ' + b"9" * 5_000 + b', "user": 1}',
    b"[" * 100_000,
    b'{"error": ' * 2_000,
    b'{"error": {"message": ["not a text"]}, "arguments": "not JSON"}',
    b"<html>502 Bad Gateway</html>",
    WRONG_TYPES,
)
"""Payloads that are neither a request nor a reply."""


def malformed_payload(rng: random.Random, payload: bytes) -> bytes:
    """Return a payload that is neither a request nor a reply, made from ``payload`` or independent of it."""
    kind = rng.randrange(4)
    if kind == 0 and len(payload) > 1:
        return _keep_unreadable(
            payload[: rng.randrange(1, len(payload))]
        )  # an object without its last brace is not JSON
    if kind == 1:
        return b"\xff" + rng.randbytes(rng.randrange(40))
    if kind == 2:
        return _keep_unreadable(payload + b"}")
    return rng.choice(MALFORMED_PAYLOADS)


def _keep_unreadable(data: bytes) -> bytes:
    """Return ``data``, or something unreadable if it is complete: a former fault may have cut or appended the same byte."""
    for decode in (decode_packet, msgspec.json.decode):
        try:
            decode(data)
        except (MalformedPacketError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        return b"\xff" + data
    return data


def replace_id(rng: random.Random, properties: Mapping[str, str], how: str) -> dict[str, str]:
    """Return ``properties`` with an ``id`` that is missing, oversized, or that of no request."""
    others = {key: value for key, value in properties.items() if key != Property.ID}
    match how:
        case "missing_id":
            if rng.random() < 0.3:
                others[Property.ID] = ""
            return others
        case "oversized_id":
            return {**others, Property.ID: properties.get(Property.ID, "") + "x" * MAX_PROPERTY_BYTES}
        case _:
            return {**others, Property.ID: f"{rng.getrandbits(64):016x}-{rng.randrange(1000):x}"}


def make_tool_error(payload: bytes, properties: Mapping[str, str]) -> tuple[bytes, dict[str, str]] | None:
    """Return the reply as a tool's own error; None: the message is not a tool's reply."""
    if not payload or Property.ID not in properties or properties.keys() & {Property.REPLY_TO, Property.REFUSED}:
        return None
    if not _is_reply(payload):
        return None
    error = ErrorInfo(INJECTED_ERROR, "The tool failed (an injected fault).")
    kept = {
        name: value
        for name, value in properties.items()
        # An error ends the reply, and has no index among its chunks.
        if name not in (Property.MORE, Property.CHUNK)
    }
    return encode_reply(Reply(error, "", True)), kept


def make_tool_error_packet(data: bytes) -> bytes | None:
    """Return a packet of a session with a tool's own error in place of each result; None: it has none."""
    try:
        packet = decode_packet(data)
    except MalformedPacketError:
        return None
    error = msgspec.json.encode(ErrorInfo(INJECTED_ERROR, "The tool failed (an injected fault)."))
    frames = [
        msgspec.structs.replace(frame, status=int(Status.ERROR), payload=error)
        if isinstance(frame, (FrameOfReply, FrameOfEnd))
        else frame
        for frame in packet.frames
    ]
    if frames == packet.frames:
        return None
    return encode(msgspec.structs.replace(packet, frames=frames))


def _is_reply(payload: bytes) -> bool:
    try:
        raw = json.loads(payload)
        decode_reply(payload)
    except (MalformedMessageError, ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and "arguments" not in raw and bool(raw.keys() & {"response", "error"})


def alter_message(rng: random.Random, message: Message, fault: str) -> Message | None:
    """Return ``message`` with the content that ``fault`` gives it; the message itself, if the fault does not change content;
    None if the fault does not apply to it."""
    properties = message.properties()
    match fault:
        case "tool_error" if is_packet(message.data()):
            packet = make_tool_error_packet(message.data())
            if packet is None:
                return None
            shown = AlteredMessage(packet, properties)
        case "malformed":
            shown = AlteredMessage(malformed_payload(rng, message.data()), properties)
        case "raising":
            shown = AlteredMessage(message.data(), properties, raises=rng.choice(("properties", "data")))
        case "missing_id" | "oversized_id" | "foreign_id":
            shown = AlteredMessage(message.data(), replace_id(rng, properties, fault))
        case "tool_error":
            reply = make_tool_error(message.data(), properties)
            if reply is None:
                return None
            shown = AlteredMessage(*reply)
        case _:
            return message
    return AlteredDurableMessage(message, shown) if isinstance(message, DurableMessage) else shown


# Publishers on a connection with faults.


logger = logging.getLogger("dispatch.testing")

NOT_OF_PACKETS = frozenset({"missing_id", "oversized_id", "foreign_id"})
"""Faults of plain messages: a packet has no properties."""
ALTERING = NOT_OF_PACKETS | {"tool_error", "malformed"}
"""Faults of the content of published messages."""


class FaultyTicket(PublishedTicket):
    """A publish that is delayed (then it can be cancelled), sent, or about to fail."""

    def __init__(self, on_failure: OnFailure) -> None:
        super().__init__(on_failure)
        self.inner: Ticket | None = None
        self.delayed: DelayedMessage | None = None
        """The delay, if it looks to the caller like a wait in dispatch's own queue."""

    def cancel(self) -> bool:
        self.on_failure = None
        if self.delayed is not None and self.delayed.cancel():
            return True
        return self.inner is not None and self.inner.cancel()


class FaultyPublisher:
    """See :class:`dispatch.transports.base.TopicPublisher`."""

    def __init__(self, transport: FaultyTransport, inner: TopicPublisher) -> None:
        self._transport = transport
        self._inner = inner
        self.topic = inner.topic
        self._path = transport.message_path("out", inner.topic)

    def publish(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: OnReceipt | None = None,
    ) -> FaultyTicket:
        ticket, path = FaultyTicket(on_failure), self._path
        is_synchronous = True  # the caller is still in publish(), so that an error can be raised

        def send() -> None:
            try:
                ticket.inner = self._inner.publish(
                    payload, properties, flow=flow, on_failure=ticket.fail, on_receipt=on_receipt
                )
            except TransportError as error:
                if is_synchronous:
                    raise
                ticket.fail(error)

        if self._transport.is_closed:
            raise TransportError(ErrorType.CLOSED, "The connection is closed.", may_have_run=False)
        sampler, fault = path.draw()
        if self._transport.is_disconnected:
            path.count_fault("disconnected")
            raise _unreachable()
        fault, payload, properties = self._alter(sampler, fault, payload, properties)
        path.count_fault(fault)
        if sampler is not None:
            match fault:
                case "drop" if on_receipt is not None:
                    asyncio.get_running_loop().call_soon(on_receipt)  # as a broker does
                case "delay" if sampler.rng.random() < 0.5:
                    ticket.delayed, fault = path.deliver_later(sampler, send), "drop"
                case "error":
                    raise TransportError(
                        ErrorType.PUBLISH_QUEUE_FULL, "The queue is full (an injected fault).", may_have_run=False
                    )
                case "late_error":
                    self._fail_later(ticket, sampler, send)
                    fault = "drop"
                case "disconnect":
                    self._disconnect(ticket, sampler)
                    fault = "drop"
        path.deliver(fault, sampler, send, lambda: self._publish_copy(payload, properties, flow))
        is_synchronous = False
        return ticket

    @property
    def opening_error(self) -> TransportError | None:
        return self._inner.opening_error

    @property
    def is_connected(self) -> bool:
        return self._inner.is_connected

    def send_packet(self, payload: bytes) -> bool:
        """Send a packet with the faults in force. Faults of ids do not apply to packets; that of tools, to results."""
        path, is_sent = self._path, True
        if self._transport.is_closed:
            return False
        sampler, fault = path.draw()
        if self._transport.is_disconnected:
            path.count_fault("disconnected")
            return False
        fault, payload, _ = self._alter(sampler, None if fault in NOT_OF_PACKETS else fault, payload, {})
        path.count_fault(fault)
        if sampler is not None:
            match fault:
                case "late_error":  # a packet's failure is reported to no caller
                    fault = fault if sampler.rng.random() < 0.5 else "drop"
                case "error":
                    fault, is_sent = "drop", False
                case "disconnect":
                    self._transport.disconnect(sampler.faults.reconnect_after)
                    fault, is_sent = "drop", sampler.rng.random() < 0.5
        send = partial(self._inner.send_packet, payload)
        path.deliver(fault, sampler, send, send)
        return is_sent

    def _alter(
        self, sampler: FaultSampler | None, fault: str | None, payload: bytes, properties: Mapping[str, str]
    ) -> tuple[str | None, bytes, Mapping[str, str]]:
        """Return the content that a fault gives a message, and the fault; None if it does not apply to the message."""
        if sampler is None or fault not in ALTERING:
            return fault, payload, properties
        altered = alter_message(sampler.rng, AlteredMessage(payload, properties), fault)
        return (None, payload, properties) if altered is None else (fault, altered.data(), altered.properties())

    def _publish_copy(self, payload: bytes, properties: Mapping[str, str], flow: str) -> None:
        try:
            self._inner.publish(payload, properties, flow=flow, on_failure=_ignore_failure)
        except TransportError:
            logger.debug("the second copy of a message to %s was not sent", self.topic)

    def _fail_later(self, ticket: FaultyTicket, sampler: FaultSampler, send: Callable[[], None]) -> None:
        is_sent = sampler.rng.random() < 0.5
        if is_sent:
            send()
        error = TransportError(ErrorType.SEND_FAILED, "Sending failed (an injected fault).", may_have_run=is_sent)
        self._path.deliver_later(sampler, partial(ticket.fail, error))

    def _disconnect(self, ticket: FaultyTicket, sampler: FaultSampler) -> None:
        self._transport.disconnect(sampler.faults.reconnect_after)
        if sampler.rng.random() < 0.5:
            raise _unreachable()
        error = TransportError(ErrorType.CONNECTION_LOST, "The connection ended while sending (an injected fault).")
        self._path.deliver_later(sampler, partial(ticket.fail, error))

    async def writable(self, flow: str) -> None:
        await self._inner.writable(flow)

    async def close(self) -> None:
        await self._inner.close()


def _unreachable() -> TransportError:
    return TransportError(ErrorType.UNREACHABLE, "There is no connection (an injected fault).", may_have_run=False)


def _ignore_failure(_error: TransportError) -> None:
    """The first copy reports its own failure."""


# The path of a topic's messages through a faulty connection: when each is delivered, and in which order.


class MessagePath:
    """One topic in one direction of a connection.

    Args:
        injector: the faults in force.
        connection: number of the connection.
        queue: delayed messages of the connection in that direction.
        direction, topic: of the messages.
    """

    def __init__(
        self, injector: FaultInjector, connection: int, queue: DelayQueue, direction: Direction, topic: str
    ) -> None:
        self._injector = injector
        self._connection = connection
        self._queue = queue
        self._direction: Direction = direction
        self._topic = topic
        self._sampler: FaultSampler | None = None
        self._epoch = -1
        self._last: DelayedMessage | None = None
        self._last_due = 0.0
        self._held: list[DelayedMessage] = []

    @property
    def sampler(self) -> FaultSampler | None:
        """Draws the faults that are in force now; None: there are none."""
        if self._epoch != self._injector.epoch:
            self._epoch = self._injector.epoch
            self._sampler = self._injector.find_sampler(self._connection, self._direction, self._topic)
        return self._sampler

    def draw(self) -> tuple[FaultSampler | None, str | None]:
        """Return the sampler in force and the fault of the next message; None: there is none."""
        sampler = self.sampler
        return sampler, None if sampler is None else sampler.draw_fault()

    def count_fault(self, fault: str | None) -> None:
        """Count an injected fault."""
        if fault is not None:
            self._injector.count[f"{self._direction} {fault}"] += 1

    def deliver(self, fault: str | None, sampler: FaultSampler | None, deliver: Deliver, copy: Deliver) -> None:
        """Deliver a message as its fault says; of ``duplicate`` also ``copy``. Faults of the content do not matter here."""
        if sampler is None or fault not in ("drop", "delay", "reorder"):
            self.deliver_in_order(deliver, sampler)
        if sampler is not None and fault in ("delay", "duplicate"):
            self.deliver_later(sampler, deliver if fault == "delay" else copy)
        if sampler is not None and fault == "reorder":
            self.hold_until_next(sampler, deliver)
        else:
            self.release_held()

    def deliver_in_order(self, deliver: Deliver, sampler: FaultSampler | None) -> None:
        """Deliver a message after the previous ones of its topic: now, or after its latency."""
        now = asyncio.get_running_loop().time()
        seconds = sampler.draw_latency() if sampler is not None else 0.0
        is_behind = now <= self._last_due or (self._last is not None and self._last.is_waiting)
        if not seconds and not is_behind:
            deliver()
        elif not self._overflows():
            # Timers of one instant have no order among themselves.
            self._last_due = max(now + seconds, math.nextafter(self._last_due, math.inf))
            self._last = self._queue.add(deliver, self._last_due)

    def deliver_later(self, sampler: FaultSampler, deliver: Deliver) -> DelayedMessage | None:
        """Deliver a message after a delay, regardless of its order. Return None if it is lost."""
        if self._overflows():
            return None
        return self._queue.add(deliver, asyncio.get_running_loop().time() + sampler.draw_delay())

    def hold_until_next(self, sampler: FaultSampler, deliver: Deliver) -> None:
        """Hold a message until the topic's next one is delivered, at most for a delay."""
        message = self.deliver_later(sampler, deliver)
        if message is not None:
            self._held = [each for each in self._held if each.is_waiting]
            self._held.append(message)

    def release_held(self) -> None:
        """Deliver the messages that are held until the next one."""
        while self._held:
            self._held.pop().deliver()

    def _overflows(self) -> bool:
        if self._queue.is_full:
            self.count_fault("overflow")
            return True
        return False


# Subscriptions on a connection with faults.


class FaultySubscription:
    """See :class:`dispatch.transports.base.Subscription`."""

    inner: Subscription

    def __init__(self, transport: FaultyTransport, topic: str, handler: Handler) -> None:
        self._transport = transport
        self.topic = topic
        self._handler: Handler | None = handler
        self._path = transport.message_path("in", topic)

    def on_message(self, message: Message) -> None:
        """Receive a message from the connection, and deliver it as the faults in force say."""
        path = self._path
        sampler, fault = path.draw()
        if self._transport.is_disconnected:
            path.count_fault("disconnected")
            _keep(message)
            return
        shown = message if sampler is None or fault is None else alter_message(sampler.rng, message, fault)
        if shown is None:
            fault, shown = None, message
        path.count_fault(fault)
        if sampler is not None and fault == "disconnect":
            self._transport.disconnect(sampler.faults.reconnect_after)
            fault = "drop"
        is_synchronous, is_delivered = True, False

        def deliver() -> None:
            nonlocal is_delivered
            is_delivered = True
            if not is_synchronous:
                self._handle_delayed(shown)
            elif self._handler is not None:
                self._handler(shown)

        path.deliver(fault, sampler, deliver, partial(self._handle_delayed, shown))
        is_synchronous = False
        if not is_delivered:
            _keep(shown)

    def _handle_delayed(self, message: Message) -> None:
        """Handle a delayed message as a transport does: acknowledge a durable one, and survive an error of the handler."""
        if self._handler is None:
            return  # closed: the broker delivers a durable message to another subscriber
        try:
            if isinstance(message, DurableMessage):
                AlteredDurableMessage(message, message).deliver_to(self._handler)
            else:
                self._handler(message)
        except Exception as error:
            self._transport.late_handler_errors += 1
            logger.warning("the handler of a delayed message on %s failed: %s", self.topic, type(error).__name__)

    async def close(self) -> None:
        await self.inner.close()
        self._handler = None


def _keep(message: Message) -> None:
    """Keep a durable message from being acknowledged when its handler returns: it is not delivered yet, or lost, so that the
    broker delivers it to another subscriber after this one has closed."""
    if isinstance(message, DurableMessage):
        message.keep()


# A transport with injected faults of networks, brokers and peers; seeded, so that a run can be repeated.
#
# It wraps any transport and acts in both directions: on published messages, and on those that arrive at subscriptions.


class FaultyTransport:
    """A connection with faults. See :class:`dispatch.transports.base.Transport`.

    Args:
        inner: the transport, not yet started.
        faults: the first one that applies to a message decides; or a :class:`FaultInjector`, which connections may share.
    """

    def __init__(self, inner: Transport, *faults: Faults | FaultInjector) -> None:
        self.inner = inner
        self.injector = FaultInjector.of(faults)
        self.is_closed = False
        self.late_handler_errors = 0
        """Errors of handlers on delayed messages."""
        self._number = self.injector.add_connection(self)
        self._now: Callable[[], float] = time.monotonic
        self._disconnected_from = self._disconnected_until = -math.inf
        self._disconnected_in_epoch = -1
        self._outgoing = DelayQueue()
        self._incoming = DelayQueue()

    # -- as any transport ---------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def max_message_bytes(self) -> int:
        return self.inner.max_message_bytes

    @property
    def connected(self) -> bool:
        return self.inner.connected and not self.is_disconnected

    async def await_connection(self, deadline: float) -> bool:
        ends = min(self._disconnected_until, self._disconnected_from + RECONNECT_WAIT_S, deadline)
        if self.is_disconnected and (wait := ends - self._now()) > 0:
            await asyncio.sleep(wait + 1e-6)  # a sleep may end a rounding error early
        return not self.is_disconnected and await self.inner.await_connection(deadline)

    def was_disconnected_since(self, instant: float, topics: Collection[str] = ()) -> bool:
        # The time at which a change of the faults restored the connection is not known.
        until = (
            self._disconnected_until if self._disconnected_in_epoch == self.injector.epoch else self._disconnected_from
        )
        return until >= instant or self.inner.was_disconnected_since(instant)

    def on_connection_change(self, listener: ConnectionListener) -> None:
        self.inner.on_connection_change(listener)

    def another(self) -> FaultyTransport:
        return FaultyTransport(self.inner.another(), self.injector)

    @property
    def handler_errors(self) -> int:
        """Errors of handlers, including those that the inner transport counts."""
        return getattr(self.inner, "handler_errors", 0) + self.late_handler_errors

    async def start(self) -> None:
        await self.inner.start()
        self.is_closed = False

    def has_subscriber(self, topic: str) -> bool:
        return self.inner.has_subscriber(topic)

    async def publisher(self, topic: str) -> TopicPublisher:
        return FaultyPublisher(self, await self.inner.publisher(topic))

    async def subscribe(
        self, topic: str, handler: Handler, *, mode: Mode, name: str, answer_late: AnswerLate | None = None
    ) -> Subscription:
        # ``answer_late`` is not passed on: its answers would bypass the faults.
        subscription = FaultySubscription(self, topic, handler)
        subscription.inner = await self.inner.subscribe(topic, subscription.on_message, mode=mode, name=name)
        return subscription

    async def flush(self) -> None:
        await self._outgoing.wait_empty()
        await self.inner.flush()

    async def close(self) -> None:
        self.is_closed = True
        self._outgoing.clear()
        self._incoming.clear()
        await self.inner.close()

    # -- faults -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> Counter[str]:
        """Number of messages by direction and fault: see :attr:`FaultInjector.count`."""
        return self.injector.count

    @property
    def is_disconnected(self) -> bool:
        """The connection is interrupted now."""
        if self._disconnected_in_epoch != self.injector.epoch:  # a change of the faults restores it
            return False
        return self._now() < self._disconnected_until

    def disconnect(self, seconds: float) -> None:
        """Interrupt the connection for ``seconds``: publishing fails, and no message arrives. See
        :meth:`FaultInjector.disconnect` for all connections of an injector."""
        self._now = (
            asyncio.get_running_loop().time
        )  # read before: scrapes read `is_disconnected` on threads without a loop
        if not self.is_disconnected:
            self._disconnected_from = self._now()
        self._disconnected_until = self._now() + seconds
        self._disconnected_in_epoch = self.injector.epoch

    def heal(self) -> None:
        """Remove all faults, on all connections that share the injector."""
        self.injector.heal()

    def message_path(self, direction: Direction, topic: str) -> MessagePath:
        """Return the path of the messages of ``topic`` in that direction."""
        queue = self._outgoing if direction == "out" else self._incoming
        return MessagePath(self.injector, self._number, queue, direction, topic)


# An embedded broker for one test: tool services and dispatchers on it, with faults on their connections.


_numbers = itertools.count(1)


class EmbeddedBroker:
    """A broker in this process, with a name of its own. Ids and random decisions on it are the same in each run.

    Args:
        injector: faults of the dispatchers' connections; they can be changed at any time. None: no faults at first.
    """

    def __init__(self, injector: FaultInjector | None = None) -> None:
        self.url = f"memory://testing-{next(_numbers)}"
        """URL of the broker (for ``dispatch.connect``, ``dispatch.serve``), valid in the same event loop."""
        self.injector = FaultInjector() if injector is None else injector
        self._servers = 0
        self._dispatchers = 0

    def transport(self, *faults: Faults | FaultInjector) -> FaultyTransport:
        """Return a connection to the broker with these faults, not yet started."""
        return FaultyTransport(MemoryTransport(self.url), *faults)

    @contextlib.asynccontextmanager
    async def serve(
        self, implementation: object, service: str, *, faults: Faults | FaultInjector | None = None, **options: Any
    ) -> AsyncIterator[ToolServer]:
        """Serve a tool service: ``async with broker.serve(Joke(), "joke"): …``

        Args:
            implementation: a :class:`dispatch.ToolService`; or functions, as of ``ToolServer(functions=…)``.
            service: name of the service, or a whole request topic (then ``response_queue`` is needed too).
            faults: of this service's connection alone, so that other tools do not fail.
            options: as of :class:`dispatch.ToolServer`.

        Raises:
            TypeError, ValueError: as :class:`dispatch.ToolServer`.
        """
        self._servers += 1
        name = service.rpartition("/")[2]
        named: dict[str, Any] = {"request_queue": service} if "://" in service else {"service": service}
        transport = self.transport(*(() if faults is None else (faults,)))
        if _are_functions(implementation):
            implementation, named["functions"] = None, implementation
        server = ToolServer(implementation, transport, **{"instance": f"{name}-{self._servers}", **named, **options})
        await transport.start()
        try:
            async with server:
                yield server
        finally:
            await transport.close()

    @contextlib.asynccontextmanager
    async def connect(
        self,
        catalog: CatalogLike | None = None,
        *,
        services: Mapping[str, object] | None = None,
        client_id: str | None = None,
        **options: Any,
    ) -> AsyncIterator[Dispatcher]:
        """Connect a dispatcher whose connection has the faults of :attr:`injector`, and serve ``services`` for it.

        Args:
            catalog: as of :func:`dispatch.connect`; None: the tools of the functions among ``services``.
            services: tool services or functions by name, as of :meth:`serve`, served until the dispatcher is closed.
            client_id: of the dispatcher; default ``dispatcher-1`` and so on.
            options: as of :func:`dispatch.connect`: ``policy``, ``grants`` and so on.

        Raises:
            CatalogError: the descriptors have errors.
            TypeError: an argument is of another type.
        """
        self._dispatchers += 1
        number = self._dispatchers
        check_instance("services", services, (Mapping, NoneType), "a dict such as {'joke': Joke()}")
        if isinstance(catalog, str | os.PathLike):
            catalog = load_directory(catalog)
        async with contextlib.AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(self.serve(implementation, service))
                for service, implementation in (services or {}).items()
            ]
            if catalog is None:
                described = [each.descriptors for each in servers if each.descriptors.tools]
                catalog = Catalog.of(
                    [each.service for each in described], [tool for each in described for tool in each.tools]
                )
            dispatcher = Dispatcher(
                self.transport(self.injector),
                catalog,
                client_id=client_id or f"dispatcher-{number}",
                randomness=random.Random(number).random,
                **options,
            )
            await stack.enter_async_context(dispatcher)
            yield dispatcher


def _are_functions(implementation: object) -> bool:
    if isinstance(implementation, ModuleType | FunctionSource | list | tuple):
        return True
    return inspect.isroutine(implementation) and not hasattr(implementation, "invoke")
