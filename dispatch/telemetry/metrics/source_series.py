"""The series that the reloads of a catalogue's sources record, one set for each registry."""

from __future__ import annotations

import logging
import threading

from prometheus_client import CollectorRegistry, Gauge

from dispatch.telemetry.metrics.lock_free import LockFreeCounter
from dispatch.telemetry.names import OTHER

logger = logging.getLogger("dispatch.telemetry")

MAX_SOURCES = 100
"""Sources with series of their own. Beyond them a source replaces one whose dispatchers are closed; if there is none, it
shares ``_OTHER``. A source is a folder or a connection: a deployment has a few."""


class SourceSeries:
    """Counts reloads by source. The series of a source are removed with it, when its last dispatcher has removed it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reloads = LockFreeCounter(
            "dispatch_catalog_reloads",
            "Activations of another catalogue or policy, by the source that changed: ok, or failed (a reload was rejected, "
            "and the previous catalogue stays in force).",
            ("source", "result"),
            registry=registry,
        )
        self._last_reload_successful = Gauge(
            "dispatch_catalog_last_reload_successful",
            "1: the last reload of the catalogue or policy succeeded; 0: it failed, and the previous one stays in force.",
            ("source",),
            registry=registry,
        )
        self._holders: dict[str, int] = {}
        self._lock = threading.Lock()

    def acquire(self, source: str) -> str:
        """Create the series of ``source`` at 0, count a holder of them, and return their label: ``_OTHER`` beyond
        :data:`MAX_SOURCES`."""
        with self._lock:
            label = source
            if label not in self._holders and len(self._holders) >= MAX_SOURCES:
                idle = next((each for each, holders in self._holders.items() if not holders and each != OTHER), None)
                if idle is not None:
                    self._remove(idle)
                else:
                    if OTHER not in self._holders:
                        logger.warning("more than %d sources: further ones share the series %s", MAX_SOURCES, OTHER)
                    label = OTHER
            self._holders[label] = self._holders.get(label, 0) + 1
            for result in ("ok", "failed"):
                self._reloads.labels(label, result)
            return label

    def release(self, label: str, *, is_removed: bool) -> None:
        """Release one holder of the series.

        Args:
            label: as returned by :meth:`acquire`.
            is_removed: the source was removed: its series are removed with their last holder. Otherwise its dispatcher was
                closed, and the series stay, because counters must not decrease when it is opened again.
        """
        with self._lock:
            self._holders[label] = max(0, self._holders.get(label, 0) - 1)
            if not self._holders[label] and is_removed and label != OTHER:
                self._remove(label)

    def _remove(self, label: str) -> None:
        del self._holders[label]
        self._reloads.remove_by_labels({"source": label})
        self._last_reload_successful.remove(label)

    def record_reload(self, label: str, *, is_successful: bool) -> None:
        """Record an activation, or a reload that was rejected."""
        self._reloads.labels(label, "ok" if is_successful else "failed").inc()
        self._last_reload_successful.labels(label).set(is_successful)

    def labels(self) -> frozenset[str]:
        """Return the labels that have series."""
        with self._lock:
            return frozenset(self._holders)
