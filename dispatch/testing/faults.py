"""Faults of messages and their probabilities, and the sampler that draws them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakSet

if TYPE_CHECKING:
    from dispatch.testing.faulty_transport import FaultyTransport

Direction = Literal["out", "in"]
"""Direction of a message: ``out`` is published on the connection, ``in`` arrives on it."""

FAULT_KINDS: Final = (
    *("drop", "delay", "duplicate", "reorder", "malformed", "missing_id", "oversized_id", "foreign_id", "raising"),
    *("error", "late_error", "disconnect", "tool_error"),
)
"""Faults of single messages; each is a field of :class:`Faults`."""
SINGLE_DIRECTION: Final[Mapping[str, Direction]] = {"error": "out", "late_error": "out", "raising": "in"}
"""Faults that exist in one direction only."""
PEER_TOPIC_MARKS: Final = ("/dispatch-reply-", "/dispatch-instance-")
"""Marks of topics whose names end with the id of a dispatcher or an instance, which may differ from run to run."""


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
            if not 0 <= chance <= 1:
                raise ValueError(f"{name}={chance!r} is not a probability: use a number between 0 and 1")
        total = sum(getattr(self, name) for name in FAULT_KINDS)
        if total > 1 + 1e-9:
            raise ValueError(
                f"the probabilities add up to {total:g}: a message has at most one fault, so use 1 at most"
            )
        low, high = self.latencies
        for name, seconds in (("latency", low), ("latency", high), ("max_delay", self.max_delay)):
            _check_seconds(name, seconds)
        _check_seconds("reconnect_after", self.reconnect_after)
        if low > high:
            raise ValueError(f"latency={self.latency!r} is not a range: use (from, to)")
        if self.direction not in ("out", "in", "both"):
            raise ValueError(f"direction={self.direction!r} is unknown: use 'out', 'in' or 'both'")

    def __repr__(self) -> str:
        values = [(f.name, getattr(self, f.name)) for f in fields(self)]
        defaults = {f.name: f.default for f in fields(self)}
        return f"Faults({', '.join(f'{name}={value!r}' for name, value in values if value != defaults[name])})"

    @property
    def latencies(self) -> tuple[float, float]:
        """Shortest and longest latency, in seconds."""
        return self.latency if isinstance(self.latency, tuple) else (self.latency, self.latency)

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


class FaultInjector:
    """The faults in force on any number of connections. They can be changed at any time, and are counted.

    Args:
        faults: the first one that applies to a message (by topic and direction) decides.
    """

    def __init__(self, *faults: Faults) -> None:
        self._faults = faults
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

    @property
    def faults(self) -> tuple[Faults, ...]:
        """The faults in force."""
        return self._faults

    def inject(self, *faults: Faults) -> None:
        """Replace the faults in force. Interrupted connections are restored. The random decisions of a seed that was in use
        continue."""
        self._faults = faults
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
        for faults in self._faults:
            if faults.apply_to(direction, topic):
                key = (faults.seed, connection, direction, _stable_name(topic))
                rngs = self._rngs.get(key)
                if rngs is None:
                    name = "/".join(map(str, key))
                    rngs = self._rngs[key] = (random.Random(name), random.Random(f"{name}/how"))
                return FaultSampler(faults, direction, *rngs)
        return None


def _stable_name(topic: str) -> str:
    """Return ``topic`` without the part that may differ from run to run."""
    for name in PEER_TOPIC_MARKS:
        start, found, _ = topic.partition(name)
        if found:
            return start + found
    return topic
