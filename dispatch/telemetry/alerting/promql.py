"""Builders of PromQL expressions that the rules share."""

from __future__ import annotations

from dispatch.telemetry.alerting.slo import BAD_OUTCOMES, UNCOUNTED_OUTCOME

PER_PROCESS = ("instance", "pod", "node")
"""Labels by which Prometheus distinguishes processes. Rules about a tool or service sum over them and keep the other labels
(job, namespace, cluster)."""
BAD_CALLS = f'outcome=~"{"|".join(BAD_OUTCOMES)}"'
COUNTED_CALLS = f'outcome!="{UNCOUNTED_OUTCOME}"'
KNOWN_TOOLS = 'tool!="_OTHER"'
"""Matches tools of the catalogue: ``_OTHER`` counts calls of unknown names."""


def without(*labels: str) -> str:
    """Return a ``without (...)`` clause with ``labels`` and the labels of processes."""
    return f"without ({', '.join((*PER_PROCESS, *labels))})"


def series(metric: str, *matchers: str) -> str:
    """Return a selector of ``metric`` with these matchers."""
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def rate(metric: str, window: str, *matchers: str, over: tuple[str, ...]) -> str:
    """Return the rate per second, summed over processes and the labels ``over``."""
    return f"sum {without(*over)} (rate({series(metric, *matchers)}[{window}]))"


def increase(metric: str, window: str, *matchers: str, over: tuple[str, ...]) -> str:
    """Return the increase within ``window``, summed over processes and the labels ``over``."""
    return f"sum {without(*over)} (increase({series(metric, *matchers)}[{window}]))"


def quote(value: str) -> str:
    """Quote ``value`` as a PromQL string."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
