"""Broker restarts with a dispatcher and a service connected: file descriptors and threads of both."""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.incidents.figures import RIGHT, Figure
from benchmarks.incidents.lab import REACH_S, Lab, queues, restart, unique
from benchmarks.incidents.scenario import Scenario
from benchmarks.incidents.scenarios.connects import open_files, threads
from dispatch.devtools.localbroker import LocalBrokerError

SETTLE_S = 2.0
"""Seconds until a replaced connection is closed."""
BACK_S = 15.0
"""Seconds of calls after each restart: circuits that an outage opened may stay open for minutes."""


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    count = 1 if lab.short else 20
    broker = lab.brokers.get()
    with ExitStack() as stack:
        spec = {"url": broker.service_url, **queues(unique("restarts"))}
        service = lab.start("service", spec, stack)
        caller = lab.start("caller", {**spec, "timeout": 3}, stack)
        caller.ask({"do": "reach", "seconds": REACH_S}, REACH_S + 10)
        time.sleep(SETTLE_S)
        both = {"dispatcher": caller.pid, "service": service.pid}
        before = {name: (open_files(pid), threads(pid)) for name, pid in both.items()}
        made = again = 0
        while made < count:
            lab.progress.step(f"restarts: broker restart {made + 1} of {count}", 10)
            broker.kill()
            try:
                restart(broker)
            except LocalBrokerError as error:
                lab.failures.append(f"restart {made + 1} failed: {error}")
                break
            made += 1
            found = caller.ask({"do": "reach", "seconds": BACK_S}, BACK_S + 30)
            again += found["kind"] == RIGHT
            time.sleep(SETTLE_S)
        figures = [
            Figure("restarts", made, "", str(count)),
            Figure(f"of these, a call succeeded within {BACK_S:g} s", again, "", str(count)),
        ]
        for name, pid in both.items():
            for what, was, now in zip(
                ("file descriptors", "threads"), before[name], (open_files(pid), threads(pid)), strict=True
            ):
                figures += [
                    Figure(f"{name}: {what} before", was),
                    Figure(f"{name}: {what} after", now, wanted="as before"),
                    Figure(f"{name}: {what} for each restart", (now - was) / made if made else None, wanted="0"),
                ]
        return figures


SCENARIO = Scenario(
    "restarts",
    "the broker is killed and started again with a dispatcher and a service connected",
    run,
    seconds=300,
    short_seconds=30,
)
