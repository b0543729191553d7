"""What can go wrong with messages, how often, and which: values, and the dice that decide."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Final, Literal, Protocol
from weakref import WeakSet

Direction = Literal["out", "in"]
"""Of a message: ``out`` is published on the connection, ``in`` arrives on it."""

KINDS: Final = (
    *("drop", "delay", "duplicate", "reorder", "malformed", "missing_id", "oversized_id", "foreign_id", "raising"),
    *("error", "late_error", "disconnect", "tool_error"),
)
"""The faults that happen to single messages: each is a field of :class:`Faults`."""
ONLY: Final[Mapping[str, Direction]] = {"error": "out", "late_error": "out", "raising": "in"}
"""What can happen in one direction only."""
OWN_NAMES: Final = ("/dispatch-reply-", "/dispatch-instance-")
"""Topics whose names end with the id of a dispatcher or an instance, which may be another one in each run."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Faults:
    """The chance of each fault, between 0 and 1, for each message; at most one happens to a message. Times are in seconds.

    Attributes:
        drop: it is gone, and nobody is told. One that its broker keeps (a durable subscription) is not acknowledged: it
            comes again when the subscriber has gone.
        error: publishing it raises ``TransportError("queue-full")``: it surely never left.
        late_error: publishing it fails up to ``max_delay`` later; half of these messages are sent all the same.
        disconnect: with it the whole connection is gone for ``reconnect_after``: publishing fails, and nothing arrives.
        duplicate: it comes a second time, up to ``max_delay`` later. A request on a topic that instances share may run
            twice then, as with a broker whose producer sent it again.
        reorder: it is held back until the next message of its topic has gone, for ``max_delay`` at most.
        delay: it takes up to ``max_delay`` longer, and others overtake it.
        malformed: its payload cannot be read.
        tool_error: it is answered with an error of the tool's own (type ``injected-fault``), if it is an answer; nothing
            else is touched.
        missing_id, oversized_id, foreign_id: its ``id`` is not there, too long to be looked at, or of no request.
        raising: reading its properties or its data raises, as in a client library.
        latency: how long every message takes that gets through: from, to; or one number. Messages of a topic keep their
            order.
        max_delay: see above. 3 s: longer than a tool usually takes.
        reconnect_after: see ``disconnect``. 0.5 s: as long as a broker takes to move a topic.
        topics: which topics: patterns of whole names (``*/request/*``), as of file names; a string is one of them.
        direction: which messages, seen from the connection: ``out``, ``in``, or ``both``.
        seed: of the dice. The same seed gives the n-th message of a topic the same fate, whatever other topics do.

    Raises:
        ValueError: a value that cannot be, or chances that are more than certain together. The message names the field.
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
        for name in KINDS:
            chance = getattr(self, name)
            if not 0 <= chance <= 1:
                raise ValueError(f"{name}={chance!r} is no chance: give a number between 0 and 1")
        total = sum(getattr(self, name) for name in KINDS)
        if total > 1 + 1e-9:
            raise ValueError(
                f"the chances are {total:g} together: at most one fault happens to a message, so at most 1"
            )
        low, high = self.latencies
        for name, seconds in (("latency", low), ("latency", high), ("max_delay", self.max_delay)):
            _check_seconds(name, seconds)
        _check_seconds("reconnect_after", self.reconnect_after)
        if low > high:
            raise ValueError(f"latency={self.latency!r} ends before it begins: give (from, to)")
        if self.direction not in ("out", "in", "both"):
            raise ValueError(f"direction={self.direction!r}: give 'out', 'in' or 'both'")

    def __repr__(self) -> str:
        told = [(f.name, getattr(self, f.name)) for f in fields(self)]
        defaults = {f.name: f.default for f in fields(self)}
        return f"Faults({', '.join(f'{name}={value!r}' for name, value in told if value != defaults[name])})"

    @property
    def latencies(self) -> tuple[float, float]:
        """The latency: from, to."""
        return self.latency if isinstance(self.latency, tuple) else (self.latency, self.latency)

    def chances(self, direction: Direction) -> list[tuple[str, float]]:
        """What can happen to a message that goes that way, with its chance."""
        return [
            (name, chance)
            for name in KINDS
            if (chance := getattr(self, name)) > 0 and ONLY.get(name, direction) == direction
        ]

    def meet(self, direction: Direction, topic: str) -> bool:
        """These are for messages of ``topic`` that go that way."""
        if self.direction not in (direction, "both"):
            return False
        patterns = (self.topics,) if isinstance(self.topics, str) else self.topics
        return any(fnmatchcase(topic, pattern) for pattern in patterns)


def _check_seconds(name: str, seconds: float) -> None:
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError(f"{name}={seconds!r}: give seconds, 0 or more")


class Dice:
    """Decides for the messages of one topic in one direction.

    Args:
        faults: the chances.
        direction: which of them count.
        fates: thrown once for each message, so that nothing else moves what happens to the next.
        rng: for how long, and how exactly.
    """

    def __init__(self, faults: Faults, direction: Direction, fates: random.Random, rng: random.Random) -> None:
        self.faults = faults
        self.rng = rng
        self._fates = fates
        self._chances = faults.chances(direction)
        self._low, self._high = faults.latencies

    def throw(self) -> str | None:
        """What happens to the next message. None: nothing."""
        thrown = self._fates.random()
        for name, chance in self._chances:
            thrown -= chance
            if thrown < 0:
                return name
        return None

    def delay(self) -> float:
        """Seconds, up to ``max_delay``."""
        return self.rng.random() * self.faults.max_delay

    def latency(self) -> float:
        """Seconds, within ``latency``."""
        return self._low if self._low == self._high else self.rng.uniform(self._low, self._high)


class Interruptible(Protocol):
    """A connection with faults."""

    def disconnect(self, seconds: float) -> None:
        """Interrupt the connection."""
        ...


class FaultInjector:
    """The faults in force, for any number of connections. They can be changed at any time, and are counted.

    Args:
        faults: for each message the first that is for it (topic and direction).
    """

    def __init__(self, *faults: Faults) -> None:
        self._faults = faults
        self.count: Counter[str] = Counter()
        """How often each fault happened: ``in drop``, ``out malformed``; ``out disconnected``: published while the
        connection was gone; ``in overflow``: one too many to be held back."""
        self.epoch = 0
        """Which faults these are: goes up with each change."""
        self._connections = 0
        self._open: WeakSet[Interruptible] = WeakSet()
        self._rngs: dict[tuple[int, int, Direction, str], tuple[random.Random, random.Random]] = {}

    @classmethod
    def of(cls, faults: Sequence[Faults | FaultInjector]) -> FaultInjector:
        """The injector that is given, or one for the faults that are.

        Raises:
            TypeError: both, or something else.
        """
        if len(faults) == 1 and isinstance(faults[0], FaultInjector):
            return faults[0]
        plain = [each for each in faults if isinstance(each, Faults)]
        if len(plain) != len(faults):
            raise TypeError("give Faults, any number of them, or one FaultInjector")
        return cls(*plain)

    @property
    def faults(self) -> tuple[Faults, ...]:
        """Those in force."""
        return self._faults

    def inject(self, *faults: Faults) -> None:
        """These from now on, instead of what was. Connections that were gone are back. Dice of a seed that was in use go on
        where they were."""
        self._faults = faults
        self.epoch += 1

    def heal(self) -> None:
        """No more faults."""
        self.inject()

    def disconnect(self, seconds: float) -> None:
        """Interrupt every connection with these faults for ``seconds``: publishing fails, and no message arrives. A change
        of the faults ends it."""
        _check_seconds("seconds", seconds)
        for connection in tuple(self._open):
            connection.disconnect(seconds)

    def connection(self, connection: Interruptible) -> int:
        """Add a connection and return its number; each has dice of its own."""
        self._open.add(connection)
        self._connections += 1
        return self._connections

    def dice(self, connection: int, direction: Direction, topic: str) -> Dice | None:
        """What decides for the messages of ``topic`` now. None: nothing happens to them."""
        for faults in self._faults:
            if faults.meet(direction, topic):
                key = (faults.seed, connection, direction, _kind(topic))
                rngs = self._rngs.get(key)
                if rngs is None:
                    name = "/".join(map(str, key))
                    rngs = self._rngs[key] = (random.Random(name), random.Random(f"{name}/how"))
                return Dice(faults, direction, *rngs)
        return None


def _kind(topic: str) -> str:
    """``topic`` without what may be another one in each run."""
    for name in OWN_NAMES:
        start, found, _ = topic.partition(name)
        if found:
            return start + found
    return topic
