"""Builders of PromQL expressions with the dashboards' variables."""

from __future__ import annotations

from dispatch.telemetry.observers import REFUSED
from dispatch.telemetry.rules import BAD_CALLS, COUNTED_CALLS, KNOWN_TOOLS

SELECTED_DISPATCHERS = 'job=~"$job",instance=~"$dispatcher"'
"""Matches the selected dispatchers."""
SELECTED_SERVICES = f'{SELECTED_DISPATCHERS},service=~"$service"'
SELECTED_TOOLS = f'{SELECTED_SERVICES},tool=~"$tool"'
"""Matches the selected tools. Grafana escapes the values of variables with multiple selection."""
SELECTED_TOOL = f'{SELECTED_SERVICES},tool="$tool"'
"""Matches the one selected tool."""
FLEET_LIMITS = f'{SELECTED_DISPATCHERS},tool="$tool"'
"""Matches limits of the selected tool that a fleet shares: they belong to the tool, not to a service."""
SERVICE_PROCESSES = 'service=~"$service"'
"""Matches series that processes of tool services export; these processes are not among the dispatchers."""
INSTANCE_LABEL = "exported_instance"
"""Label of a tool service's instance. Dispatch exports it as ``instance``; Prometheus renames it, because its own label
``instance`` is the scraped process."""

FAILED = "tool_error|timeout|transport"
"""Outcomes that count as failed; rejections have panels of their own."""

REFUSED_CALLS = f'outcome=~"{REFUSED}|invalid_arguments"'
"""Matches calls that were refused because of their caller alone."""

INTERVAL = "$__rate_interval"


def series(metric: str, where: str, *matchers: str) -> str:
    """Return a selector of ``metric``."""
    return f"{metric}{{{','.join((where, *matchers))}}}"


def sum_by(expr: str, *by: str) -> str:
    """Return the sum of ``expr`` by the labels ``by``."""
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def rate(metric: str, where: str, *matchers: str, window: str = INTERVAL) -> str:
    """Return the rate per second."""
    return f"rate({series(metric, where, *matchers)}[{window}])"


def increase_from_zero(metric: str, where: str, *matchers: str) -> str:
    """Return the increase in an interval, including the first value of a new series, which ``increase`` alone ignores."""
    counted = series(metric, where, *matchers)
    return f"(({counted} unless {counted} offset {INTERVAL}) or increase({counted}[{INTERVAL}]))"


def ratio(part: str, whole: str) -> str:
    """Return ``part / whole``; no value where ``whole`` is 0."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, metric: str, where: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({q:g}, {sum_by(rate(f'{metric}_bucket', where, *matchers), 'le', *by)})"


def burn_rate(window: str, *by: str) -> str:
    """Return the burn rate of the error budget over ``window``: at 1 the budget is spent exactly at the end of the
    objective's period."""
    return f"{bad_call_ratio(window, *by)} / (1 - $objective)"


def bad_call_ratio(window: str, *by: str) -> str:
    """Return the share of bad calls, as the alerts define it: calls without a reply. Calls that were refused because of
    their caller alone are excluded."""
    bad, counted = (
        sum_by(rate("dispatch_calls_total", SELECTED_TOOLS, KNOWN_TOOLS, each, window=window), *by)
        for each in (BAD_CALLS, COUNTED_CALLS)
    )
    return ratio(bad, counted)
