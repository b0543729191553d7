"""What a user may give as a catalogue, as a list of sources."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, cast

from dispatch._internal.arguments import describe_type
from dispatch.catalog.catalog import Catalog
from dispatch.catalog.readers.item import Item
from dispatch.catalog.sources.base import OnChange, Source, SourceGroup
from dispatch.catalog.sources.folder import Folder

Given = Catalog | str | os.PathLike[str] | Source | SourceGroup
CatalogLike = Given | Sequence[Given]
"""A catalogue, a folder, a source, or several of them: of two items with one name the first one is in force."""


class FixedCatalog:
    """A catalogue as a source that never changes.

    Args:
        catalog: its descriptors.
        id: of the source; several catalogues in one list get ``code-2`` and so on.
    """

    is_atomic: Final = True

    def __init__(self, catalog: Catalog, id: str) -> None:
        self.catalog = catalog
        self.id = id

    async def discover(self) -> Sequence[Item]:
        """Return no items: the descriptors are there."""
        return ()

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yield nothing and never end."""
        await asyncio.get_running_loop().create_future()
        yield


def list_sources(given: CatalogLike | None) -> list[Source]:
    """Return the sources in their order.

    Raises:
        TypeError: one is neither a catalogue nor a folder nor a source.
        ValueError: two have the same id.
    """
    if given is None:
        return []
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    sources: list[Source] = []
    for each in several:
        found: Sequence[Source]
        if isinstance(each, Catalog):
            number = 1 + sum(isinstance(other, FixedCatalog) for other in sources)
            found = [FixedCatalog(each, each.source if number == 1 else f"{each.source}-{number}")]
        elif isinstance(each, (str, os.PathLike)):
            found = [Folder(each)]
        else:
            found = sources_in(each)
        for source in found:
            check_source(source, [other.id for other in sources])
            sources.append(source)
    return sources


def sources_in(given: Source | SourceGroup) -> Sequence[Source]:
    """Return the sources of a group, or the one source."""
    group: Sequence[Source] | None = getattr(given, "sources", None)
    return [cast(Source, given)] if group is None else group


def check_source(source: Source, ids: Sequence[str]) -> None:
    """Check that ``source`` may be added to sources with ``ids``.

    Raises:
        TypeError: it is no source.
        ValueError: its id is used already, or its ``on_change`` is unknown.
    """
    if isinstance(source, type) or not all(hasattr(source, name) for name in ("id", "discover", "changes")):
        raise TypeError(f"{describe_type(source)} is no source of a catalogue. Fix: {_fix_of_source(source)}.")
    if source.id in ids or source.id == PUT:
        raise ValueError(
            f"there is a source with the id '{source.id}' already. Fix: give each source an id of its own."
        )
    if getattr(source, "on_change", "apply") not in ("apply", "hold"):
        raise ValueError(f"the source '{source.id}' has an unknown on_change. Fix: use 'apply' or 'hold'.")


def _fix_of_source(given: object) -> str:
    if isinstance(given, type):
        return f"pass an instance, {given.__name__}(…)"
    if isinstance(given, Mapping):
        return (
            "use dispatch.McpServers({…})"
            if "mcpServers" in given
            else "use dispatch.Catalog.of(services=[…], tools=[…])"
        )
    if callable(given):
        return f"wrap it: dispatch.Functions({getattr(given, '__name__', 'f')})"
    return "give a Catalog, the path of a folder, or an object with id, discover() and changes()"


def check_items(source: Source, items: Sequence[object]) -> None:
    """Check what a source delivers.

    Raises:
        TypeError: one is no :class:`Item`, or its fields have other types than declared.
    """
    for item in items:
        if not isinstance(item, Item):
            problem = f"{type(item).__name__}, which is no Item"
        elif not all(isinstance(text, str) for text in (item.origin, item.kind, item.key, item.namespace)):
            problem = f"the item {item.origin!r:.80} with an origin, kind, key or namespace that is no text"
        else:
            continue
        raise TypeError(
            f"the source '{source.id}' delivers {problem}. Fix: return dispatch.catalog.Item objects in discover()."
        )


def on_change_of(source: Source) -> OnChange:
    """Return what happens with changed definitions of a source."""
    return "hold" if getattr(source, "on_change", "apply") == "hold" else "apply"


PUT: Final = "put"
"""Id of the source of items that the program puts. It precedes all others."""
