"""PromQL, and the variables that it is about."""

from __future__ import annotations

from dispatch.telemetry.alerting.promql import BAD_CALLS, COUNTED_CALLS, KNOWN_TOOLS

HERE = 'job=~"$job",instance=~"$dispatcher"'
"""The dispatchers that were picked."""
TOOLS = f'{HERE},tool=~"$tool"'
"""Any number of tools. Grafana escapes what is picked where more than one can be."""
TOOL = f'{HERE},tool="$tool"'
"""One tool."""
SERVICE = f'{HERE},service=~"$service"'
AT_SERVICE = 'service=~"$service"'
"""What the processes of tool services say themselves; they are not among the dispatchers."""
INSTANCE = "exported_instance"
"""A tool service's instance. The metrics call it ``instance``; but every series has Prometheus' own ``instance``, the
process that it was scraped from, and where both meet Prometheus renames what was scraped."""

FAILED = "tool_error|timeout|transport"
"""Outcomes of calls that went wrong on the way or at the tool; refusals are shown by who refused."""

INTERVAL = "$__rate_interval"


def series(metric: str, where: str, *matchers: str) -> str:
    """The series of ``metric`` there."""
    return f"{metric}{{{','.join((where, *matchers))}}}"


def total(expr: str, *by: str) -> str:
    """The sum over everything but ``by``."""
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def rate(metric: str, where: str, *matchers: str, window: str = INTERVAL) -> str:
    """How often a second."""
    return f"rate({series(metric, where, *matchers)}[{window}])"


def happened(metric: str, where: str, *matchers: str) -> str:
    """How often in an interval, of what is counted from its first time on: a series that is new counts from nothing, which
    ``increase`` alone does not see."""
    counted = series(metric, where, *matchers)
    return f"(({counted} unless {counted} offset {INTERVAL}) or increase({counted}[{INTERVAL}]))"


def share(part: str, whole: str) -> str:
    """What ``part`` is of ``whole``, from 0 to 1; nothing where ``whole`` is nothing."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, metric: str, where: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """A quantile out of the buckets of a histogram."""
    return f"histogram_quantile({q:g}, {total(rate(f'{metric}_bucket', where, *matchers), 'le', *by)})"


def burn(window: str, *by: str) -> str:
    """How many times faster than allowed the error budget is spent, over ``window``: 1 spends it all by the end of the
    period that the objective is about."""
    return f"{bad_share(window, *by)} / (1 - $objective)"


def bad_share(window: str, *by: str) -> str:
    """The share of calls that a promise counts as bad, as alerts have it: those without an answer. Names that models
    invented are no tools."""
    bad = total(rate("dispatch_calls_total", TOOLS, KNOWN_TOOLS, BAD_CALLS, window=window), *by)
    return share(bad, total(rate("dispatch_calls_total", TOOLS, KNOWN_TOOLS, COUNTED_CALLS, window=window), *by))
