"""Ratios with a target, and ratios that decided the design. None of them fails a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.harness.results import Results
from benchmarks.harness.statistics import Spread, ratios, spread


@dataclass(frozen=True)
class Ratio:
    """A ratio of two contenders' figures.

    Attributes:
        text: label in tables.
        suite: suite of both contenders.
        over: the contender whose figure is divided.
        under: the contender by whose figure it is divided.
        figure: which figure, a field of :class:`~benchmarks.harness.results.Measurement`.
        in_flight: at how many calls in flight.
        limit: the target; None: no target.
        under_figure: the figure of ``under``, if it is another one.
        bound: whether ``limit`` is an upper or a lower bound.
    """

    text: str
    suite: str
    over: str
    under: str
    figure: str
    in_flight: int
    limit: float | None = None
    bound: Literal["at most", "at least"] = "at most"
    under_figure: str | None = None


@dataclass(frozen=True)
class Found:
    """A measured ratio by round and over the rounds. ``met`` is None without a target or a measurement."""

    ratio: Ratio
    rounds: dict[int, float]
    spread: Spread | None
    met: bool | None


PROMISES = (
    Ratio("p50 at 1 in flight, of TrustGraph's client", "clients", "dispatch", "trustgraph", "p50_ms", 1, 0.08),
    Ratio(
        "calls/s at 64 in flight, of TrustGraph's client",
        "clients",
        "dispatch",
        "trustgraph",
        "calls_per_second",
        64,
        2.0,
        "at least",
    ),
    Ratio(
        "calls/s at 64 in flight, of the bare client",
        "clients",
        "dispatch",
        "bare",
        "calls_per_second",
        64,
        0.9,
        "at least",
    ),
    Ratio("p50 at 1 in flight, of the bare client", "clients", "dispatch", "bare", "p50_ms", 1, 1.25),
    Ratio(
        "p50 at 1 in flight, of TrustGraph's client + service",
        "services",
        "dispatch",
        "trustgraph",
        "p50_ms",
        1,
        1 / 25,
    ),
    Ratio(
        "calls/s at 64 in flight, of TrustGraph's client + service",
        "services",
        "dispatch",
        "trustgraph",
        "calls_per_second",
        64,
        40.0,
        "at least",
    ),
    Ratio(
        "calls/s at 64 in flight with all guards, of the same without",
        "guards",
        "dispatch",
        "unguarded",
        "calls_per_second",
        64,
        0.9,
        "at least",
    ),
    *(
        Ratio(
            f"calls/s at 64 in flight with {text}, of the same without",
            "telemetry",
            contender,
            "silent",
            "calls_per_second",
            64,
            limit,
            "at least",
        )
        for contender, text, limit in (("metrics", "metrics", 0.95), ("sampled", "metrics and 1 % traced", 0.93))
    ),
    Ratio(
        "100 kB, 64 in flight: calls/s, of the bare client and service",
        "answers-100k",
        "dispatch",
        "bare",
        "calls_per_second",
        64,
        1.5,
        "at least",
    ),
    *(
        Ratio(
            f"{text}, 1 in flight: p50, of the same without credit",
            f"answers-{name}",
            "dispatch",
            "without-credit",
            "p50_ms",
            1,
            1.3,
        )
        for name, text in (("120", "120 B"), ("1k", "1 kB"), ("10k", "10 kB"), ("100k", "100 kB"), ("1M", "1 MB"))
    ),
    *(
        Ratio(
            f"{text}, 64 in flight: p99.9, of its p50",
            f"answers-{name}",
            "dispatch",
            "dispatch",
            "p999_ms",
            64,
            10,
            under_figure="p50_ms",
        )
        for name, text in (("1k", "1 kB"), ("10k", "10 kB"), ("100k", "100 kB"), ("1M", "1 MB"))
    ),
    Ratio(
        "120 B, 64 in flight: calls/s, of the same without credit",
        "answers-120",
        "dispatch",
        "without-credit",
        "calls_per_second",
        64,
        0.95,
        "at least",
    ),
)

FOR_THE_RECORD = (
    Ratio("two interfaces: p50 at 1, listener of asyncio", "clients", "bare", "bare-asyncio", "p50_ms", 1),
    Ratio(
        "two interfaces: calls/s at 64, listener of asyncio", "clients", "bare", "bare-asyncio", "calls_per_second", 64
    ),
    Ratio(
        "two interfaces: CPU a call at 64, listener of asyncio",
        "clients",
        "bare",
        "bare-asyncio",
        "cpu_us_per_call",
        64,
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
    """Form ``ratio`` within each round, and compare the median with the target."""
    rounds = ratios(
        results.figure(ratio.suite, ratio.over, ratio.in_flight, ratio.figure),
        results.figure(ratio.suite, ratio.under, ratio.in_flight, ratio.under_figure or ratio.figure),
    )
    over_rounds = spread(rounds.values())
    met = None
    if over_rounds is not None and ratio.limit is not None:
        met = over_rounds.median <= ratio.limit if ratio.bound == "at most" else over_rounds.median >= ratio.limit
    return Found(ratio, rounds, over_rounds, met)
