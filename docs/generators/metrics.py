"""Every metric that dispatch exports, with its labels and help text, read from the registered collectors."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dispatch.telemetry.metrics.collector import DispatcherCollector
from dispatch.telemetry.metrics.service_metrics import ServerCollector
from docs.generators.docstrings import markdown, table

SERVICE_PREFIX = "dispatch_service_"
"""Metrics of the process of a tool service."""


def families() -> list[tuple[Metric, tuple[str, ...]]]:
    """Return each metric family of a dispatcher and of a tool service, and its label names."""
    registry = CollectorRegistry()
    DispatcherCollector.of(registry)
    ServerCollector.of(registry)
    found: list[tuple[Metric, tuple[str, ...]]] = []
    for collector in registry._collector_to_names:  # no public way leads from a family to the labels of its collector
        found.extend((family, _labels(collector, family)) for family in collector.collect())
    return sorted(found, key=lambda each: each[0].name)


def exported_name(family: Metric) -> str:
    """Return the name that queries use: counters end in ``_total``."""
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def metrics() -> str:
    """Return a table for dispatchers and one for tool services."""
    sections = []
    for title, is_service in (("## Of a dispatcher", False), ("## Of a tool service", True)):
        rows = [
            (f"`{exported_name(family)}`", family.type, ", ".join(f"`{name}`" for name in labels), _sentence(family))
            for family, labels in families()
            if family.name.startswith(SERVICE_PREFIX) == is_service
        ]
        sections.append(f"{title}\n\n{table(('Metric', 'Type', 'Labels', 'Meaning'), rows)}")
    return "\n".join(sections)


def _labels(collector: Collector, family: Metric) -> tuple[str, ...]:
    for holder in (family, collector):
        for attribute in ("_label_names", "_labelnames"):
            if attribute in vars(holder):
                return tuple(vars(holder)[attribute])
    raise AttributeError(f"the labels of {family.name} are unknown")


def _sentence(family: Metric) -> str:
    return markdown(family.documentation)
