"""Many short-lived callers: what a service keeps of them, and how soon calls succeed after the broker was restarted."""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.incidents.figures import RIGHT, Figure, begun, calls_of, common_failures, first_right, share
from benchmarks.incidents.lab import REACH_S, Lab, queues, restart, topics, unique
from benchmarks.incidents.scenario import Scenario
from benchmarks.workers.proc import read_processor_time

CALLERS = 2_000
WORKERS = 4
DESCRIPTORS = 1_024
RATE = 20.0
IDLE_S = 120.0
"""Seconds after which the service must have closed what it opened for callers that ended."""
AFTER_S = 10.0


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    callers, idle_s = (40, 20.0) if lab.short else (CALLERS, IDLE_S)
    broker = lab.brokers.get()

    def reply_topics() -> int:
        return len(topics(broker.admin(), "tg/response", "dispatch-reply"))

    with ExitStack() as stack:
        before = reply_topics()
        spec = {"url": broker.service_url, **queues(unique("short-lived"))}
        service = lab.start("service", spec, stack)
        lab.progress.step(f"short-lived: {callers:,} callers connect, call once and close", callers * 0.1)
        workers = [
            lab.start("connects", {**spec, "what": "dispatchers", "descriptors": DESCRIPTORS}, stack)
            for _ in range(WORKERS)
        ]
        done = 0
        for _ in range(callers // (WORKERS * 10)):
            for worker in workers:
                worker.send({"times": 10})
            done += sum(worker.wait_for_answer(120)["done"] for worker in workers)
        opened = reply_topics() - before
        caller = lab.start("caller", {**spec, "timeout": 3}, stack)
        caller.ask({"do": "reach", "seconds": REACH_S}, REACH_S + 10)
        lab.progress.step("short-lived: the broker is killed and started again", 15)
        broker.kill()
        caller.ask({"do": "begin", "rate": RATE}, 10)
        back = restart(broker)
        time.sleep(AFTER_S)
        calls = calls_of(caller.ask({"do": "end"}, 60)["calls"])
        first = first_right(calls, back)
        watched = begun(calls, back if first is None else first)
        lab.progress.step("short-lived: the service closes what is idle", idle_s)
        time.sleep(idle_s)
        used = read_processor_time([service.pid]) or 0.0
        time.sleep(10)
        processor = (read_processor_time([service.pid]) or 0.0) - used
        left = reply_topics()
    return [
        Figure("callers that succeeded", done, "", str(callers)),
        Figure("reply topics right after them", opened),
        Figure("broker back to first success", None if first is None else first - back, "s", "≤ 1.7 s", 1.7),
        Figure("right from then on", share(watched, RIGHT), "%", "100 %"),
        Figure("failures from then on", common_failures(watched), "", "none"),
        Figure(f"reply topics {idle_s:g} s later", left, "", f"≤ 2 after {IDLE_S:g} s", None if lab.short else 2),
        Figure("processor time of the service at rest", processor / 10, "%", "≤ 0.5 %", 0.005),
    ]


SCENARIO = Scenario(
    "short-lived",
    f"{CALLERS:,} callers connect, call once and close; then the broker is killed and started again",
    run,
    seconds=420,
    short_seconds=90,
)
