"""The run: rounds, suites, contenders; one client at a time, each in a fresh process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks.machine import look
from benchmarks.plan import CLIENTS, Contender, Settings, Suite, rotated
from benchmarks.processes import Child
from benchmarks.report import number
from benchmarks.results import Measurement, Results
from dispatch.localbroker import Endpoint

Progress = Callable[[str], None]
"""Takes one line for a person to read."""


class Driver:
    """Measures ``suites`` on the broker of ``endpoint``.

    Args:
        progress: takes a line for each measurement.
    """

    def __init__(
        self, endpoint: Endpoint, suites: Sequence[Suite], settings: Settings, progress: Progress
    ) -> None:
        self._endpoint = endpoint
        self._suites = tuple(suites)
        self._settings = settings
        self._progress = progress
        self._run = secrets.token_hex(4)
        self._topics = 0
        self._total = settings.rounds * sum(len(suite.contenders) * len(suite.levels) for suite in suites)
        self._measurements: list[Measurement] = []

    def run(self) -> Results:
        """Measure everything.

        Raises:
            BenchmarkError: a process failed.
        """
        setting = look(self._endpoint)
        self._warm_broker()
        for number_of_round in range(self._settings.rounds):
            for suite in self._suites:
                self._round(suite, number_of_round)
        return Results(setting, self._settings, self._suites, tuple(self._measurements))

    def _warm_broker(self) -> None:
        seconds = self._settings.warm_broker
        self._progress(f"warming the broker up ({seconds:g} s)")
        spec = self._spec(persistent=False)
        with Child("echo_service", spec), Child(CLIENTS.contenders[0].client, spec) as client:
            self._measure(client, 64, seconds)

    def _round(self, suite: Suite, round_number: int) -> None:
        with ExitStack() as stack:
            shared = None
            if suite.service is not None:
                shared = self._spec(persistent=False)
                stack.enter_context(Child(suite.service, shared))
            for position, contender in enumerate(rotated(suite.contenders, round_number), 1):
                self._turn(suite, contender, shared, round_number + 1, position)

    def _turn(
        self, suite: Suite, contender: Contender, shared: dict[str, Any] | None, round_number: int, position: int
    ) -> None:
        with ExitStack() as stack:
            spec = shared
            if spec is None:
                assert contender.service is not None
                spec = self._spec(persistent=contender.persistent)
                stack.enter_context(Child(contender.service, spec))
            client = stack.enter_context(Child(contender.client, spec))
            for level in suite.levels:
                found = self._measure(client, level, self._settings.seconds * suite.stretch)
                one = Measurement(suite.name, contender.name, level, round_number, position, **found)
                self._measurements.append(one)
                self._report(one)

    def _measure(self, client: Child, in_flight: int, seconds: float) -> dict[str, Any]:
        ramp = self._settings.ramp
        # Beyond the measurement itself: its last calls may wait out their timeout, on a machine that is busy.
        patience = ramp + seconds + self._settings.timeout + 60.0
        return client.ask({"in_flight": in_flight, "seconds": seconds, "ramp": ramp}, patience)

    def _spec(self, *, persistent: bool) -> dict[str, Any]:
        """What client and service must know: the broker, and topics nobody else uses."""
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
            "warm_up": self._settings.warm_up,
        }

    def _report(self, one: Measurement) -> None:
        p50 = "no answer" if one.p50_ms is None else f"p50 {number(one.p50_ms)} ms"
        lost = f", {one.lost:,} lost" if one.lost else ""
        self._progress(
            f"[{len(self._measurements)}/{self._total}] round {one.round} · {one.suite}/{one.contender} · "
            f"{one.in_flight} in flight: {number(one.calls_per_second)} calls/s, {p50}{lost}"
        )


def rounds_of(settings: Settings, rounds: int | None, seconds: float | None) -> Settings:
    """``settings`` with what the command line says otherwise."""
    if seconds is not None:
        settings = settings.lasting(seconds)
    return settings if rounds is None else replace(settings, rounds=rounds)
