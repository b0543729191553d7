"""Figures and ratios with a target, and ratios that decided the design. None of them fails a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.harness.results import Results
from benchmarks.harness.statistics import Spread, ratios, spread

Bound = Literal["at most", "at least"]


@dataclass(frozen=True)
class Ratio:
    """A ratio of two contenders' figures, or a figure of one.

    Attributes:
        text: label in tables.
        suite: suite of both contenders.
        over: the contender whose figure is divided.
        under: the contender by whose figure it is divided; None: the figure itself.
        figure: which figure, a field of :class:`~benchmarks.harness.results.Measurement`.
        level: at which level of the suite.
        limit: the target; None: no target.
        bound: whether ``limit`` is an upper or a lower bound.
        under_figure: the figure of ``under``, if it is another one.
    """

    text: str
    suite: str
    over: str
    under: str | None
    figure: str
    level: int
    limit: float | None = None
    bound: Bound = "at most"
    under_figure: str | None = None


@dataclass(frozen=True)
class Found:
    """A measured ratio by round and over the rounds. ``met`` is None without a target or a measurement."""

    ratio: Ratio
    rounds: dict[int, float]
    spread: Spread | None
    met: bool | None


def _rate(suite: str, over: str, under: str, level: int, limit: float | None, text: str) -> Ratio:
    return Ratio(text, suite, over, under, "calls_per_second", level, limit, "at least")


def _of_dispatch(suite: str, figure: str, level: int, limit: float, text: str) -> Ratio:
    return Ratio(text, suite, "dispatch", None, figure, level, limit)


SYSTEM_TARGETS = (
    Ratio("120 B, 1 in flight: p50, of the bare pair", "systems-120", "dispatch", "bare", "p50_ms", 1, 1.1),
    *(
        _rate("systems-120", "dispatch", "bare", level, limit, f"120 B, {level} in flight: calls/s, of the bare pair")
        for level, limit in ((16, 2.2), (64, 4.0), (256, 4.0))
    ),
    Ratio("120 B, 64 in flight: p50, of the bare pair", "systems-120", "dispatch", "bare", "p50_ms", 64, 0.4),
    _rate("systems-10k", "dispatch", "bare", 64, 5.0, "10 kB, 64 in flight: calls/s, of the bare pair"),
    _rate("systems-100k", "dispatch", "bare", 64, 3.0, "100 kB, 64 in flight: calls/s, of the bare pair"),
    Ratio(
        "100 kB, 64 in flight: p99.9, of its p50",
        "systems-100k",
        "dispatch",
        "dispatch",
        "p999_ms",
        64,
        3.0,
        under_figure="p50_ms",
    ),
    _rate("systems-1M", "dispatch", "before", 64, 1.0, "1 MB, 64 in flight: calls/s, of the release before"),
    _rate("systems-120", "dispatch", "trustgraph", 64, 100.0, "120 B, 64 in flight: calls/s, of TrustGraph's pair"),
    _of_dispatch("systems-120", "cpu_us_per_call", 64, 28, "120 B, 64 in flight: client CPU, µs a call"),
    _of_dispatch("systems-120", "service_cpu_us_per_call", 64, 25, "120 B, 64 in flight: service CPU, µs a call"),
    *(
        _of_dispatch(f"systems-{name}", "lost", 64, 0, f"{text}, 64 in flight: lost calls")
        for name, text in (("120", "120 B"), ("10k", "10 kB"), ("100k", "100 kB"), ("1M", "1 MB"))
    ),
)
"""Client and service together, beside the bare pair, TrustGraph's pair and the release before."""

TROUBLE_TARGETS = (
    _of_dispatch("open", "lost", 15_000, 0, "15,000 calls/s offered: lost calls"),
    _of_dispatch("open", "p99_ms", 15_000, 10, "15,000 calls/s offered: p99, ms"),
    *(
        _of_dispatch(f"loss-{name}", figure, 64, limit, f"5 % lost each way, {text}: {label}")
        for name, text, p999 in (("120", "120 B", 20), ("100k", "100 kB", 60))
        for figure, limit, label in (
            ("lost", 0, "lost calls"),
            ("repeated", 0, "calls executed again"),
            ("p999_ms", p999, "p99.9, ms"),
        )
    ),
    _of_dispatch("beside", "p99_ms", 8, 10, "8 small calls beside 8 of 1 MB: p99, ms"),
    _of_dispatch("fan-in", "lost", 20, 0, "20 instances answer with 100 kB at once: lost calls"),
    _of_dispatch(
        "fan-in", "retransmitted", 20, 0.01, "20 instances answer with 100 kB at once: retransmissions a packet"
    ),
)
"""Overload, lost messages, large answers and many senders."""

CLIENT_TARGETS = (
    Ratio("p50 at 1 in flight, of TrustGraph's client", "clients", "dispatch", "trustgraph", "p50_ms", 1, 0.08),
    _rate("clients", "dispatch", "trustgraph", 64, 2.0, "calls/s at 64 in flight, of TrustGraph's client"),
    _rate("clients", "dispatch", "bare", 64, 0.9, "calls/s at 64 in flight, of the bare client"),
    Ratio("p50 at 1 in flight, of the bare client", "clients", "dispatch", "bare", "p50_ms", 1, 1.25),
    _rate("guards", "dispatch", "unguarded", 64, 0.9, "calls/s at 64 in flight with all guards, of the same without"),
    *(
        _rate(
            "telemetry",
            contender,
            "silent",
            64,
            limit,
            f"calls/s at 64 in flight with {text}, of the same without",
        )
        for contender, text, limit in (("metrics", "metrics", 0.95), ("sampled", "metrics and 1 % traced", 0.93))
    ),
)
"""The client alone with a third-party service, and the cost of guards and telemetry."""

TARGETS = (*SYSTEM_TARGETS, *TROUBLE_TARGETS, *CLIENT_TARGETS)

FOR_THE_RECORD = (
    *(
        Ratio(
            f"120 B, 64 in flight: {text}, of the session protocol alone", "layers", "dispatch", "session", figure, 64
        )
        for figure, text in (
            ("calls_per_second", "calls/s"),
            ("cpu_us_per_call", "client CPU a call"),
            ("service_cpu_us_per_call", "service CPU a call"),
        )
    ),
    *(
        _rate(
            f"systems-{name}", "dispatch", "before", 64, None, f"{text}, 64 in flight: calls/s, of the release before"
        )
        for name, text in (("120", "120 B"), ("10k", "10 kB"), ("100k", "100 kB"))
    ),
    *(
        _rate("fleets", f"dispatch-{shape}", "dispatch-1x1", 64, None, f"calls/s, {text}, of 1 x 1")
        for shape, text in (
            ("2x1", "2 dispatchers x 1 instance"),
            ("1x2", "1 dispatcher x 2 instances"),
            ("2x2", "2 x 2"),
            ("1x4", "1 x 4"),
        )
    ),
    Ratio("two interfaces: p50 at 1, listener of asyncio", "clients", "bare", "bare-asyncio", "p50_ms", 1),
    Ratio(
        "two interfaces: calls/s at 64, listener of asyncio", "clients", "bare", "bare-asyncio", "calls_per_second", 64
    ),
    Ratio("CPU a call at 64, metrics of silent", "telemetry", "metrics", "silent", "cpu_us_per_call", 64),
    Ratio("CPU a call at 64, 1 % traced of silent", "telemetry", "sampled", "silent", "cpu_us_per_call", 64),
    Ratio("CPU a call at 64, of the bare client", "clients", "dispatch", "bare", "cpu_us_per_call", 64),
    Ratio("p50 at 1, persistent of non-persistent", "topics", "persistent", "non-persistent", "p50_ms", 1),
    Ratio(
        "calls/s at 256, persistent of non-persistent",
        "topics",
        "persistent",
        "non-persistent",
        "calls_per_second",
        256,
    ),
)


def find(ratio: Ratio, results: Results) -> Found:
    """Form ``ratio`` within each round, and compare with the target: the median, or for counts the greatest value."""
    over = results.figure(ratio.suite, ratio.over, ratio.level, ratio.figure)
    if ratio.under is None:
        rounds = {number: value for number, value in over.items() if value is not None}
    else:
        under = results.figure(ratio.suite, ratio.under, ratio.level, ratio.under_figure or ratio.figure)
        rounds = ratios(over, under)
    over_rounds = spread(rounds.values())
    met = None
    if over_rounds is not None and ratio.limit is not None:
        # A lost call in one round of three is a lost call.
        counts = over_rounds.max if ratio.figure in ("lost", "repeated") else over_rounds.median
        met = counts <= ratio.limit if ratio.bound == "at most" else counts >= ratio.limit
    return Found(ratio, rounds, over_rounds, met)
