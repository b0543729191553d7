"""Every metric that dispatch exports, with its labels and help text, read from the registered collectors."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dispatch.telemetry.gauges import DispatcherCollector, ServerCollector, SessionCollector
from docs.generators.docstrings import markdown, table

SERVICE_PREFIX = "dispatch_service_"
"""Metrics of the process of a tool service."""
SESSION_PREFIX = "dispatch_session"
"""Metrics of sessions, in both."""


def families() -> list[tuple[Metric, tuple[str, ...]]]:
    """Return each metric family of a dispatcher, of a tool service and of sessions, and its label names."""
    registry = CollectorRegistry()
    DispatcherCollector.of(registry)
    ServerCollector.of(registry)
    SessionCollector.of(registry)
    found: list[tuple[Metric, tuple[str, ...]]] = []
    for collector in registry._collector_to_names:  # no public way leads from a family to the labels of its collector
        found.extend((family, _labels(collector, family)) for family in collector.collect())
    return sorted(found, key=lambda each: each[0].name)


def exported_name(family: Metric) -> str:
    """Return the name that queries use: counters end in ``_total``."""
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def metrics() -> str:
    """Return a table for dispatchers, one for tool services and one for the sessions of both."""
    sections = []
    for title, prefix in (
        ("## Of a dispatcher", ""),
        ("## Of a tool service", SERVICE_PREFIX),
        ("## Of sessions", SESSION_PREFIX),
    ):
        rows = [
            (f"`{exported_name(family)}`", family.type, ", ".join(f"`{name}`" for name in labels), _sentence(family))
            for family, labels in families()
            if _prefix_of(family) == prefix
        ]
        sections.append(f"{title}\n\n{table(('Metric', 'Type', 'Labels', 'Meaning'), rows)}")
    return "\n".join(sections)


def _prefix_of(family: Metric) -> str:
    return next((each for each in (SERVICE_PREFIX, SESSION_PREFIX) if family.name.startswith(each)), "")


def _labels(collector: Collector, family: Metric) -> tuple[str, ...]:
    for holder in (family, collector):
        for attribute in ("_label_names", "_labelnames"):
            if attribute in vars(holder):
                return tuple(vars(holder)[attribute])
    raise AttributeError(f"the labels of {family.name} are unknown")


def _sentence(family: Metric) -> str:
    return markdown(family.documentation)
