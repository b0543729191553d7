"""Suites of contenders, numbers of calls in flight, and rotated rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")

LEVELS = (1, 16, 64, 256)

STARTUP_S = 1.5
"""Seconds to start, connect and stop a process; used for the estimate only."""


@dataclass(frozen=True)
class Contender:
    """A contender of a suite.

    Attributes:
        name: short, unique in its suite.
        label: its name in the table and the plot.
        client: module of :mod:`benchmarks.workers` of the calling process.
        service: module of the serving process; None: the service that all contenders of the suite share.
        persistent: its topics are persistent.
    """

    name: str
    label: str
    client: str
    service: str | None = None
    persistent: bool = False


@dataclass(frozen=True)
class Suite:
    """A comparison.

    Attributes:
        name: for ``--only``.
        title: the comparison in a few words.
        contenders: in the order of the first round.
        levels: calls in flight.
        shared_service: module of the service that all contenders call, each on its own topics (a shared response topic would
            deliver replies to idle clients too); None: each contender has its own service.
        stretch: factor on the length of a measurement (slow contenders have few calls to count).
        answer: characters of a reply.
        rounds: rounds at most; None: as many as the settings say.
        ramp_stretch: like ``stretch``, for the load before each measurement.
    """

    name: str
    title: str
    contenders: tuple[Contender, ...]
    levels: tuple[int, ...] = LEVELS
    shared_service: str | None = None
    stretch: float = 1.0
    answer: int = 120
    rounds: int | None = None
    ramp_stretch: float = 1.0

    def rounds_of(self, settings: Settings) -> int:
        """Return the number of rounds of this suite."""
        return settings.rounds if self.rounds is None else min(self.rounds, settings.rounds)


@dataclass(frozen=True)
class Settings:
    """Settings of a run; times in seconds.

    Attributes:
        rounds: measurements of each contender at each number of calls in flight.
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

CLIENTS = Suite(
    "clients",
    "Clients, calling the same bare echo service",
    (
        Contender("bare", "bare: send_async + listener", "bare_listener"),
        Contender("bare-asyncio", "bare: pulsar.asyncio", "bare_asyncio"),
        Contender("trustgraph", "TrustGraph ToolServiceClient", "trustgraph_client"),
        Contender("dispatch", "dispatch: Dispatcher.call", "dispatch_client"),
    ),
    shared_service="echo_service",
)
SERVICES = Suite(
    "services",
    "Client and service together",
    (
        Contender("trustgraph", "TrustGraph client + service", "trustgraph_client", "trustgraph_service"),
        Contender("dispatch", "dispatch client + service", "dispatch_client", "dispatch_service"),
    ),
    levels=(1, 64),
    stretch=2.5,
)
TOPICS = Suite(
    "topics",
    "dispatch client + service, by kind of topic",
    (
        Contender("non-persistent", "non-persistent topics", "dispatch_client", "dispatch_service"),
        Contender("persistent", "persistent topics", "dispatch_client", "dispatch_service", persistent=True),
    ),
)

GUARDS = Suite(
    "guards",
    "dispatch client + service, with and without guards",
    (
        Contender("unguarded", "no guards", "dispatch_client_unguarded", "dispatch_service"),
        Contender("defaults", "the default guards", "dispatch_client", "dispatch_service"),
        Contender("dispatch", "and rate limits", "dispatch_client_all_guards", "dispatch_service"),
    ),
    levels=(1, 64),
    rounds=2,
)

TELEMETRY = Suite(
    "telemetry",
    "dispatch client + service, by telemetry of the client",
    (
        Contender("silent", "none", "dispatch_client_silent", "dispatch_service"),
        Contender("metrics", "metrics", "dispatch_client", "dispatch_service"),
        Contender("sampled", "metrics, and 1 % traced", "dispatch_client_sampled", "dispatch_service"),
    ),
    levels=(64,),
    # Short: the difference is small, and drift slower than a round affects all contenders.
    stretch=0.6,
    ramp_stretch=0.5,
)

_DISPATCH = (
    Contender("without-credit", "dispatch, without credit", "dispatch_client_without_credit", "dispatch_service"),
    Contender("dispatch", "dispatch", "dispatch_client", "dispatch_service"),
)
_OTHERS = (
    Contender("bare", "bare client and service", "bare_listener", "echo_service"),
    Contender("trustgraph", "TrustGraph's client, bare service", "trustgraph_client", "echo_service"),
)
DELIVERY_LEVELS = (1, 16, 64, 256)
DELIVERY = tuple(
    Suite(
        f"answers-{name}",
        f"Replies of {text}",
        contenders,
        levels=DELIVERY_LEVELS,
        stretch=2.0,
        ramp_stretch=10.0,  # the timeout of a lost reply: by then the number of calls that wait for one is steady
        answer=size,
        rounds=2,
    )
    for name, text, size, contenders in (
        ("120", "120 B", 120, _DISPATCH),
        ("1k", "1 kB", 1_000, _OTHERS + _DISPATCH),
        ("10k", "10 kB", 10_000, _OTHERS + _DISPATCH),
        ("100k", "100 kB", 100_000, _OTHERS + _DISPATCH),
        ("1M", "1 MB", 1_000_000, _OTHERS + _DISPATCH),
    )
)
"""Losses and their cost by reply size, on topics that lose messages."""
BASIC = (CLIENTS, SERVICES, TOPICS)
SUITES = (*BASIC, GUARDS, TELEMETRY, *DELIVERY)


def rotated(items: Sequence[T], round_number: int) -> list[T]:
    """Rotate ``items`` for round ``round_number`` (from 0): A B C, then B C A, then C A B …"""
    start = round_number % len(items) if items else 0
    return [*items[start:], *items[:start]]


def chosen(names: Sequence[str], default: Sequence[Suite] = SUITES) -> tuple[Suite, ...]:
    """Return the suites of these names; ``suite/contender`` selects one contender. No names: ``default``.

    Raises:
        ValueError: there is no such suite or contender; the text has the names there are.
    """
    if not names:
        return tuple(default)
    wanted: dict[str, set[str]] = {}
    for name in names:
        suite_name, _, contender = name.partition("/")
        suite = next((suite for suite in SUITES if suite.name == suite_name), None)
        known = {c.name for c in suite.contenders} if suite is not None else set()
        if suite is None or (contender and contender not in known):
            there_are = [suite.name for suite in SUITES] + [f"{s.name}/{c.name}" for s in SUITES for c in s.contenders]
            raise ValueError(f"there is no '{name}'; choose from: {', '.join(there_are)}")
        wanted.setdefault(suite_name, set()).update({contender} if contender else known)
    return tuple(
        replace(suite, contenders=tuple(c for c in suite.contenders if c.name in wanted[suite.name]))
        for suite in SUITES
        if suite.name in wanted
    )


def estimated_seconds(suites: Sequence[Suite], settings: Settings) -> float:
    """Estimate the duration of the rounds in seconds, without the start of a broker."""
    total = settings.warm_broker + 2 * STARTUP_S
    for suite in suites:
        processes = len(suite.contenders) + (1 if suite.shared_service else len(suite.contenders))
        cells = suite.rounds_of(settings) * len(suite.contenders) * len(suite.levels)
        total += processes * STARTUP_S + len(suite.contenders) * settings.warm_up
        total += cells * (settings.seconds * suite.stretch + settings.ramp * suite.ramp_stretch)
    return total
