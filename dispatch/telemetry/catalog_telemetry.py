"""The observer of a catalogue that reports: counters, events and log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import TypeVar

import msgspec

from dispatch._internal.suggestions import excerpt
from dispatch.telemetry.catalog_observer import CatalogObserver, HeldChange, RefusedItem, ShadowedItem
from dispatch.telemetry.events import (
    MAX_NAMES,
    CatalogChanged,
    ChangeHeld,
    Event,
    Events,
    ItemRefused,
    ItemShadowed,
    SourceChanged,
)
from dispatch.telemetry.logs import TransitionLogger
from dispatch.telemetry.metrics.source_series import SourceSeries

MAX_LINES = 20
"""Log lines for the refused, shadowed or held items of one report; one more line has the number of the others. A source with
10,000 invalid items must neither fill the log nor block the event loop."""
MAX_SHOWN_CHARS = 500
"""Characters of a problem in a log line; the record's attributes have all of it."""
SHOWN_FINGERPRINT_CHARS = 12
"""Characters of a fingerprint in a log line; the record's attributes have all of it."""

T = TypeVar("T", bound=msgspec.Struct)


class TelemetryCatalogObserver(CatalogObserver):
    """Observes the catalogue of one dispatcher.

    Args:
        series: of the sources; None: metrics are off.
        events: delivers changes to listeners.
        log: writes the lines.
    """

    def __init__(self, series: SourceSeries | None, events: Events, log: TransitionLogger) -> None:
        self._series = series
        self._events = events
        self._log = log
        self._labels: dict[str, str] = {}
        self._rejected: set[str] = set()
        """Sources of rejected reloads that are not in force, so that they are never removed."""
        self._reported: dict[tuple[type, str], frozenset[object]] = {}

    def on_activated(
        self,
        sources: Collection[str],
        tools: int,
        *,
        added: Collection[str] = (),
        changed: Collection[str] = (),
        removed: Collection[str] = (),
        fingerprints: Mapping[str, str] | None = None,
        is_reload: bool = False,
    ) -> None:
        for source in sources:
            self._count_reload(source, is_successful=True)
        self._rejected.difference_update(sources)
        if is_reload:
            for source in self._rejected:
                self._forget_source(source)
            self._rejected.clear()
        shown = ", ".join(sorted(sources))
        if len(self._events):
            names = [tuple(islice(each, MAX_NAMES)) for each in (added, changed, removed)]
            known = {} if fingerprints is None else fingerprints
            self._events.publish(
                CatalogChanged(
                    time.time(),
                    shown,
                    True,
                    tools,
                    added=names[0],
                    changed=names[1],
                    removed=names[2],
                    added_count=len(added),
                    changed_count=len(changed),
                    removed_count=len(removed),
                    fingerprints={name: known[name] for part in names[:2] for name in part if name in known},
                )
            )
        counts = f"{len(added):,} added, {len(changed):,} changed, {len(removed):,} removed, {tools:,} in force"
        self._log.log(
            logging.INFO,
            ("catalog", shown, counts),
            f"catalogue activated ({shown}): {counts}",
            source=shown,
            tools=tools,
            added=len(added),
            changed=len(changed),
            removed=len(removed),
        )

    def on_reload_rejected(self, sources: Collection[str], tools: int, problem: str) -> None:
        for source in sources:
            if source not in self._labels:
                self._rejected.add(source)
            self._count_reload(source, is_successful=False)
        shown = ", ".join(sorted(sources))
        self._publish(CatalogChanged, source=shown, ok=False, tools=tools, problem=problem)
        self._log.log(
            logging.WARNING,
            ("reload", shown, problem),
            f"catalogue not reloaded, the previous one stays in force: {problem}",
            source=shown,
            problem=problem,
        )

    def on_source_changed(self, source: str, old: str, new: str, problem: str = "") -> None:
        """Observe that a source changed its state, or has another problem in the same state. The series of a removed source
        are removed."""
        self._publish(SourceChanged, source=source, old=old, new=new, problem=problem)
        change = f"still {new}" if old == new else f"{old} to {new}" if old else f"added, {new}"
        reason = f" ({excerpt(problem, MAX_SHOWN_CHARS)})" if problem else ""
        self._log.log(
            logging.WARNING if new in ("stale", "failed") else logging.INFO,
            ("source", source, new, problem),
            f"source {excerpt(source)}: {change}{reason}",
            source=source,
            old=old,
            new=new,
            problem=problem,
        )
        if new == "removed":
            self._forget_source(source)
        else:
            self.acquire_series(source)

    def on_refused_items(self, source: str, items: Collection[RefusedItem]) -> None:
        """Report the items that were not refused before."""

        def describe(item: RefusedItem) -> str:
            where = f"{item.origin}: {item.key}" if item.key else item.origin
            return f"item of {item.source} refused: {where}: {item.problem}. Fix: {item.fix}."

        self._report(source, items, RefusedItem, ItemRefused, describe)

    def on_shadowed_items(self, source: str, items: Collection[ShadowedItem]) -> None:
        """Report the items that were not shadowed before."""

        def describe(item: ShadowedItem) -> str:
            return (
                f"item of {item.source} shadowed: '{item.name}' ({item.origin}) is not in force, because "
                f"{item.active_source} ({item.active_origin}) precedes it"
            )

        self._report(source, items, ShadowedItem, ItemShadowed, describe)

    def on_held_changes(self, source: str, changes: Collection[HeldChange]) -> None:
        """Report the changes that were not held before."""

        def describe(change: HeldChange) -> str:
            old, new = change.old[:SHOWN_FINGERPRINT_CHARS], change.new[:SHOWN_FINGERPRINT_CHARS]
            former = f"the former definition {old} stays in force" if old else "the tool is not in force"
            return (
                f"change of '{change.name}' from {change.source} held: {former}, and the definition {new} waits. "
                f"Review it, then approve it with `dispatch tools approve {change.name}`."
            )

        self._report(source, changes, HeldChange, ChangeHeld, describe)

    def acquire_series(self, source: str) -> str:
        """Return the label of the source's series, which exist from now on; "": metrics are off."""
        if self._series is None:
            return ""
        label = self._labels.get(source)
        if label is None:
            label = self._labels[source] = self._series.acquire(source)
        return label

    def close(self) -> None:
        """End the observation: counters stay."""
        if self._series is not None:
            for label in self._labels.values():
                self._series.release(label, is_removed=False)
        self._labels.clear()
        self._reported.clear()

    def _count_reload(self, source: str, *, is_successful: bool) -> None:
        if self._series is not None:
            self._series.record_reload(self.acquire_series(source), is_successful=is_successful)

    def _forget_source(self, source: str) -> None:
        for kind in (RefusedItem, ShadowedItem, HeldChange):
            self._reported.pop((kind, source), None)
        label = self._labels.pop(source, None)
        if label is not None and self._series is not None:
            self._series.release(label, is_removed=True)

    def _report(
        self, source: str, items: Collection[T], kind: type[T], event: type[Event], describe: Callable[[T], str]
    ) -> None:
        former = self._reported.get((kind, source), frozenset())
        if not items and not former:
            return
        self._reported[kind, source] = frozenset(items)
        new = [item for item in items if item not in former]
        for item in new[:MAX_NAMES]:
            self._publish(event, **msgspec.structs.asdict(item))
        for item in new[:MAX_LINES]:
            self._log.log(
                logging.WARNING,
                (kind.__name__, *msgspec.structs.astuple(item)),
                excerpt(describe(item), MAX_SHOWN_CHARS),
                **msgspec.structs.asdict(item),
            )
        if len(new) > MAX_LINES:
            self._log.log(
                logging.WARNING,
                (kind.__name__, source, str(len(new))),
                f"{len(new) - MAX_LINES:,} more items of {excerpt(source)} are not listed here; see `dispatch tools`",
                source=source,
            )

    def _publish(self, event: type[Event], **values: object) -> None:
        if len(self._events):
            self._events.publish(event(at=time.time(), **values))
