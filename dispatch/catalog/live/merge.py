"""Merges the items of several sources into one catalogue: precedence, shadowing, last valid versions, held changes.

Pure: no input or output and no clock. One thread at a time uses a :class:`Merger`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from typing import Final, Generic, TypeVar

import msgspec

from dispatch.catalog.catalog import Catalog
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.errors import CatalogError, Problem
from dispatch.catalog.fingerprint import fingerprint, service_fingerprint
from dispatch.catalog.live.source_items import Definitions, SourceItems
from dispatch.catalog.readers.item import Item, ReadItem
from dispatch.catalog.sources.base import OnChange
from dispatch.catalog.version_selection import find_service_version
from dispatch.policy import DEFAULT_POLICY, Policy
from dispatch.telemetry.catalog_observer import HeldChange, RefusedItem, ShadowedItem

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

    def describe_refused(self, source: str) -> list[RefusedItem]:
        """Return the first error of each refused item."""
        errors = ([each for each in read.problems if each.severity == "error"] for read in self.refused)
        firsts = (each[0] for each in errors if each)
        return [RefusedItem(source, each.file, each.key, each.problem, each.fix) for each in firsts]


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
    """The definitions in force of one kind; a name of an earlier source shadows the same name of a later one.

    Args:
        parts: the definitions of each source by its id.
        former: the layer of the last merge, whose parts are reused.
    """

    def __init__(self, parts: dict[str, Definitions[D]], former: _Layer[D] | None = None) -> None:
        self.parts: dict[str, Definitions[D]] = parts
        self.by_name: dict[str, tuple[D, ...]] = {}
        self.owners: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.shadowed: dict[str, list[ShadowedItem]] = {}
        for id, part in parts.items():
            visible = part.by_name
            if clashes := self.by_name.keys() & visible.keys():
                names = [name for name in visible if name in clashes]
                self.shadowed[id] = [self._shadow(id, name) for name in names[:MAX_REPORTED]]
                visible = {name: versions for name, versions in visible.items() if name not in clashes}
            self.by_name.update(visible)
            self.owners.update(dict.fromkeys(visible, id))
            self.counts[id] = sum(map(len, visible.values()))
        if former is not None and former.by_name == self.by_name:
            self.by_name = former.by_name  # the same object: what was read with it is not read again

    def _shadow(self, id: str, name: str) -> ShadowedItem:
        owner = self.owners[name]
        return ShadowedItem(name, id, self.parts[id].origins[name], owner, self.parts[owner].origins[name])

    def is_of(self, parts: dict[str, Definitions[D]]) -> bool:
        """Return whether the layer is made of the same parts in the same order."""
        return [*self.parts] == [*parts] and all(part is parts[id] for id, part in self.parts.items())

    def flatten(self) -> Iterator[D]:
        """Iterate over all definitions."""
        return chain.from_iterable(self.by_name.values())


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
        self._services: _Layer[ServiceDescriptor] = _Layer({})
        self._tools: _Layer[ToolDescriptor] = _Layer({})
        """Of the last merge."""

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

    def set_items(self, id: str, items: Sequence[Item], required: Item | None = None) -> list[Problem]:
        """Replace the items of a source, unless they are refused as a whole.

        Args:
            required: an item that must be valid, also of a source that is not atomic.

        Returns:
            The problems for which the items are refused: the former ones stay in force.
        """
        former = self._sources[id]
        source = copy(former)
        source.items = tuple(items)  # the source may change its list
        if source.is_atomic or required is not None:
            # The definitions of another source that hold changes are those in force; a new source has none yet.
            parts = {
                id: source.services(self.policy) if each is former else self._services_in_force(each)
                for id, each in self._sources.items()
            }
            services = self._services if self._services.is_of(parts) else _Layer(parts, self._services)
            source.tools(self.policy, services.by_name)
            refused = [read for reading in source.readings for read in reading.refused]
            if source.is_atomic and refused:
                return [problem for reading in source.readings for problem in reading.problems]
            # An equal item that was read before may stand for the required one.
            if problems := [problem for read in refused if read.item == required for problem in read.problems]:
                return problems
            if not source.holds:  # otherwise the layer has definitions that wait for approval
                self._services = services
        self._sources[id] = source
        return []

    def _services_in_force(self, source: SourceItems) -> Definitions[ServiceDescriptor]:
        if source.holds and source.id in self._services.parts:
            return self._services.parts[source.id]
        return source.services(self.policy)

    def load_items(self, found: Mapping[str, Sequence[Item]], *, others_follow: bool = False) -> tuple[str, ...]:
        """Replace the items of several sources, whose tools may use each other's services.

        Args:
            found: items by the id of their source.
            others_follow: further sources deliver their items later.

        Returns:
            Ids of sources that have no items yet: their tools use services that a further source may deliver.

        Raises:
            CatalogError: items are refused.
        """
        waiting = tuple(found)
        while waiting:
            refused = {id: problems for id in waiting if (problems := self.set_items(id, found[id]))}
            if len(refused) == len(waiting):  # none of them helps another one
                problems = [problem for each in refused.values() for problem in each]
                if others_follow and all(each.key == "service" for each in problems if each.severity == "error"):
                    break
                raise CatalogError(problems)
            waiting = tuple(refused)
        return waiting

    def set_catalog(self, id: str, catalog: Catalog) -> None:
        """Replace the items of a source by the descriptors of a catalogue."""
        self._sources[id].catalog = catalog

    def merge(self) -> Merged:
        """Return the catalogue of all sources."""
        first_seen: dict[str, frozenset[str]] = {}
        services = self._merge_services(first_seen)
        tools = self._merge_tools(services, first_seen)
        self._services, self._tools = services, tools
        if first_seen:
            self.approved = {**self.approved, **first_seen}
        others: dict[str, OtherTool] = {}
        for id, source in self._sources.items():
            for read in source.tool_reading.others if source.tool_reading is not None else ():
                others.setdefault(read.name, OtherTool(read.name, read.other_type, id, read.item.origin))
        return Merged(
            catalog=Catalog(services.flatten(), tools.flatten(), source="merged", sources=tools.owners),
            policy=self.policy,
            reports={id: self._report(source, services, tools) for id, source in self._sources.items()},
            others=others,
            problems=tuple(
                problem
                for source in self._sources.values()
                for reading in source.readings
                for problem in reading.problems
            ),
            first_seen=first_seen,
        )

    def _merge_services(self, first_seen: dict[str, frozenset[str]]) -> _Layer[ServiceDescriptor]:
        parts = {}
        for id, source in self._sources.items():
            part = source.services(self.policy)
            if source.holds:
                part = source.hold_changes(
                    "tool-service", part, service_fingerprint, _is_usable, self.approved, first_seen
                )
            parts[id] = part
        return self._services if self._services.is_of(parts) else _Layer(parts, self._services)

    def _merge_tools(
        self, services: _Layer[ServiceDescriptor], first_seen: dict[str, frozenset[str]]
    ) -> _Layer[ToolDescriptor]:
        def fingerprint_of(tool: ToolDescriptor) -> str:
            return fingerprint(tool, find_service_version(services.by_name[tool.service], tool.requires))

        def services_of(tool: ToolDescriptor) -> tuple[ServiceDescriptor, ...] | None:
            return services.by_name.get(tool.service)

        parts = {}
        for id, source in self._sources.items():
            part = source.tools(self.policy, services.by_name)
            if source.holds:
                part = source.hold_changes("tool", part, fingerprint_of, services_of, self.approved, first_seen)
            parts[id] = part
        return self._tools if self._tools.is_of(parts) else _Layer(parts, self._tools)

    def _report(
        self, source: SourceItems, services: _Layer[ServiceDescriptor], tools: _Layer[ToolDescriptor]
    ) -> SourceReport:
        id = source.id
        held = [*services.parts[id].held[:MAX_REPORTED], *tools.parts[id].held[:MAX_REPORTED]]
        return SourceReport(
            items=services.counts[id] + tools.counts[id],
            tools=tools.counts[id],
            refused=tuple(read for reading in source.readings for read in reading.refused)[:MAX_REPORTED],
            shadowed=(*services.shadowed.get(id, ()), *tools.shadowed.get(id, ())),
            held=tuple(held),
        )


def _is_usable(service: ServiceDescriptor) -> bool:
    return True
