"""The suites of the benchmark, and their choice by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness.plan import Contender, Suite

LOST_RAMP = 10.0
"""``ramp_stretch`` of suites in which calls are lost: the ramp lasts as long as the timeout of a lost call, and by its end
the number of calls that wait for one is steady."""

BARE = Contender("bare", "bare client + service", "bare_listener", "echo_service")
TRUSTGRAPH = Contender("trustgraph", "TrustGraph client + service", "trustgraph_client", "trustgraph_service")
FORMER = Contender("before", "dispatch, the release before", "dispatch_client", "dispatch_service", is_former=True)
DISPATCH = Contender("dispatch", "dispatch", "dispatch_client", "dispatch_service")

SIZES = (("120", "120 B", 120), ("10k", "10 kB", 10_000), ("100k", "100 kB", 100_000), ("1M", "1 MB", 1_000_000))

SYSTEMS = tuple(
    Suite(
        f"systems-{name}",
        f"Client and service together, replies of {text}",
        (BARE, TRUSTGRAPH, FORMER, DISPATCH),
        ramp_stretch=LOST_RAMP,
        answer=size,
        rounds=3,
    )
    for name, text, size in SIZES
)
"""Throughput, latency, processor time and losses of four systems by size of the replies and calls in flight."""

LAYERS = Suite(
    "layers",
    "What dispatcher and tool server add to the session protocol, replies of 120 B",
    (Contender("session", "session protocol and endpoint alone", "session_client", "session_service"), DISPATCH),
    rounds=3,
)
OPEN = Suite(
    "open",
    "Open load: calls arrive at random, whether earlier ones are answered or not",
    (BARE, FORMER, DISPATCH),
    levels=(5_000, 15_000),
    mode="open",
    stretch=2.0,
    ramp_stretch=5.0,
    rounds=3,
)
LOSSES = tuple(
    Suite(
        f"loss-{name}",
        f"5 % of the messages lost each way, replies of {text}",
        (FORMER, DISPATCH),
        levels=(64,),
        stretch=3.0,
        ramp_stretch=5.0,
        answer=size,
        rounds=3,
        drop=0.05,
        is_counting=True,
    )
    for name, text, size in (SIZES[0], SIZES[2])
)
BESIDE = Suite(
    "beside",
    "Small calls beside 8 callers of 1 MB",
    (BARE, FORMER, DISPATCH),
    levels=(1, 8),
    stretch=2.0,
    ramp_stretch=LOST_RAMP,
    rounds=3,
    beside=8,
    large_answer=1_000_000,
)
FAN_IN = Suite(
    "fan-in",
    "20 instances that answer one dispatcher with 100 kB at once",
    (
        replace(FORMER, services=4, instances=5),
        replace(DISPATCH, services=4, instances=5),
    ),
    levels=(20,),
    mode="burst",
    stretch=2.0,
    ramp_stretch=5.0,
    answer=100_000,
    rounds=3,
)
FLEETS = Suite(
    "fleets",
    "Dispatchers x instances, 64 calls in flight each",
    tuple(
        replace(
            contender,
            name=f"{contender.name}-{clients}x{services}",
            label=f"{contender.label}, {clients} x {services}",
            clients=clients,
            services=services,
        )
        for clients, services in ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4))
        for contender in (FORMER, DISPATCH)
    ),
    levels=(64,),
    rounds=2,
)
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
    rounds=3,
)
TOPICS = Suite(
    "topics",
    "dispatch client + service, by kind of topic",
    (
        Contender("non-persistent", "non-persistent topics", "dispatch_client", "dispatch_service"),
        Contender("persistent", "persistent topics", "dispatch_client", "dispatch_service", persistent=True),
    ),
    rounds=3,
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
    rounds=3,
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
SUITES = (*SYSTEMS, LAYERS, OPEN, *LOSSES, BESIDE, FAN_IN, FLEETS, CLIENTS, TOPICS, GUARDS, TELEMETRY)

QUICK_SUITES = (
    # With the timeouts of lost calls, the larger replies alone would take two minutes.
    *(replace(suite, levels=(1, 64), ramp_stretch=1.0) for suite in SYSTEMS[:3]),
    replace(OPEN, ramp_stretch=1.0),
    *(replace(suite, ramp_stretch=1.0) for suite in LOSSES),
    replace(CLIENTS, levels=(1, 64)),
    replace(TOPICS, levels=(1, 64)),
)
"""The suites of ``--quick``: figures to look at."""


def chosen(
    names: Sequence[str], default: Sequence[Suite] = SUITES, suites: Sequence[Suite] = SUITES
) -> tuple[Suite, ...]:
    """Return those of ``suites`` with these names; ``suite/contender`` selects one contender. No names: ``default``.

    Raises:
        ValueError: there is no such suite or contender; the text has the names there are.
    """
    if not names:
        return tuple(default)
    wanted: dict[str, set[str]] = {}
    for name in names:
        suite_name, _, contender = name.partition("/")
        suite = next((suite for suite in suites if suite.name == suite_name), None)
        known = {c.name for c in suite.contenders} if suite is not None else set()
        if suite is None or (contender and contender not in known):
            there_are = [suite.name for suite in suites] + [f"{s.name}/{c.name}" for s in suites for c in s.contenders]
            raise ValueError(f"there is no '{name}'; choose from: {', '.join(there_are)}")
        wanted.setdefault(suite_name, set()).update({contender} if contender else known)
    return tuple(
        replace(suite, contenders=tuple(c for c in suite.contenders if c.name in wanted[suite.name]))
        for suite in suites
        if suite.name in wanted
    )


def without_former(suites: Sequence[Suite]) -> tuple[Suite, ...]:
    """Return the suites without contenders of the release before, and without suites that have no other."""
    present = (replace(suite, contenders=tuple(c for c in suite.contenders if not c.is_former)) for suite in suites)
    return tuple(suite for suite in present if suite.contenders)
