"""Pieces of PromQL that the rules are made of."""

from __future__ import annotations

from dispatch.telemetry.alerting.slo import BAD, NEITHER

PER_PROCESS = ("instance", "pod", "node")
"""Labels that tell one process from another, as Prometheus attaches them: what is about a tool or a service is summed over
them, and keeps all others (job, namespace, cluster)."""
BAD_CALLS = f'outcome=~"{"|".join(BAD)}"'
COUNTED_CALLS = f'outcome!="{NEITHER}"'
REAL = 'tool!="_OTHER"'
"""Tools that there are: without the names that models invented."""


def without(*labels: str) -> str:
    """``without (...)`` those labels, and without what tells processes apart."""
    return f"without ({', '.join((*PER_PROCESS, *labels))})"


def series(metric: str, *matchers: str) -> str:
    """The series of ``metric`` with these matchers."""
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def rate(metric: str, window: str, *matchers: str, over: tuple[str, ...]) -> str:
    """How often a second, over all processes and the labels ``over``."""
    return f"sum {without(*over)} (rate({series(metric, *matchers)}[{window}]))"


def count(metric: str, window: str, *matchers: str, over: tuple[str, ...]) -> str:
    """How often within ``window``, likewise."""
    return f"sum {without(*over)} (increase({series(metric, *matchers)}[{window}]))"


def text(value: str) -> str:
    """``value`` as a string of PromQL."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
