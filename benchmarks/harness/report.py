"""Tables of the results as plain aligned text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.harness.plan import LEVEL_NAMES, Suite
from benchmarks.harness.results import Results, Summary
from benchmarks.harness.statistics import Spread
from benchmarks.suites.target_ratios import Found

HEADER = ("p50 ms", "p99 ms", "p99.9 ms", "calls/s", "CPU µs/call", "lost")
CPU = ("cpu_us_per_call", "service_cpu_us_per_call", "broker_cpu_us_per_call")
"""Of client, service and broker."""


def number(value: float) -> str:
    """Format with three significant digits and thousands separators."""
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    if magnitude >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}"


def shown(value: Spread | None) -> str:
    """Format the median, with least and greatest where they differ from it."""
    if value is None:
        return "-"
    if value.min == value.max:
        return number(value.median)
    return f"{number(value.median)} ({number(value.min)} … {number(value.max)})"


def aligned(rows: Sequence[Sequence[str]], left: Iterable[int] = (0,)) -> str:
    """Align rows in columns, to the right except columns ``left``, without trailing blanks."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    to_the_left = set(left)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index in to_the_left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def suite_table(suite: Suite, results: Results) -> str:
    """Return the table of one suite."""
    rows: list[tuple[str, ...]] = [("", LEVEL_NAMES[suite.mode], *HEADER)]
    for contender in suite.contenders:
        for index, level in enumerate(suite.levels):
            summary = results.summary(suite.name, contender.name, level)
            figures = summary.figures
            rows.append(
                (
                    "" if index else contender.label,
                    f"{level:,}",
                    shown(figures["p50_ms"]),
                    shown(figures["p99_ms"]),
                    shown(figures["p999_ms"]),
                    shown(figures["calls_per_second"]),
                    _processor_time(summary),
                    _losses(summary),
                )
            )
    return f"{suite.title}\n{aligned(rows)}"


def _processor_time(summary: Summary) -> str:
    """Return the medians of client + service + broker."""
    parts = [summary.figures[name] for name in CPU]
    return " + ".join("-" if part is None else number(part.median) for part in parts)


def _losses(summary: Summary) -> str:
    lost = f"{summary.lost:,} of {summary.calls:,}" if summary.lost else "0"
    if summary.repeated is not None:
        lost += f", {summary.repeated:,} executed again"
    retransmitted = summary.figures["retransmitted"]
    return lost if retransmitted is None else f"{lost}, {100 * retransmitted.median:.2g} % retransmitted"


def ratio_table(title: str, found: Iterable[Found]) -> str:
    """Return the table of ratios and their targets."""
    rows = []
    for one in found:
        sign = "≤" if one.ratio.bound == "at most" else "≥"
        target = "" if one.ratio.limit is None else f"{sign} {one.ratio.limit:g}"
        if one.spread is None:
            verdict = "not measured"
        elif one.met is None:
            verdict = ""
        else:
            verdict = "ok" if one.met else "MISSED"
        rows.append((one.ratio.text, shown(one.spread), target, verdict))
    return f"{title}\n{aligned(rows, left=(0, 3))}" if rows else ""


def setting_lines(results: Results) -> str:
    """Return machine, versions and settings of the run."""
    setting, settings = results.setting, results.settings
    machine = setting.machine
    others = results.other_processors
    versions = ", ".join(f"{name} {version}" for name, version in setting.versions.items())
    return (
        f"{setting.date} · {machine['processors']} processors ({machine['kind']}), {machine['memory_gib']} GiB, "
        f"{machine['system']}, load before {machine['load_before']} · Pulsar {setting.broker['version']}\n{versions}\n"
        f"{settings.rounds} rotated round(s), {settings.seconds:g} s a measurement after {settings.ramp:g} s of the same "
        f"load; median (least … greatest) over the rounds; lost: no reply within {settings.timeout:g} s; "
        "CPU of client + service + broker\n"
        f"Processors busy with other programs during the measurements: {shown(others)}"
    )


def report(results: Results, targets: Sequence[Found], record: Sequence[Found]) -> str:
    """Return the whole report."""
    parts = [setting_lines(results)]
    parts += [suite_table(suite, results) for suite in results.suites]
    parts.append(ratio_table("For the record (ratios formed within a round)", [f for f in record if f.spread]))
    parts.append(
        ratio_table("Targets (ratios formed within a round; the median counts, of lost calls the greatest)", targets)
    )
    return "\n\n".join(part for part in parts if part)
