"""The plan of a run: contenders, suites of them, settings, and rotated rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

T = TypeVar("T")

Mode = Literal["closed", "open", "burst"]
"""Kind of load, see :mod:`benchmarks.workers.load`."""

LEVELS = (1, 16, 64, 256)

STARTUP_S = 1.5
"""Seconds to start, connect and stop a process; used for the estimate only."""
LEVEL_NAMES: dict[Mode, str] = {"closed": "in flight", "open": "calls/s offered", "burst": "calls at once"}
"""Meaning of a suite's levels."""


@dataclass(frozen=True)
class Contender:
    """A contender of a suite.

    Attributes:
        name: short, unique in its suite.
        label: its name in the table and the plot.
        client: module of :mod:`benchmarks.workers` of the calling process.
        service: module of the serving process; None: the service that all contenders of the suite share.
        persistent: its topics are persistent.
        is_former: client and service run with ``dispatch`` of the release before.
        clients: calling processes that are measured together, each with the load of the level.
        services: serving processes.
        instances: instances of the service in each serving process.
        system: the compared system of :mod:`benchmarks.peers` that the processes belong to.
    """

    name: str
    label: str
    client: str
    service: str | None = None
    persistent: bool = False
    is_former: bool = False
    clients: int = 1
    services: int = 1
    instances: int = 1
    system: str = ""

    @property
    def processes(self) -> int:
        """Number of its own processes."""
        return self.clients + (0 if self.service is None else self.services)


@dataclass(frozen=True)
class Suite:
    """A comparison.

    Attributes:
        name: for ``--only``.
        title: the comparison in a few words.
        contenders: in the order of the first round.
        levels: calls in flight, or what the mode says.
        mode: the kind of load.
        shared_service: module of the service that all contenders call, each on its own topics (a shared response topic would
            deliver replies to idle clients too); None: each contender has its own service.
        stretch: factor on the length of a measurement (slow contenders have few calls to count).
        answer: characters of a reply.
        rounds: rounds at most; None: as many as the settings say.
        ramp_stretch: like ``stretch``, for the load before each measurement.
        beside: callers of a large reply beside the measured calls, which are not counted.
        large_answer: characters of that reply.
        drop: share of the messages that are lost on their way to client and service each.
        is_counting: the service counts the calls that it executes more than once.
    """

    name: str
    title: str
    contenders: tuple[Contender, ...]
    levels: tuple[int, ...] = LEVELS
    mode: Mode = "closed"
    shared_service: str | None = None
    stretch: float = 1.0
    answer: int = 120
    rounds: int | None = None
    ramp_stretch: float = 1.0
    beside: int = 0
    large_answer: int = 0
    drop: float = 0.0
    is_counting: bool = False

    def rounds_of(self, settings: Settings) -> int:
        """Return the number of rounds of this suite."""
        return settings.rounds if self.rounds is None else min(self.rounds, settings.rounds)


@dataclass(frozen=True)
class Settings:
    """Settings of a run; times in seconds.

    Attributes:
        rounds: measurements of each contender at each level.
        seconds: length of a measurement.
        ramp: length of the same load before each measurement, not counted.
        warm_up: calls of each client before the first round, not counted.
        warm_broker: length of the calls before the first round, which warm the broker up: in its first minute, while the JIT
            compiler runs, a call of dispatch took a quarter longer than later, one of the bare client an eighth.
        timeout: a call without a reply by then counts as lost.
    """

    rounds: int = 5
    seconds: float = 1.0
    ramp: float = 0.2
    warm_up: float = 0.5
    warm_broker: float = 20.0
    timeout: float = 2.0

    def lasting(self, seconds: float) -> Settings:
        """Return these settings with measurements of ``seconds``, and no other part longer than that."""
        return replace(
            self,
            seconds=seconds,
            ramp=min(self.ramp, round(seconds / 3, 3)),
            warm_up=min(self.warm_up, seconds),
            warm_broker=min(self.warm_broker, 20 * seconds),
        )


DEFAULT = Settings()
QUICK = Settings(rounds=1, warm_broker=3.0).lasting(0.4)


def rotated(items: Sequence[T], round_number: int) -> list[T]:
    """Rotate ``items`` for round ``round_number`` (from 0): A B C, then B C A, then C A B …"""
    start = round_number % len(items) if items else 0
    return [*items[start:], *items[:start]]


def estimated_seconds(suites: Sequence[Suite], settings: Settings) -> float:
    """Estimate the duration of the rounds in seconds, without the start of a broker."""
    total = settings.warm_broker + 2 * STARTUP_S
    for suite in suites:
        processes = sum(contender.processes for contender in suite.contenders) + (1 if suite.shared_service else 0)
        cells = suite.rounds_of(settings) * len(suite.contenders) * len(suite.levels)
        total += processes * STARTUP_S + len(suite.contenders) * settings.warm_up
        total += cells * (settings.seconds * suite.stretch + settings.ramp * suite.ramp_stretch)
    return total
