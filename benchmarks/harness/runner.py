"""Run of the suites. Each client and service is a process of its own, and one client calls at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks.harness.environment import look
from benchmarks.harness.plan import Settings, Suite, rotated
from benchmarks.harness.processes import Child, start
from benchmarks.harness.report import number
from benchmarks.harness.results import Measurement, Results
from dispatch.devtools.localbroker import Endpoint

Progress = Callable[[str], None]
"""Receives a line of progress."""


class Driver:
    """Measures ``suites`` on the broker of ``endpoint``.

    Args:
        progress: takes a line for each measurement.
        load_before: the machine's load before anything was started, for the record.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        suites: Sequence[Suite],
        settings: Settings,
        progress: Progress,
        *,
        load_before: float | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._suites = tuple(suites)
        self._settings = settings
        self._progress = progress
        self._load_before = load_before
        self._run = secrets.token_hex(4)
        self._topics = 0
        self._total = sum(suite.rounds_of(settings) * len(suite.contenders) * len(suite.levels) for suite in suites)
        self._measurements: list[Measurement] = []

    def run(self) -> Results:
        """Measure everything.

        Raises:
            BenchmarkError: a process failed.
        """
        setting = look(self._endpoint, self._load_before)
        self._warm_broker()
        for suite in self._suites:
            self._measure_suite(suite)
        return Results(setting, self._settings, self._suites, tuple(self._measurements))

    def _warm_broker(self) -> None:
        self._progress(f"warming the broker up ({self._settings.warm_broker:g} s)")
        spec = self._spec()
        with ExitStack() as stack:
            service, client = start("echo_service", stack), start("bare_listener", stack)
            service.begin(spec)
            client.begin(spec)
            self._ask(client, 64, self._settings.warm_broker, self._settings.ramp)

    def _measure_suite(self, suite: Suite) -> None:
        with ExitStack() as stack:
            clients = self._started(suite, stack)
            for round_number in range(1, suite.rounds_of(self._settings) + 1):
                for level in suite.levels:
                    # A ratio is formed of neighbours in time.
                    for position, contender in enumerate(rotated(suite.contenders, round_number - 1), 1):
                        found = self._measure(clients[contender.name], level, suite)
                        one = Measurement(suite.name, contender.name, level, round_number, position, **found)
                        self._measurements.append(one)
                        self._report(one)

    def _started(self, suite: Suite, stack: ExitStack) -> dict[str, Child]:
        """Start the processes of a suite and return its clients by contender."""
        self._progress(f"starting the clients and services of {suite.name}")
        specs = {c.name: self._spec(suite, persistent=c.persistent) for c in suite.contenders}
        # Started at once, because imports take longest; the specs follow one after the other.
        services = {c.name: start(c.service, stack) for c in suite.contenders if c.service is not None}
        shared = start(suite.shared_service, stack) if suite.shared_service is not None else None
        clients = {c.name: start(c.client, stack) for c in suite.contenders}
        if shared is not None:
            first, *others = specs.values()
            shared.begin({**first, "more": [[spec["request"], spec["response"]] for spec in others]})
        for name, service in services.items():
            service.begin(specs[name])
        for name, client in clients.items():
            client.begin(specs[name])
        for client in clients.values():
            self._ask(client, 16, self._settings.warm_up, self._settings.ramp)
        return clients

    def _measure(self, client: Child, in_flight: int, suite: Suite) -> dict[str, Any]:
        settings = self._settings
        return self._ask(client, in_flight, settings.seconds * suite.stretch, settings.ramp * suite.ramp_stretch)

    def _ask(self, client: Child, in_flight: int, seconds: float, ramp: float) -> dict[str, Any]:
        # Longer than the measurement: its last calls may time out, on a busy machine.
        patience = ramp + seconds + self._settings.timeout + 60.0
        return client.ask({"in_flight": in_flight, "seconds": seconds, "ramp": ramp}, patience)

    def _spec(self, suite: Suite | None = None, *, persistent: bool = False) -> dict[str, Any]:
        """Return the spec of client and service: the broker, and topics of their own."""
        self._topics += 1
        topic = f"bench-{self._run}-{self._topics}"
        return {
            "url": self._endpoint.service_url,
            "token": self._endpoint.token,
            "topic": topic,
            "request": f"persistent://tg/flow/{topic}" if persistent else f"non-persistent://tg/request/{topic}",
            "response": (
                f"persistent://tg/flow/{topic}-response" if persistent else f"non-persistent://tg/response/{topic}"
            ),
            "timeout": self._settings.timeout,
            "answer": 120 if suite is None else suite.answer,
        }

    def _report(self, one: Measurement) -> None:
        p50 = "no reply" if one.p50_ms is None else f"p50 {number(one.p50_ms)} ms"
        lost = f", {one.lost:,} lost" if one.lost else ""
        self._progress(
            f"[{len(self._measurements)}/{self._total}] round {one.round} · {one.suite}/{one.contender} · "
            f"{one.in_flight} in flight: {number(one.calls_per_second)} calls/s, {p50}{lost}"
        )


def rounds_of(settings: Settings, rounds: int | None, seconds: float | None) -> Settings:
    """Return ``settings`` with the values of the command line."""
    if seconds is not None:
        settings = settings.lasting(seconds)
    return settings if rounds is None else replace(settings, rounds=rounds)
