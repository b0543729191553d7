"""The observer of a catalogue: what the registry of a dispatcher reports about its sources and their items.

The reports about items (:class:`RefusedItem`, :class:`ShadowedItem`, :class:`HeldChange`) are complete: each call passes all
that hold at that moment, and the observer writes a log line and publishes an event only for those that are new. The registry
so needs no memory of what it has reported, and an item that is invalid for a day is reported once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec


class RefusedItem(msgspec.Struct, frozen=True):
    """An invalid item: its last valid version stays in force, or it has none and is not in the catalogue.

    Attributes:
        source: id of its source.
        origin: path or position of the item, such as ``tool/find.json`` or ``tools[2]``.
        key: path of the invalid value inside the descriptor, such as ``arguments[1].type``; empty: the whole item.
        problem: description of the problem.
        fix: how to correct it.
    """

    source: str
    origin: str
    key: str
    problem: str
    fix: str


class ShadowedItem(msgspec.Struct, frozen=True):
    """A valid item that is not in force, because a source that comes earlier has an item with the same name.

    Attributes:
        name: of both tools, or id of both services.
        source, origin: of the shadowed item.
        active_source, active_origin: of the item that is in force.
    """

    name: str
    source: str
    origin: str
    active_source: str
    active_origin: str


class HeldChange(msgspec.Struct, frozen=True):
    """A changed definition that waits for approval; the former one stays in force.

    Attributes:
        source: id of its source.
        name: of the tool.
        old: fingerprint of the definition in force; empty: the tool is new and not in force.
        new: fingerprint of the definition that waits.
    """

    source: str
    name: str
    old: str
    new: str


class CatalogObserver:
    """Observes the catalogue of one dispatcher. All methods are called on the dispatcher's event loop. This class observes
    nothing."""

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
        """Observe that another catalogue or policy is in force.

        Args:
            sources: ids of the sources that caused it.
            tools: number of tools in force.
            added, changed, removed: names of tools.
            fingerprints: by the name of the tool; only those of ``added`` and ``changed`` are read.
            is_reload: by :meth:`dispatch.Dispatcher.reload`, so that former reloads that were rejected are made good.
        """

    def on_reload_rejected(self, sources: Collection[str], tools: int, problem: str) -> None:
        """Observe that :meth:`dispatch.Dispatcher.reload` with these sources was rejected because of ``problem``: the
        previous catalogue and policy, with ``tools`` tools, stay in force."""

    def on_source_changed(self, source: str, old: str, new: str, problem: str = "") -> None:
        """Observe that a source changed its state. Only changes of the state are reported, not each further failure.

        Args:
            source: its id.
            old: the former state (:data:`dispatch.catalog.sources.base.SourceState`); empty: the source was added.
            new: the state; ``removed``: the source was removed, and its series with it.
            problem: why it is not ``ok``, in one line.
        """

    def on_refused_items(self, source: str, items: Collection[RefusedItem]) -> None:
        """Observe all refused items of a source."""

    def on_shadowed_items(self, source: str, items: Collection[ShadowedItem]) -> None:
        """Observe all shadowed items of a source."""

    def on_held_changes(self, source: str, changes: Collection[HeldChange]) -> None:
        """Observe all held changes of a source."""


NULL_CATALOG = CatalogObserver()
