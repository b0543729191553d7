"""Merges the items of several sources into one catalogue: precedence, shadowing, last valid versions, held changes.

Pure: no input or output and no clock. One thread at a time uses a :class:`Merger`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from dispatch._internal import check_instance, describe_type, excerpt, join_names
from dispatch.catalog.catalog import Catalog, hash_definition, service_definition, tool_definition
from dispatch.catalog.descriptors import CatalogError, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.folder import Folder, without_item
from dispatch.catalog.items import KINDS, Item, OnChange, ReadItem, Refused, Services, Source, SourceGroup
from dispatch.catalog.loader import Definitions, HeldDefinition, Reading, read_services, read_tools
from dispatch.catalog.versions import find_service_version
from dispatch.documents import Problem
from dispatch.policy import DEFAULT_POLICY, Policy
from dispatch.telemetry.observers import RefusedItem, ShadowedItem

# The items of one source, and what was read of them.


D = TypeVar("D", ServiceDescriptor, ToolDescriptor)


class SourceItems:
    """The items of one source. What did not change since it was read last is not read again.

    Args:
        id: of the source.
        is_atomic: its items are accepted as a whole or not at all.
        on_change: ``hold``: a changed definition waits for its approval.
    """

    def __init__(self, id: str, *, is_atomic: bool = False, on_change: OnChange = "apply") -> None:
        self.id = id
        self.is_atomic = is_atomic
        self.holds = on_change == "hold"
        self.items: Sequence[Item] = ()
        self.fixed: tuple[Definitions[ServiceDescriptor], Definitions[ToolDescriptor]] | None = None
        """Descriptors instead of items."""
        self.service_reading = Reading(self.items, DEFAULT_POLICY)
        self.tool_reading = Reading(self.items, DEFAULT_POLICY)
        self._approved: dict[str, _Approval] = {}
        """The definitions in force, by kind and name, of a source that holds changes."""

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The readings of services and tools."""
        return self.service_reading, self.tool_reading

    def services(self, policy: Policy) -> Definitions[ServiceDescriptor]:
        """Return the services; ``policy``: defaults under their policies."""
        return self._read_services(policy).definitions if self.fixed is None else self.fixed[0]

    def _read_services(self, policy: Policy) -> Reading:
        reading = self.service_reading
        if reading.items is not self.items or reading.policy != policy:
            reading = read_services(self.items, policy, reading, keeps_valid=not self.is_atomic)
            self.service_reading = reading
        return reading

    def tools(self, policy: Policy, services: Services) -> Definitions[ToolDescriptor]:
        """Return the tools; ``services``: in force, of all sources."""
        if self.fixed is not None:
            return self.fixed[1]
        unavailable = self._read_services(policy).unavailable
        reading = self.tool_reading
        if reading.items is not self.items or reading.policy != policy or reading.services is not services:
            reading = read_tools(self.items, services, unavailable, policy, reading, keeps_valid=not self.is_atomic)
            self.tool_reading = reading
        return reading.definitions

    def hold_changes(
        self,
        kind: str,
        found: Definitions[D],
        definition_of: Callable[[D], Mapping[str, object]],
        context_of: Callable[[D], object],
        approved: Mapping[str, frozenset[str]],
        first_seen: dict[str, frozenset[str]],
    ) -> Definitions[D]:
        """Return the definitions in force: of a source that holds changes, changed ones are replaced by the approved ones
        that were in force.

        Args:
            kind: ``tool`` or ``tool-service``.
            found: the definitions as the source delivers them.
            definition_of: what the fingerprint of a definition covers.
            context_of: what a fingerprint depends on besides the definition; None: the definition cannot be in force now.
            approved: fingerprints by ``tool/NAME`` and ``tool-service/ID``.
            first_seen: gets the fingerprints of definitions of a name without any approved one.
        """
        if not self.holds:
            return found
        in_force: Definitions[D] = Definitions()
        remembered = {key: each for key, each in self._approved.items() if not key.startswith(f"{kind}/")}
        for name, versions in found.by_name.items():
            key = f"{kind}/{name}"
            former = self._approved.get(key)
            context = tuple(map(context_of, versions))
            if former is not None and former[:2] == (versions, context):  # equal objects are compared by identity first
                prints = former.prints
            else:
                prints = tuple(hash_definition(definition_of(each)) for each in versions)
            known = approved.get(key, first_seen.get(key))
            if known is None:  # the first source with that name decides
                known = first_seen[key] = frozenset(prints)
            waiting = [print for print in prints if print not in known]
            if not waiting:
                remembered[key] = _Approval(versions, context, prints)
                in_force.by_name[name], in_force.origins[name] = versions, found.origins[name]
                continue
            now = before = ""
            if former is not None:
                remembered[key] = former
                if all(context_of(each) is not None for each in former.versions):
                    in_force.by_name[name], in_force.origins[name] = former.versions, found.origins[name]
                    now = ", ".join(former.prints)
                    before = "\n".join(_write(definition_of(each)) for each in former.versions)
            in_force.held += [
                HeldDefinition(self.id, name, now, print, key, before, _write(definition_of(each)))
                for print, each in zip(prints, versions, strict=True)
                if print in waiting
            ]
        self._approved = remembered
        return in_force


def _write(definition: Mapping[str, object]) -> str:
    return json.dumps(definition, ensure_ascii=False)


class _Approval(NamedTuple):
    """Definitions of one name in force, what their fingerprints depend on, and their fingerprints."""

    versions: tuple[Any, ...]
    context: tuple[object, ...]
    prints: tuple[str, ...]


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
        warnings: of the descriptors of an atomic source, which are files.
    """

    items: int
    tools: int
    refused: tuple[ReadItem, ...] = ()
    shadowed: tuple[ShadowedItem, ...] = ()
    held: tuple[HeldDefinition, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def find_refused(self, name: str) -> Problem | None:
        """Return the first error of the refused tool ``name``; None: no such tool is refused."""
        for read in self.refused:
            refused = read.item.raw
            own = refused.name if isinstance(refused, Refused) and refused.name else read.name
            if own == name and read.item.kind == "tool":
                return next((each for each in read.problems if each.severity == "error"), None)
        return None

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
        self.refused: dict[str, Problem] = {}
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

    def refuse(self, problems: Mapping[str, Problem], in_force: Mapping[str, tuple[D, ...]]) -> None:
        """Keep the definitions in force of the names in ``problems``; a new one is not in force."""
        self.by_name = dict(self.by_name)
        for name, problem in problems.items():
            former = in_force.get(name, ())
            if former != self.by_name[name]:
                self.refused[name] = problem
                self.counts[self.owners[name]] += len(former) - len(self.by_name[name])
                if former:
                    self.by_name[name] = former
                else:
                    del self.by_name[name]

    def refused_of(self, id: str) -> dict[str, Problem]:
        """Return why definitions of a source are refused, by their names."""
        return {name: problem for name, problem in self.refused.items() if self.owners[name] == id}

    def _shadow(self, id: str, name: str) -> ShadowedItem:
        owner = self.owners[name]
        return ShadowedItem(name, id, self.parts[id].origins[name], owner, self.parts[owner].origins[name])

    def is_of(self, parts: dict[str, Definitions[D]]) -> bool:
        """Return whether the layer is made of the same parts in the same order."""
        return [*self.parts] == [*parts] and all(part is parts[id] for id, part in self.parts.items())

    def flatten(self) -> Iterator[D]:
        """Iterate over all definitions."""
        return chain.from_iterable(self.by_name.values())


FindConflicts = Callable[[Catalog], Mapping[str, Problem]]
"""Returns why services cannot be in force beside the others of a catalogue, by their ids."""


class Merger:
    """Merges sources in their order.

    Args:
        policy: defaults under the policies of services and tools.

    Attributes:
        find_conflicts: a service with a conflict keeps its former definition, and a new one is refused; None: there are no
            conflicts.
    """

    def __init__(self, policy: Policy = DEFAULT_POLICY) -> None:
        self.policy = policy
        self.approved: Mapping[str, frozenset[str]] = {}
        """Approved fingerprints by ``tool/NAME`` and ``tool-service/ID``, for sources that hold changes."""
        self.find_conflicts: FindConflicts | None = None
        self._in_force: Mapping[str, tuple[ServiceDescriptor, ...]] = {}
        """The services of the last merge."""
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
        other.find_conflicts, other._in_force = self.find_conflicts, self._in_force
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
            services = self._layer_services(parts)
            source.tools(self.policy, services.by_name)
            refused = [read for reading in source.readings for read in reading.refused]
            if conflicts := services.refused_of(id):
                return [*conflicts.values()]
            if source.is_atomic and refused:
                return [problem for reading in source.readings for problem in reading.problems]
            # An equal item that was read before may stand for the required one.
            if problems := [problem for read in refused if read.item == required for problem in read.problems]:
                return problems
            if not source.holds:  # otherwise the layer has definitions that wait for approval
                self._services = services
        self._sources[id] = source
        return []

    def _layer_services(self, parts: dict[str, Definitions[ServiceDescriptor]]) -> _Layer[ServiceDescriptor]:
        """Return the services in force: those of ``parts``, without new conflicts."""
        if self._services.is_of(parts):
            return self._services
        layer = _Layer(parts, self._services)
        seen: set[str] = set()
        while self.find_conflicts is not None:  # a former definition may be in the way of another new one
            conflicts = self.find_conflicts(Catalog(layer.flatten(), ()))
            if not conflicts.keys() - seen:
                break
            seen.update(conflicts)
            layer.refuse(conflicts, self._in_force)
        return layer

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
        refused = self.set_all_items(found)
        problems = [problem for each in refused.values() for problem in each]
        waits = others_follow and all(each.key == "service" for each in problems if each.severity == "error")
        if refused and not waits:
            raise CatalogError(problems)
        return tuple(refused)

    def set_all_items(self, found: Mapping[str, Sequence[Item]]) -> dict[str, list[Problem]]:
        """Replace the items of several sources, whose tools may use each other's services.

        Args:
            found: items by the id of their source.

        Returns:
            The problems for which items are refused, by the id of their source.
        """
        waiting = tuple(found)
        while True:
            refused = {id: problems for id in waiting if (problems := self.set_items(id, found[id]))}
            if len(refused) == len(waiting):  # all of them, or none: none helps another one
                return refused
            waiting = tuple(refused)

    def put_item(self, kind: str, raw: Mapping[str, Any]) -> None:
        """Add an item of the program, or replace the one with its name and version.

        Raises:
            CatalogError: it is invalid; nothing has changed.
        """
        key = _key_of(kind, raw)
        item = Item(f"{PUT}:{kind}/{key}", kind, key, dict(raw))
        if problems := self.set_items(PUT, [*without_item(self.items(PUT), kind, key), item], item):
            raise CatalogError(problems)

    def remove_item(self, kind: str, key: str) -> None:
        """Remove an item that was put.

        Raises:
            LookupError: it was not put.
        """
        items = without_item(self.items(PUT), kind, key)
        if len(items) == len(self.items(PUT)):
            versions = [each.key for each in items if each.kind == kind and each.key.partition("@")[0] == key]
            fix = f"write {join_names(versions)}" if versions else "remove it from its source"
            raise LookupError(f"{kind} '{key}' was not put, so it stays in force. Fix: {fix}.")
        self.set_items(PUT, items)

    def set_catalog(self, id: str, catalog: Catalog) -> None:
        """Replace the items of a source by the descriptors of a catalogue."""
        services = ((each.id, id, each) for each in catalog.iterate_services())
        tools = ((each.name, id, each) for each in catalog.iterate_tools())
        self._sources[id].fixed = Definitions(services), Definitions(tools)

    def merge(self) -> Merged:
        """Return the catalogue of all sources."""
        first_seen: dict[str, frozenset[str]] = {}
        services = self._merge_services(first_seen)
        tools = self._merge_tools(services, first_seen)
        self._services, self._tools = services, tools
        self._in_force = services.by_name
        if first_seen:
            self.approved = {**self.approved, **first_seen}
        others: dict[str, OtherTool] = {}
        for id, source in self._sources.items():
            for read in source.tool_reading.others:
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
        def hold(source: SourceItems) -> Definitions[ServiceDescriptor]:
            found = source.services(self.policy)  # each can always be in force
            return source.hold_changes(
                "tool-service", found, service_definition, lambda _: True, self.approved, first_seen
            )

        return self._layer_services({id: hold(source) for id, source in self._sources.items()})

    def _merge_tools(
        self, services: _Layer[ServiceDescriptor], first_seen: dict[str, frozenset[str]]
    ) -> _Layer[ToolDescriptor]:
        def definition_of(tool: ToolDescriptor) -> Mapping[str, object]:
            return tool_definition(tool, find_service_version(services.by_name[tool.service], tool.requires))

        def services_of(tool: ToolDescriptor) -> tuple[ServiceDescriptor, ...] | None:
            return services.by_name.get(tool.service)

        def hold(source: SourceItems) -> Definitions[ToolDescriptor]:
            found = source.tools(self.policy, services.by_name)
            return source.hold_changes("tool", found, definition_of, services_of, self.approved, first_seen)

        parts = {id: hold(source) for id, source in self._sources.items()}
        return self._tools if self._tools.is_of(parts) else _Layer(parts, self._tools)

    def _report(
        self, source: SourceItems, services: _Layer[ServiceDescriptor], tools: _Layer[ToolDescriptor]
    ) -> SourceReport:
        id = source.id
        held = [*services.parts[id].held[:MAX_REPORTED], *tools.parts[id].held[:MAX_REPORTED]]
        conflicts = services.refused_of(id)
        refused = [read for reading in source.readings for read in reading.refused]
        for read in source.service_reading.in_force if conflicts else ():
            if read.service is not None and read.service.id in conflicts:
                problem = msgspec.structs.replace(conflicts[read.service.id], file=read.item.origin)
                refused.append(msgspec.structs.replace(read, problems=(problem,), is_refused=True))
        problems = chain.from_iterable(reading.problems for reading in source.readings if source.is_atomic)
        warnings = islice((each for each in problems if each.severity == "warning"), MAX_REPORTED)
        return SourceReport(
            items=services.counts[id] + tools.counts[id],
            tools=tools.counts[id],
            refused=tuple(refused[:MAX_REPORTED]),
            shadowed=(*services.shadowed.get(id, ()), *tools.shadowed.get(id, ())),
            held=tuple(held),
            warnings=tuple(warnings),
        )


# What a user may give as a catalogue, as a list of sources.


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
        is_configuration = "mcpServers" in given
        return f"use dispatch.{'McpServers({…})' if is_configuration else 'Catalog.of(services=[…], tools=[…])'}"
    if inspect.ismodule(given):
        return f"wrap it: dispatch.ToolPackage('{given.__name__}')"
    if callable(getattr(given, "invoke", None)):
        return "serve it with dispatch.ToolServer(…), and give the folder of its descriptors here"
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


def _key_of(kind: str, raw: Mapping[str, Any]) -> str:
    field = {"tool": "name", "tool-service": "id"}.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise CatalogError([Problem(PUT, "kind", f"{excerpt(repr(kind))} is not a kind", f"use {' or '.join(KINDS)}")])
    check_instance("raw", raw, Mapping, "a descriptor, such as {'name': 'tell-joke'}")
    name, version = raw.get(field), raw.get("version")
    if not isinstance(name, str) or not name.strip():
        raise CatalogError([Problem(f"{PUT}:{kind}", field, f"'{field}' is missing or no text", f'add "{field}": "…"')])
    return f"{name}@{version}" if isinstance(version, str) else name
