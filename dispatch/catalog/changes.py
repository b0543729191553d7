"""The differences between two catalogues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from dispatch.catalog.catalog import Catalog


class NameChanges(msgspec.Struct, frozen=True):
    """The names of entries that differ, in the order of their catalogues.

    Attributes:
        added: only the new catalogue has them.
        changed: both catalogues have them, with other contents.
        removed: only the former catalogue has them.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        """Iterate over all names."""
        yield from self.added
        yield from self.changed
        yield from self.removed

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


class CatalogChanges(msgspec.Struct, frozen=True):
    """The differences between two catalogues.

    Attributes:
        tools: by name. A tool also counts as changed if its service has changed.
        services: by id.
    """

    tools: NameChanges = NameChanges()
    services: NameChanges = NameChanges()

    def __bool__(self) -> bool:
        return bool(self.tools or self.services)


def compare(former: Catalog, new: Catalog) -> CatalogChanges:
    """Compare two catalogues with all versions of their entries. Equal objects are compared by identity, so that a catalogue
    that shares its descriptors with the former one is compared in about 0.1 µs per tool."""
    if former is new:
        return CatalogChanges()
    several = former.several_service_versions | new.several_service_versions
    services = _compare(
        former.services, new.services, several, former.service_versions, new.service_versions, frozenset()
    )
    changed = frozenset(services.changed)
    several = former.several_tool_versions | new.several_tool_versions
    return CatalogChanges(_compare(former.tools, new.tools, several, former.versions, new.versions, changed), services)


def _compare(
    former: Mapping[str, Any],
    new: Mapping[str, Any],
    several: Collection[str],
    former_versions: Callable[[str], tuple[Any, ...]],
    new_versions: Callable[[str], tuple[Any, ...]],
    services: frozenset[str],
) -> NameChanges:
    """Compare the entries, of which ``several`` have several versions; those of changed ``services`` have changed, too."""
    added, changed = [], []
    candidates: Iterable[str] = new
    if not services:  # perf: most entries are the same object in both catalogues
        candidates = [name for name, entry in new.items() if former.get(name) is not entry or name in several]
    for name in candidates:
        if name not in former:
            added.append(name)
            continue
        # Tuples compare their elements by identity first.
        versions = new_versions(name)
        if versions != former_versions(name) or (services and any(each.service in services for each in versions)):
            changed.append(name)
    removed = former.keys() - new.keys()
    return NameChanges(
        tuple(added), tuple(changed), tuple(name for name in former if name in removed) if removed else ()
    )
