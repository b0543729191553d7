"""Merges the items of several sources into one catalogue: precedence, shadowing, last valid versions, held changes.

Pure: no input or output and no clock. One thread at a time uses a :class:`Merger`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Final, Generic, TypeVar

import msgspec

from dispatch.catalog.catalog import Catalog
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.errors import Problem
from dispatch.catalog.fingerprint import fingerprint, service_fingerprint
from dispatch.catalog.live.source_items import Found, SourceItems
from dispatch.catalog.readers.item import Item, ReadItem
from dispatch.catalog.sources.base import OnChange
from dispatch.catalog.version_selection import find_service_version
from dispatch.policy import DEFAULT_POLICY, Policy
from dispatch.telemetry.catalog_observer import HeldChange, ShadowedItem

D = TypeVar("D", ServiceDescriptor, ToolDescriptor)

MAX_REPORTED: Final = 1_000
"""Refused, shadowed and held items that are reported, for each source."""


class OtherTool(msgspec.Struct, frozen=True):
    """A tool that another runtime executes.

    Attributes:
        name: of the tool.
        type: its type: ``mcp-tool``, ``prompt`` ….
        source: its owner.
        origin: of the item.
    """

    name: str
    type: str
    source: str
    origin: str


class SourceReport(msgspec.Struct, frozen=True):
    """What a merge says about one source.

    Attributes:
        items: number of its services and tools in force.
        tools: number of its tools in force.
        refused: its items that are invalid.
        shadowed: its items that are not in force, because a source of higher precedence has one of the same name.
        held: its changed definitions that wait for approval.
    """

    items: int
    tools: int
    refused: tuple[ReadItem, ...] = ()
    shadowed: tuple[ShadowedItem, ...] = ()
    held: tuple[HeldChange, ...] = ()


class Merged(msgspec.Struct, frozen=True):
    """The result of a merge.

    Attributes:
        catalog: the services and tools in force.
        policy: defaults under their policies.
        reports: by the source's id.
        others: tools of other runtimes by name.
        problems: of all items, in the order of the sources.
        first_seen: fingerprints of definitions of holding sources that had none approved: they are approved by their first
            appearance.
    """

    catalog: Catalog
    policy: Policy
    reports: Mapping[str, SourceReport]
    others: Mapping[str, OtherTool]
    problems: tuple[Problem, ...]
    first_seen: Mapping[str, frozenset[str]]


class _Layer(Generic[D]):
    """The descriptors in force of one kind; a name of an earlier source shadows the same name of a later one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.by_name: dict[str, list[D]] = {}
        self.owners: dict[str, tuple[str, str]] = {}
        self.shadowed: dict[str, dict[str, ShadowedItem]] = {}

    def add(self, source: str, origin: str, name: str, descriptor: D) -> bool:
        owner = self.owners.setdefault(name, (source, origin))
        if owner[0] == source:
            self.by_name.setdefault(name, []).append(descriptor)
            return True
        shadowed = self.shadowed.setdefault(source, {})
        if len(shadowed) < MAX_REPORTED:
            shadowed.setdefault(name, ShadowedItem(name, source, origin, *owner))
        return False


class Merger:
    """Merges sources in their order.

    Args:
        policy: defaults under the policies of services and tools.
    """

    def __init__(self, policy: Policy = DEFAULT_POLICY) -> None:
        self.policy = policy
        self.approved: Mapping[str, frozenset[str]] = {}
        """Approved fingerprints by ``tool/NAME`` and ``tool-service/ID``, for sources that hold changes."""
        self._sources: dict[str, SourceItems] = {}

    @property
    def order(self) -> tuple[str, ...]:
        """Ids of the sources, the highest precedence first."""
        return tuple(self._sources)

    def add_source(self, id: str, *, is_atomic: bool = False, on_change: OnChange = "apply") -> None:
        """Add a source without items, with the lowest precedence."""
        self._sources = {**self._sources, id: SourceItems(id, is_atomic=is_atomic, on_change=on_change)}

    def set_order(self, ids: Iterable[str]) -> None:
        """Set the order of all sources, the highest precedence first."""
        self._sources = {id: self._sources[id] for id in ids}

    def remove_source(self, id: str) -> None:
        """Remove a source and its items."""
        del self._sources[id]

    def copy(self, keeping: Collection[str], policy: Policy) -> Merger:
        """Return a merger with some of the sources, for a change that may fail as a whole."""
        other = Merger(policy)
        other.approved = self.approved
        other._sources = {id: copy(source) for id, source in self._sources.items() if id in keeping}
        return other

    def items(self, id: str) -> Sequence[Item]:
        """Return the items of a source."""
        return self._sources[id].items

    def set_items(self, id: str, items: Sequence[Item]) -> list[Problem]:
        """Replace the items of a source.

        Returns:
            The problems of an atomic source whose items are refused as a whole: the former ones stay in force.
        """
        source = self._sources[id]
        if source.is_atomic:
            reader = source.begin(items, self.policy)
            services: _Layer[ServiceDescriptor] = _Layer("tool-service")
            for each in self._sources.values():
                for origin, service in each.services(reader if each is source else each.begin(each.items, self.policy)):
                    services.add(each.id, origin, service.id, service)
            for _ in source.tools(reader, services.by_name):
                pass
            if reader.refused:
                return reader.problems
        source.items = items
        return []

    def find_problems(self, id: str, items: Sequence[Item], changed: Item) -> list[Problem]:
        """Return the errors of one item of a source if it had ``items``; nothing changes."""
        trial = self.copy(self._sources, self.policy)
        trial._sources[id].items = items
        refused = trial.merge().reports[id].refused
        return [problem for read in refused if read.item is changed for problem in read.problems]

    def set_catalog(self, id: str, catalog: Catalog) -> None:
        """Replace the items of a source by the descriptors of a catalogue."""
        self._sources[id].catalog = catalog

    def merge(self) -> Merged:
        """Return the catalogue of all sources."""
        services: _Layer[ServiceDescriptor] = _Layer("tool-service")
        tools: _Layer[ToolDescriptor] = _Layer("tool")
        held: dict[str, list[HeldChange]] = {id: [] for id in self._sources}
        counts: Counter[tuple[str, str]] = Counter()
        first_seen: dict[str, frozenset[str]] = {}
        others: dict[str, OtherTool] = {}
        readers = {id: source.begin(source.items, self.policy) for id, source in self._sources.items()}

        def fill(
            layer: _Layer[D],
            source: SourceItems,
            found: Iterable[Found[D]],
            name_of: Callable[[D], str],
            fingerprint_of: Callable[[D], str],
        ) -> None:
            if source.holds:
                found, waiting = source.hold_changes(
                    layer.kind, found, name_of, fingerprint_of, self.approved, first_seen
                )
                held[source.id] += waiting[:MAX_REPORTED]
            for origin, descriptor in found:
                counts[layer.kind, source.id] += layer.add(source.id, origin, name_of(descriptor), descriptor)

        def fingerprint_tool(tool: ToolDescriptor) -> str:
            return fingerprint(tool, find_service_version(services.by_name[tool.service], tool.requires))

        for id, source in self._sources.items():
            fill(services, source, source.services(readers[id]), _id_of, service_fingerprint)
        for id, source in self._sources.items():
            fill(tools, source, source.tools(readers[id], services.by_name), _name_of, fingerprint_tool)
            for read in readers[id].others:
                others.setdefault(read.name, OtherTool(read.name, read.other_type, id, read.item.origin))
        for id, source in self._sources.items():
            source.reader = readers[id]
        self.approved = {**self.approved, **first_seen}
        return Merged(
            catalog=Catalog(
                [each for versions in services.by_name.values() for each in versions],
                [each for versions in tools.by_name.values() for each in versions],
                source="merged",
                sources={name: source for name, (source, _) in tools.owners.items()},
            ),
            policy=self.policy,
            reports={
                id: SourceReport(
                    items=counts["tool-service", id] + counts["tool", id],
                    tools=counts["tool", id],
                    refused=tuple(reader.refused[:MAX_REPORTED]),
                    shadowed=(*services.shadowed.get(id, {}).values(), *tools.shadowed.get(id, {}).values()),
                    held=tuple(held[id]),
                )
                for id, reader in readers.items()
            },
            others=others,
            problems=tuple(problem for reader in readers.values() for problem in reader.problems),
            first_seen=first_seen,
        )


def _id_of(service: ServiceDescriptor) -> str:
    return service.id


def _name_of(tool: ToolDescriptor) -> str:
    return tool.name
