"""The series that calls record for each version of a tool, one set for each registry: how a rollout goes."""

from __future__ import annotations

import threading
from typing import Final

from prometheus_client import CollectorRegistry

from dispatch.errors import Outcome
from dispatch.telemetry.metrics.lock_free import LockFreeCounter
from dispatch.telemetry.names import OTHER

MAX_VERSIONS: Final = 4
"""Versions of one tool with series of their own; later ones share ``_OTHER``. A rollout has two, and a slow migration of
callers few more."""

OUTCOME_CLASSES: Final = ("ok", "error", "other")
_ERRORS = frozenset({Outcome.TOOL_ERROR, Outcome.TIMEOUT, Outcome.TRANSPORT})


class VersionMeter:
    """Series of one version of a tool.

    Attributes:
        tool, version: labels of the series.
    """

    __slots__ = ("_by_outcome", "tool", "version")

    def __init__(self, calls: LockFreeCounter, tool: str, version: str) -> None:
        self.tool = tool
        self.version = version
        ok, error, other = (calls.labels(tool, version, each) for each in OUTCOME_CLASSES)
        self._by_outcome = {
            outcome: ok if outcome is Outcome.SUCCESS else error if outcome in _ERRORS else other for outcome in Outcome
        }

    def record_call(self, outcome: Outcome) -> None:
        """Count the end of a call."""
        self._by_outcome[outcome].value += 1


class VersionSeries:
    """Counts calls by version. The series of a version are removed with it, when its last dispatcher has removed it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = LockFreeCounter(
            "dispatch_version_calls",
            "Calls that have ended, by version of the tool: ok for successes; error for tool errors, timeouts and transport "
            "errors; other for rejected, throttled, invalid and cancelled calls.",
            ("tool", "version", "outcome_class"),
            registry=registry,
        )
        self._holders: dict[str, dict[str, int]] = {}
        self._lock = threading.Lock()

    def acquire(self, tool: str, version: str) -> VersionMeter:
        """Return the series of a version and count a holder of them; ``_OTHER`` beyond :data:`MAX_VERSIONS`.

        Args:
            tool: label of the tool's series.
            version: of the tool.
        """
        with self._lock:
            holders = self._holders.setdefault(tool, {})
            if version not in holders and (tool == OTHER or len(holders.keys() - {OTHER}) >= MAX_VERSIONS):
                version = OTHER
            holders[version] = holders.get(version, 0) + 1
            return VersionMeter(self._calls, tool, version)

    def release(self, meter: VersionMeter, *, is_removed: bool) -> None:
        """Release one holder of the series of a version.

        Args:
            meter: as returned by :meth:`acquire`.
            is_removed: the version was removed: its series are removed with their last holder. Otherwise its dispatcher was
                closed, and the series stay, because counters must not decrease when it is opened again.
        """
        with self._lock:
            holders = self._holders.get(meter.tool, {})
            if meter.version not in holders:
                return  # removed with the tool
            holders[meter.version] -= 1
            if holders[meter.version] <= 0 and is_removed and meter.version != OTHER:
                del holders[meter.version]
                self._calls.remove_by_labels({"tool": meter.tool, "version": meter.version})

    def remove_tool(self, tool: str) -> None:
        """Remove the series of all versions of a tool."""
        with self._lock:
            if self._holders.pop(tool, None) is not None:
                self._calls.remove_by_labels({"tool": tool})
