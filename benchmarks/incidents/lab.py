"""Means of a scenario: its own brokers, worker processes and progress."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar

from benchmarks.harness.processes import BenchmarkError, Child, start
from benchmarks.incidents.figures import Figure
from benchmarks.incidents.progress import Progress
from dispatch.devtools.localbroker import (
    Admin,
    LocalBroker,
    LocalBrokerError,
    LocalBrokerUnavailableError,
    create_namespaces,
)
from tests.helpers.secured_broker import SecuredBroker

READY_S = 300.0
"""Seconds that a broker may take to start: 7 on an idle machine, minutes on a busy one."""
ROUND_TRIP_S = 120.0
"""Seconds from a broker's start until a message goes through it, at most."""
REACH_S = 30.0
"""Seconds until the first call of a healthy service succeeds."""


class Brokers:
    """One plain broker and one with authorization, started when first needed. A context manager: leaving it stops both.

    Both have free ports and a temporary data folder of their own.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stack = contextlib.ExitStack()
        self._made: dict[bool, LocalBroker] = {}

    def get_secured(self) -> SecuredBroker:
        """The broker with authorization, running; see :meth:`get`."""
        broker = self.get(security=True)
        assert isinstance(broker, SecuredBroker)
        return broker

    def get(self, *, security: bool = False) -> LocalBroker:
        """The broker, running.

        Raises:
            LocalBrokerError: it does not start.
        """
        broker = self._made.get(security)
        if broker is None:
            self._progress.step(f"starting a broker{' with authorization' if security else ''}", 10)
            start = SecuredBroker.start_secured if security else LocalBroker.start
            broker = self._stack.enter_context(start(ready_timeout=READY_S))
            self._made[security] = broker
            create_namespaces(broker.admin())
            wait_for_round_trip(broker)
        elif not broker.is_alive():
            restart(broker)
        return broker

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def restart(broker: LocalBroker) -> float:
    """Start a broker that was killed, and wait until a message goes through it.

    Returns:
        The moment it was back, on the monotonic clock.
    """
    broker.restart()
    wait_for_round_trip(broker)
    return time.monotonic()


def wait_for_round_trip(broker: LocalBroker) -> None:
    """Wait until messages go through the broker: the first lookup in a namespace can take seconds after a start.

    Raises:
        LocalBrokerError: none did in time.
    """
    end = time.monotonic() + ROUND_TRIP_S
    for namespace in ("tg/request", "tg/response"):
        while not _round_trip(broker, f"non-persistent://{namespace}/{unique('round-trip')}"):
            if time.monotonic() > end:
                raise LocalBrokerError(f"no message went through the broker within {ROUND_TRIP_S:g} s of its start")


def _round_trip(broker: LocalBroker, topic: str) -> bool:
    token = broker.super_user_token
    options = {} if token is None else {"authentication": pulsar.AuthenticationToken(token)}
    # Its own console logger would write to stdout, where the table goes.
    silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(broker.service_url, operation_timeout_seconds=5, logger=silent, **options)
    try:
        consumer = client.subscribe(topic, "incidents")
        client.create_producer(topic, send_timeout_millis=5_000).send(b"")
        consumer.receive(timeout_millis=5_000)
    except pulsar.PulsarException:
        return False
    finally:
        client.close()
    return True


@dataclass(frozen=True)
class Lab:
    """The means of one run of one scenario.

    Attributes:
        product: the checkout whose ``dispatch`` is measured.
        short: a quick pass.
        failures: takes a line for each part that could not be measured.
    """

    product: Path
    short: bool
    progress: Progress
    brokers: Brokers
    failures: list[str] = field(default_factory=list)

    def attempt(self, what: str, part: Callable[[], list[Figure]]) -> list[Figure]:
        """The figures of one part of a scenario. A part that fails is tried once more; then it is a failure without
        figures, and the scenario goes on."""
        for last in (False, True):
            try:
                return part()
            except LocalBrokerUnavailableError:
                raise
            except (BenchmarkError, LocalBrokerError, OSError) as error:
                self.progress.line(f"{what} failed{'' if last else ', once more'}: {error}")
                if last:
                    self.failures.append(f"{what} failed: {str(error).strip().splitlines()[-1]}")
        return []

    def start(self, role: str, spec: dict[str, Any], stack: contextlib.ExitStack) -> Child:
        """A worker with the measured ``dispatch``; it ends with ``stack``."""
        return start_role(role, self.product, spec, stack)


def start_role(role: str, product: Path, spec: dict[str, Any], stack: contextlib.ExitStack) -> Child:
    """One of :mod:`benchmarks.incidents.roles` with the ``dispatch`` of a checkout, ready for commands.

    Raises:
        BenchmarkError: it was not ready in time, or ended.
    """
    worker = start(role, stack, product, package="benchmarks.incidents.roles", may_fail=True)
    worker.begin(spec)
    return worker


def unique(what: str) -> str:
    """A name that no other topic of the run has."""
    return f"{what}-{secrets.token_hex(4)}"


def queues(topic: str) -> dict[str, str]:
    """The request topic and the response topic of a service, for a worker's spec."""
    return {"request": f"non-persistent://tg/request/{topic}", "response": f"non-persistent://tg/response/{topic}"}


def grant(broker: SecuredBroker, namespace: str, role: str, *actions: str) -> None:
    """``pulsar-admin namespaces grant-permission NAMESPACE --role ROLE --actions ACTIONS``."""
    request = urllib.request.Request(
        f"{broker.web_url}/admin/v2/namespaces/{namespace}/permissions/{role}",
        method="POST",
        data=json.dumps(actions).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {broker.token()}"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10):
        pass


def topics(admin: Admin, namespace: str, *names: str) -> list[str]:
    """Topics of the namespace that contain one of ``names``."""
    return [topic for topic in admin.topics(namespace) if any(name in topic for name in names)]
