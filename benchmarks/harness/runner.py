"""Run of the suites. Each client and service is a process of its own, and the clients of one contender call at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness.broker import Endpoint
from benchmarks.harness.environment import look
from benchmarks.harness.merging import merge_answers, merge_reports
from benchmarks.harness.plan import LEVEL_NAMES, Contender, Settings, Suite, rotated
from benchmarks.harness.processes import Child, start
from benchmarks.harness.report import number
from benchmarks.harness.results import Measurement, Results
from benchmarks.workers.proc import read_processor_time
from dispatch.devtools.localbroker import find_free_ports

Progress = Callable[[str], None]
"""Receives a line of progress."""
SETTLE_S, SETTLE_STEP_S, IDLE = 5.0, 0.1, 0.15
"""Seconds until the services are idle, at most; between two looks; and the share of a processor that an idle one uses."""
REPORT_S = 30.0
"""Seconds until a service reports, at most: one that is behind executes the requests of lost calls first."""


@dataclass(frozen=True)
class Products:
    """Folders with the package ``dispatch``.

    Attributes:
        present: of the contenders; None: this checkout.
        former: of those of the release before; None: this checkout.
    """

    present: Path | None = None
    former: Path | None = None

    def of(self, contender: Contender) -> Path | None:
        """Return the folder of a contender."""
        return self.former if contender.is_former else self.present


class HasPid(Protocol):
    """A broker or server."""

    @property
    def pid(self) -> int: ...


class Server(HasPid, Protocol):
    """A server beside the broker."""

    url: str


@dataclass(frozen=True)
class Team:
    """The processes of a contender. A service that contenders share belongs to each of them."""

    clients: tuple[Child, ...]
    services: tuple[Child, ...]


class Driver:
    """Measures ``suites`` on the broker of ``endpoint``.

    Args:
        progress: takes a line for each measurement.
        load_before: the machine's load before anything was started, for the record.
        products: the ``dispatch`` of each contender.
        servers: of systems that meet at another server than the broker.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        suites: Sequence[Suite],
        settings: Settings,
        progress: Progress,
        *,
        load_before: float | None = None,
        products: Products | None = None,
        servers: Mapping[str, Server] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._suites = tuple(suites)
        self._settings = settings
        self._progress = progress
        self._load_before = load_before
        self._products = products or Products()
        self._servers = servers or {}
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
            self._ask([client], {"level": 64, "seconds": self._settings.warm_broker, "ramp": self._settings.ramp})

    def _measure_suite(self, suite: Suite) -> None:
        with ExitStack() as stack:
            teams = self._started(suite, stack)
            for round_number in range(1, suite.rounds_of(self._settings) + 1):
                for level in suite.levels:
                    # A ratio is formed of neighbours in time.
                    for position, contender in enumerate(rotated(suite.contenders, round_number - 1), 1):
                        figures = self._measure(teams[contender.name], level, suite, contender)
                        one = Measurement(suite.name, contender.name, level, round_number, position, **figures)
                        self._measurements.append(one)
                        self._report(one, suite)

    def _started(self, suite: Suite, stack: ExitStack) -> dict[str, Team]:
        """Start the processes of a suite and return them by contender."""
        self._progress(f"starting the clients and services of {suite.name}")
        specs = {c.name: self._spec(suite, c) for c in suite.contenders}
        # Started at once, because imports take longest; the specs follow one after the other.
        shared = () if suite.shared_service is None else (start(suite.shared_service, stack),)
        teams = {c.name: self._start_team(c, stack, shared) for c in suite.contenders}
        if shared:
            first, *others = specs.values()
            shared[0].begin({**first, "more": [[spec["request"], spec["response"]] for spec in others]})
        else:
            for name, team in teams.items():
                for service in team.services:
                    service.begin(specs[name])
        for name, team in teams.items():
            for client in team.clients:
                client.begin(specs[name])
        warm_up = {"level": 16, "seconds": self._settings.warm_up, "ramp": self._settings.ramp}
        for team in teams.values():
            self._ask(team.clients, warm_up)
        return teams

    def _start_team(self, contender: Contender, stack: ExitStack, shared: tuple[Child, ...]) -> Team:
        product = self._products.of(contender)
        services = shared
        if contender.service is not None:
            services = tuple(start(contender.service, stack, product) for _ in range(contender.services))
        return Team(tuple(start(contender.client, stack, product) for _ in range(contender.clients)), services)

    def _measure(self, team: Team, level: int, suite: Suite, contender: Contender) -> dict[str, Any]:
        settings = self._settings
        watched = {"service": [service.pid for service in team.services]}
        if (server := self._server(contender)) is not None:
            watched["broker"] = [server.pid]
        command = {
            "level": level,
            "seconds": settings.seconds * suite.stretch,
            "ramp": settings.ramp * suite.ramp_stretch,
            "mode": suite.mode,
            "beside": suite.beside,
            "watched": watched,
        }
        before = _request_reports(team)
        figures = merge_answers(self._ask(team.clients, command), has_cpu=not suite.beside)
        figures |= merge_reports(before, _request_reports(team))
        _settle(team)
        return figures

    def _ask(self, clients: Sequence[Child], command: dict[str, Any]) -> list[dict[str, Any]]:
        """Let all clients measure at once."""
        # Longer than the measurement: its last calls may time out, on a busy machine.
        patience = command["ramp"] + command["seconds"] + self._settings.timeout + 60.0
        for client in clients:
            client.send(command)
        return [client.wait_for_answer(patience) for client in clients]

    def _spec(self, suite: Suite | None = None, contender: Contender | None = None) -> dict[str, Any]:
        """Return the spec of client and service: the broker, and topics of their own."""
        self._topics += 1
        topic = f"bench-{self._run}-{self._topics}"
        is_persistent = contender is not None and contender.persistent
        spec = {
            "url": self._endpoint.service_url,
            "token": self._endpoint.token,
            "topic": topic,
            "request": f"persistent://tg/flow/{topic}" if is_persistent else f"non-persistent://tg/request/{topic}",
            "response": (
                f"persistent://tg/flow/{topic}-response" if is_persistent else f"non-persistent://tg/response/{topic}"
            ),
            "timeout": self._settings.timeout,
        }
        if suite is not None:
            spec |= {
                "answer": suite.answer,
                "large_answer": suite.large_answer,
                "drop": suite.drop,
                "is_counting": suite.is_counting,
            }
        if contender is not None:
            spec |= {"instances": contender.instances, "system": contender.system}
            if contender.system in self._servers:
                spec["url"] = self._servers[contender.system].url
            if contender.system:
                (spec["port"],) = find_free_ports(1)
        return spec

    def _server(self, contender: Contender) -> HasPid | None:
        """Return the process whose processor time is that of the broker; a system without one has none."""
        return self._servers.get(contender.system) if contender.system else self._endpoint.broker

    def _report(self, one: Measurement, suite: Suite) -> None:
        p50 = "no reply" if one.p50_ms is None else f"p50 {number(one.p50_ms)} ms"
        lost = f", {one.lost:,} lost" if one.lost else ""
        repeated = f", {one.repeated:,} executed again" if one.repeated else ""
        self._progress(
            f"[{len(self._measurements)}/{self._total}] round {one.round} · {one.suite}/{one.contender} · "
            f"{one.level:,} {LEVEL_NAMES[suite.mode]}: {number(one.calls_per_second)} calls/s, {p50}{lost}{repeated}"
        )


def _request_reports(team: Team) -> list[dict[str, int]]:
    return [service.ask({}, REPORT_S) for service in team.services]


def _settle(team: Team) -> None:
    """Wait until the services are idle: the requests of lost calls would slow down the next contender."""
    pids = [service.pid for service in team.services]
    ends = time.monotonic() + SETTLE_S
    used = read_processor_time(pids)
    while used is not None and time.monotonic() < ends:
        time.sleep(SETTLE_STEP_S)
        before, used = used, read_processor_time(pids)
        if used is None or used - before < IDLE * SETTLE_STEP_S:
            return


def rounds_of(settings: Settings, rounds: int | None, seconds: float | None) -> Settings:
    """Return ``settings`` with the values of the command line."""
    if seconds is not None:
        settings = settings.lasting(seconds)
    return settings if rounds is None else replace(settings, rounds=rounds)
