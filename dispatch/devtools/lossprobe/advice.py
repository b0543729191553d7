"""Advice for people, derived from the measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dispatch.devtools.lossprobe.plan import format_size
from dispatch.devtools.lossprobe.results import Measurement, RunResult, count_lost_calls, format_share


def give_advice(measurements: Sequence[Measurement], planned: int | None = None) -> list[str]:
    """Return sentences for people, the most important first.

    Args:
        measurements: the measurements.
        planned: number of planned measurements if some are missing; None: the measurement is complete.
    """
    plain_lost, plain_calls = count_lost_calls(measurement.plain for measurement in measurements)
    session_lost, session_calls = count_lost_calls(measurement.session for measurement in measurements)
    if not plain_calls + session_calls:
        return ["Nothing was measured."]
    lines = []
    if plain_lost:
        lines += _advise_on_plain_loss(measurements, session_lost, session_calls)
    if session_lost:
        lines += _advise_on_session_loss(measurements, session_lost, session_calls)
    if not plain_lost and not session_lost:
        lines.append(_describe_no_loss(plain_calls, session_calls, len(measurements), planned))
    lines += _describe_failures(measurements)
    lines += _compare_throughput(measurements)
    return lines


def find_safe_in_flight(measurements: Sequence[Measurement], size: int) -> int | None:
    """Return the largest number in flight up to which a plain client lost nothing at ``size``; None: it always lost some."""
    safe = None
    for measurement in sorted(
        (c for c in measurements if c.size == size and c.plain is not None), key=lambda c: c.in_flight
    ):
        if measurement.plain is not None and measurement.plain.lost:
            break
        safe = measurement.in_flight
    return safe


def describe_load(measurement: Measurement) -> str:
    """Describe a load: ``100 kB and 64 in flight``."""
    return f"{format_size(measurement.size)} and {measurement.in_flight:,} in flight"


def _format_loss(run: RunResult) -> str:
    return f"{format_share(run.lost, run.calls)}" if run.lost else "none"


def _advise_on_plain_loss(measurements: Sequence[Measurement], session_lost: int, session_calls: int) -> list[str]:
    losing = [
        (measurement, measurement.plain)
        for measurement in measurements
        if measurement.plain is not None and measurement.plain.lost
    ]
    worst, run = max(losing, key=lambda each: (each[1].share, each[1].lost))
    line = (
        f"At {describe_load(worst)} your broker dropped {format_share(run.lost, run.calls)} of a plain client's replies"
    )
    line += f" ({run.lost:,} of {run.calls:,})"
    if worst.session is not None:
        line += f" and {_format_loss(worst.session)} with sessions ({worst.session.lost:,} of {worst.session.calls:,})"
    first = min(
        (measurement for measurement, _ in losing), key=lambda measurement: (measurement.size, measurement.in_flight)
    )
    line += "." if first is worst else f"; the smallest replies it dropped were of {describe_load(first)}."
    lines = [f"{line} Each lost reply costs a plain client its whole timeout."]
    if session_calls and not session_lost:
        lines.append(
            "Use ToolServer for the service (dispatch serve MODULE:CLASS) and dispatch.connect() for the agent: with "
            f"sessions none of {session_calls:,} calls was lost."
        )
    elif session_calls:
        lines.append(
            "ToolServer for the service (dispatch serve MODULE:CLASS) with dispatch.connect() for the agent lost "
            f"{format_share(session_lost, session_calls)} of {session_calls:,} calls over all measurements."
        )
    lines.append(
        "If a service or its clients cannot change, use persistent response topics, "
        "response_queue=persistent://TENANT/NAMESPACE/TOPIC on both sides. They drop nothing; each reply costs a write to "
        "the broker's disk (about 10 ms)."
    )
    lines.append(_describe_safe_limits(measurements, sorted({measurement.size for measurement, _ in losing})))
    return lines


def _describe_safe_limits(measurements: Sequence[Measurement], sizes: Sequence[int]) -> str:
    safe = {size: find_safe_in_flight(measurements, size) for size in sizes}
    limits = ", ".join(f"{n:,} at {format_size(size)}" for size, n in safe.items() if n is not None)
    never = ", ".join(format_size(size) for size, n in safe.items() if n is None)
    line = (
        f"Until then, limit a plain client's calls in flight to the numbers without loss: {limits}." if limits else ""
    )
    if never:
        line += f"{' ' if line else ''}At {never} it lost some at every measured number in flight."
    return line


def _advise_on_session_loss(measurements: Sequence[Measurement], lost: int, calls: int) -> list[str]:
    losing = [
        (measurement, measurement.session)
        for measurement in measurements
        if measurement.session is not None and measurement.session.lost
    ]
    worst, run = max(losing, key=lambda each: (each[1].share, each[1].lost))
    return [
        f"With sessions, {lost:,} of {calls:,} calls were lost ({format_share(lost, calls)}), most at "
        f"{describe_load(worst)} ({run.lost:,} of {run.calls:,}). This is a defect. Measure again on an idle machine; if "
        "the loss persists, use persistent topics (request-queue and response-queue: persistent://TENANT/NAMESPACE/TOPIC) "
        "and report the output of 'dispatch doctor --loss --json'."
    ]


def _describe_no_loss(plain_calls: int, session_calls: int, measurements: int, planned: int | None) -> str:
    parts = []
    if plain_calls:
        parts.append(f"none of a plain client's {plain_calls:,} call{'' if plain_calls == 1 else 's'}")
    if session_calls:
        parts.append(f"none of {session_calls:,} with sessions")
    if planned is not None:
        return (
            f"This allows no conclusion: {measurements} of {planned} lines were measured, perhaps partially, without loss "
            f"({' and '.join(parts)}). Measure the others too, or select your own load with --sizes and --in-flight."
        )
    return (
        f"Nothing was lost: {' and '.join(parts)}, at any measured size and number in flight. Loss grows with load: "
        "measure again while your broker and network are under their highest load."
    )


def _describe_failures(measurements: Sequence[Measurement]) -> list[str]:
    lines = []
    for client, runs in (
        ("a plain client's", [(measurement, measurement.plain) for measurement in measurements]),
        ("dispatch's", [(measurement, measurement.session) for measurement in measurements]),
    ):
        failed: Counter[str] = Counter()
        places: dict[str, Measurement] = {}
        for measurement, run in runs:
            for type, count in run.errors.items() if run is not None else ():
                failed[type] += count
                places.setdefault(type, measurement)
        lines += [
            f"{count:,} of {client} calls failed with {type}, first at {describe_load(places[type])}; these are not lost."
            + (" The broker accepts smaller messages only (maxMessageSize)." if type == "MessageTooBig" else "")
            for type, count in failed.most_common()
        ]
    return lines


def _compare_throughput(measurements: Sequence[Measurement]) -> list[str]:
    ratios = [
        (measurement.session.rate / measurement.plain.rate, measurement)
        for measurement in measurements
        if measurement.plain is not None
        and measurement.session is not None
        and measurement.plain.rate > 0
        and measurement.session.rate > 0
    ]
    if not ratios:
        return []
    least, most = min(ratios, key=lambda each: each[0]), max(ratios, key=lambda each: each[0])
    if least[1] is most[1]:
        span = f"{_format_ratio(least[0])} times"
    else:
        span = (
            f"{_format_ratio(least[0])} (at {describe_load(least[1])}) to "
            f"{_format_ratio(most[0])} times (at {describe_load(most[1])})"
        )
    return [
        f"With sessions, throughput was {span} that of a plain client. The probe's plain client does less than a real one: "
        "its messages are prebuilt and not decoded, and a lost call frees its place after half a second."
    ]


def _format_ratio(ratio: float) -> str:
    return f"{ratio:,.1f}" if ratio >= 1 else f"{ratio:.2g}"
