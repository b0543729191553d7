"""The broker is away or hangs for a while under load: how soon calls succeed again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from benchmarks.harness.broker import suspend
from benchmarks.harness.processes import Child
from benchmarks.incidents.figures import RIGHT, Call, Figure, begun, calls_of, common_failures, first_right, share
from benchmarks.incidents.lab import REACH_S, Lab, queues, restart, unique
from benchmarks.incidents.scenario import Scenario
from dispatch.devtools.localbroker import LocalBroker

RATE = 50.0
TIMEOUT_S = 3.0
AFTER_S = 25.0
"""Seconds of observation after the first success, or after the broker is back if there is none."""
START_S = 7.0
"""Seconds that a broker needs to start: it is started that long before the end of the outage."""


def run(lab: Lab, way: str) -> Iterator[Figure]:
    """Measure it; ``way``: ``killed`` or ``paused``."""
    for seconds in (5,) if lab.short else (5, 20, 60):
        yield from lab.attempt(f"{way} for {seconds} s", partial(one, lab, seconds, way))


def one(lab: Lab, seconds: float, way: str) -> list[Figure]:
    """One outage."""
    broker = lab.brokers.get()
    after = 5.0 if lab.short else AFTER_S
    lab.progress.step(f"outages: broker {way} for {seconds:g} s under {RATE:g} calls/s", seconds + 2 * after + 15)
    with ExitStack() as stack:
        spec = {"url": broker.service_url, **queues(unique("outage"))}
        lab.start("service", spec, stack)
        caller = lab.start("caller", {**spec, "timeout": TIMEOUT_S}, stack)
        caller.ask({"do": "reach", "seconds": REACH_S}, REACH_S + 10)
        caller.ask({"do": "begin", "rate": RATE}, 10)
        time.sleep(3)
        began, back = outage(broker, seconds, way)
        calls, at_back = take(caller)
        first = None
        while time.monotonic() < (first or back) + after:
            time.sleep(0.5)
            more, state = take(caller)
            calls += more
            first = first_right(calls, back)
        ended = caller.ask({"do": "end"}, 60)
        calls += calls_of(ended["calls"])
    return figures_of(f"{way} {seconds:g} s", calls, began, back, after, at_back, state)


def outage(broker: LocalBroker, seconds: float, way: str) -> tuple[float, float]:
    """Take the broker away for about ``seconds``.

    Returns:
        When it went, and when it was back: a message of another client went through it.
    """
    began = time.monotonic()
    if way == "paused":
        suspend(broker.process)
        try:
            time.sleep(seconds)
        finally:
            broker.process.send_signal(signal.SIGCONT)
        return began, time.monotonic()
    broker.kill()
    time.sleep(max(0.0, seconds - START_S))
    return began, restart(broker)


def take(caller: Child) -> tuple[list[Call], str]:
    """The calls that ended since the last look, and the state of the circuit breaker."""
    answer = caller.ask({"do": "take"}, 30)
    return calls_of(answer["calls"]), answer["breaker"]


def figures_of(
    name: str, calls: list[Call], began: float, back: float, after: float, at_back: str, state: str
) -> list[Figure]:
    """The figures of one outage from ``began`` to ``back``."""
    first = first_right(calls, back)
    since = back if first is None else first
    watched = begun(calls, since, since + after)
    return [
        Figure(f"{name}: length of the outage", back - began, "s"),
        Figure(f"{name}: broker back to first success", None if first is None else first - back, "s", "≤ 1 s"),
        Figure(f"{name}: right from then on, {after:g} s", share(watched, RIGHT), "%", "≥ 99 %"),
        Figure(f"{name}: failures from then on", common_failures(watched), "", "none"),
        Figure(f"{name}: circuit when the broker is back", at_back, "", "closed"),
        Figure(f"{name}: circuit at the end", state, "", "closed"),
    ]


KILLED = Scenario(
    "outages",
    f"the broker is killed under {RATE:g} calls/s; '-': no call succeeded within {AFTER_S:g} s",
    partial(run, way="killed"),
    seconds=220,
    short_seconds=30,
)
PAUSED = Scenario(
    "pauses",
    f"the broker is paused (SIGSTOP) under {RATE:g} calls/s; '-': no call succeeded within {AFTER_S:g} s",
    partial(run, way="paused"),
    seconds=210,
    short_seconds=25,
)
