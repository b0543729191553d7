"""Figures of a measurement from the answers of its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any


def merge_answers(answers: Sequence[dict[str, Any]], *, has_cpu: bool = True) -> dict[str, Any]:
    """Return the figures of the calling processes that were measured together.

    Args:
        answers: of :meth:`Meter.close <benchmarks.workers.meter.Meter.close>`, one of each process.
        has_cpu: processor time can be divided by the measured calls: there are no other ones beside them.
    """
    counted = sum(answer["cpu_counted"] for answer in answers)
    errors: Counter[str] = Counter()
    for answer in answers:
        errors.update(answer["errors"])

    def shared_time(role: str) -> float | None:
        # Each process reads the whole time of the shared ones, in nearly the same interval.
        known = [used for answer in answers if (used := answer["cpu_s"].get(role)) is not None]
        return sum(known) / len(known) if known else None

    def cost(used: float | None) -> float | None:
        return used / counted * 1e6 if used is not None and counted and has_cpu else None

    seconds = max(answer["seconds"] for answer in answers)
    cpu_seconds = max(answer["cpu_seconds"] for answer in answers)
    clients = sum(answer["cpu_s"]["client"] for answer in answers)
    service, broker, machine = map(shared_time, ("service", "broker", "machine"))
    others = None
    # A client that stalls marks beginning and end at once: no interval to divide by.
    if machine is not None and service is not None and cpu_seconds > 0.5 * seconds:
        others = max(machine - clients - service - (broker or 0.0), 0.0) / cpu_seconds

    return {
        **{name: _largest(answer[name] for answer in answers) for name in ("p50_ms", "p99_ms", "p999_ms")},
        "calls_per_second": sum(answer["counted"] / answer["seconds"] for answer in answers),
        "cpu_us_per_call": cost(clients),
        "service_cpu_us_per_call": cost(service),
        "broker_cpu_us_per_call": cost(broker),
        "other_processors": others,
        "seconds": seconds,
        **{name: sum(answer[name] for answer in answers) for name in ("calls", "answered", "lost")},
        "errors": dict(errors),
    }


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def merge_reports(before: Iterable[dict[str, int]], after: Iterable[dict[str, int]]) -> dict[str, Any]:
    """Return the figures that the services counted between two reports; None: not counted.

    Args:
        before: a report of each service.
        after: the later reports. ``repeated``: executions of calls that had been executed before; ``packets`` and
            ``retransmissions``: of sessions.
    """
    counts: Counter[str] = Counter()
    names: set[str] = set()
    for report in after:
        counts.update(report)
        names.update(report)
    for report in before:
        counts.subtract(report)
    return {
        "repeated": counts["repeated"] if "repeated" in names else None,
        "retransmitted": counts["retransmissions"] / counts["packets"] if counts["packets"] else None,
    }
