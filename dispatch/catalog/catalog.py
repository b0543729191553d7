"""The catalogue: an immutable snapshot of services and tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, TypedDict, TypeVar

import msgspec

from dispatch._internal import (
    as_set,
    check_instance,
    excerpt,
    explain_keywords,
    find_near_names,
    join_alternatives,
    join_names,
)
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.items import Item, Unreadable
from dispatch.catalog.loader import read_services, read_tools, require_valid
from dispatch.catalog.versions import (
    Range,
    find_service_version,
    list_versions,
    select_default,
    select_service,
    select_version,
    sort_versions,
    to_range,
)
from dispatch.documents import EMPTY, FrozenDict, Problem

D = TypeVar("D", ServiceDescriptor, ToolDescriptor)


class _UnknownError(LookupError):
    _what = "entry"

    def __init__(self, name: str, near: tuple[str, ...] = (), known: tuple[str, ...] = ()) -> None:
        self.name = name
        self.near = near
        self.known = known
        super().__init__(self._text())

    def _text(self) -> str:
        text = f"There is no {self._what} '{excerpt(self.name)}'."
        if self.near:
            text += f" Did you mean {join_alternatives(self.near)}?"
        if not self.known:
            return f"{text} No {self._what}s are loaded."
        return f"{text} Known {self._what}s: {join_names(self.known)}."

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.near, self.known)


class UnknownToolError(_UnknownError):
    """There is no tool with that name.

    Attributes:
        name: the name that was looked up.
        near: similar names, best first.
        known: all names.
    """

    _what = "tool"


class UnknownServiceError(_UnknownError):
    """There is no tool service with that id; attributes as of :class:`UnknownToolError`."""

    _what = "tool service"


class VersionMismatchError(LookupError):
    """No version of a tool, or of the service of a tool, is in the range that is asked for.

    Attributes:
        what: ``tool`` or ``tool service``.
        name: of the tool, or id of the service.
        range: that no version is in.
        available: the declared versions, highest first.
    """

    def __init__(self, what: str, name: str, range: str, available: tuple[str, ...]) -> None:
        self.what = what
        self.name = name
        self.range = range
        self.available = available
        versions = f"Available versions: {join_names(available)}." if available else "It declares no version."
        super().__init__(f"No version of the {what} '{excerpt(name)}' satisfies '{excerpt(range)}'. {versions}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.name, self.range, self.available)


class Catalog:
    """An immutable snapshot of services and tools; every tool's service is in it.

    There may be several versions of one tool or service. The default version is the highest one that is no prerelease and
    has no share in another version's ``rollout``; if there is none, the highest that is no prerelease, or else the highest.

    Attributes:
        services: default versions by id, in the order of loading.
        tools: default versions by name, in the order of loading.
        source: label of the source in metrics: ``directory``, ``code``.
        sources: ids of the sources of tools by name, where they differ from ``source``.
        versions_by_id, versions_by_name: all versions of each service and of each tool, highest first.
    """

    __slots__ = ("services", "source", "sources", "tools", "versions_by_id", "versions_by_name")

    services: Mapping[str, ServiceDescriptor]
    tools: Mapping[str, ToolDescriptor]
    source: str
    sources: Mapping[str, str]
    versions_by_id: Mapping[str, tuple[ServiceDescriptor, ...]]
    versions_by_name: Mapping[str, tuple[ToolDescriptor, ...]]

    def __init__(
        self,
        services: Iterable[ServiceDescriptor] = (),
        tools: Iterable[ToolDescriptor] = (),
        *,
        source: str = "code",
        sources: Mapping[str, str] = EMPTY,
    ) -> None:
        """Make a catalogue of checked descriptors; :meth:`of` takes raw ones.

        Raises:
            ValueError: one version of a service id or of a tool name twice, or a tool without its service.
        """
        by_id = _group_versions((service.id, service) for service in services)
        by_name = _group_versions((tool.name, tool) for tool in tools)
        for tool in chain.from_iterable(by_name.values()):
            if tool.service not in by_id:
                raise ValueError(f"the tool '{tool.name}' refers to the service '{tool.service}', which is missing")
        object.__setattr__(self, "services", FrozenDict({id: select_default(each) for id, each in by_id.items()}))
        object.__setattr__(self, "tools", FrozenDict({name: select_default(each) for name, each in by_name.items()}))
        object.__setattr__(self, "versions_by_id", FrozenDict(by_id))
        object.__setattr__(self, "versions_by_name", FrozenDict(by_name))
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "sources", FrozenDict(sources) if sources else EMPTY)

    @classmethod
    def empty(cls) -> Catalog:
        """Return a catalogue without services and tools."""
        return cls()

    @classmethod
    @explain_keywords
    def of(cls, services: Iterable[Mapping[str, Any]] = (), tools: Iterable[Mapping[str, Any]] = ()) -> Catalog:
        """Return a catalogue of raw descriptors: the contents of their files as Python ``dict``.

        Raises:
            CatalogError: lists all errors in the descriptors, with ``services[0]`` or ``tools[0]`` in place of a file.
        """
        items = [Item(f"services[{index}]", "tool-service", "", raw) for index, raw in enumerate(services)]
        items += [Item(f"tools[{index}]", "tool", "", raw) for index, raw in enumerate(tools)]
        return load_items(items)

    def tool(self, name: str, version: str | Range | None = None) -> ToolDescriptor:
        """Return the tool with that name: the default version, or the highest in the range ``version`` if the default is not
        in it.

        Raises:
            UnknownToolError: there is none.
            VersionMismatchError: no version is in the range.
            ValueError: ``version`` is no range.
        """
        found = self.tools.get(name) if isinstance(name, str) else None
        if found is None:
            check_instance("tool", name, str, "the name of a tool, such as 'tell-joke'")
            raise UnknownToolError(name, find_near_names(name, self.tools), tuple(self.tools))
        if version is None:
            return found
        versions = self.versions(name)
        selected = select_version(found, versions, to_range(version))
        if selected is None:
            raise VersionMismatchError("tool", name, str(version), list_versions(versions))
        return selected

    def versions(self, name: str) -> tuple[ToolDescriptor, ...]:
        """Return all versions of a tool, highest first.

        Raises:
            UnknownToolError: there is no tool with that name.
        """
        default = self.tool(name)
        return self.versions_by_name.get(name) or (default,)

    def service(self, id: str) -> ServiceDescriptor:
        """Return the default version of the service with that id.

        Raises:
            UnknownServiceError: there is none.
        """
        found = self.services.get(id) if isinstance(id, str) else None
        if found is None:
            check_instance("service", id, str, "the id of a service, such as 'joke-service'")
            raise UnknownServiceError(id, find_near_names(id, self.services), tuple(self.services))
        return found

    def service_versions(self, id: str) -> tuple[ServiceDescriptor, ...]:
        """Return all versions of a service, highest first.

        Raises:
            UnknownServiceError: there is no service with that id.
        """
        default = self.service(id)
        return self.versions_by_id.get(id) or (default,)

    def iterate_tools(self) -> Iterator[ToolDescriptor]:
        """Iterate over all versions of all tools: by name in the order of loading, then the highest version first."""
        return chain.from_iterable(self.versions_by_name.values())

    def iterate_services(self) -> Iterator[ServiceDescriptor]:
        """Iterate over all versions of all services, in the same order."""
        return chain.from_iterable(self.versions_by_id.values())

    def service_of(self, tool: str | ToolDescriptor) -> ServiceDescriptor:
        """Return the service of a tool: the highest version that satisfies the tool's ``requires``, itself or with one of
        its instances; without ``requires`` the default version.

        Raises:
            UnknownToolError: there is no tool with that name.
            UnknownServiceError: the descriptor belongs to another catalogue, and its service is not in this one.
            VersionMismatchError: no version of the service satisfies ``requires``.
        """
        descriptor = tool if isinstance(tool, ToolDescriptor) else self.tool(tool)
        if descriptor.requires is None:
            return self.service(descriptor.service)
        versions = self.service_versions(descriptor.service)
        selected = select_service(versions, descriptor.requires)
        if selected is None:
            instances = [each for service in versions for each in service.instances]
            available = tuple(dict.fromkeys((*list_versions(versions), *list_versions(instances))))
            raise VersionMismatchError("tool service", descriptor.service, descriptor.requires, available)
        return selected

    def service_or_default(self, tool: ToolDescriptor) -> ServiceDescriptor:
        """Return the service of a tool, or its default version if no version satisfies the tool's ``requires``: for what is
        said about a tool that cannot be called now.

        Raises:
            UnknownServiceError: the descriptor belongs to another catalogue, and its service is not in this one.
        """
        return find_service_version(self.service_versions(tool.service), tool.requires)

    def source_of(self, name: str) -> str:
        """Return the id of the source of a tool.

        Raises:
            UnknownToolError: there is no tool with that name.
        """
        return self.sources.get(self.tool(name).name, self.source)

    @explain_keywords
    def list(
        self,
        *,
        category: str | None = None,
        tags_any: str | Iterable[str] = (),
        service: str | None = None,
        source: str | None = None,
        text: str = "",
        permission: str | None = None,
        groups: Iterable[str] | None = None,
        state: str | None = None,
        version: str | Range | None = None,
    ) -> tuple[ToolDescriptor, ...]:
        """Return the tools that meet all conditions, in the order of loading.

        Args:
            category: of the tool.
            tags_any: it has one of these tags, or this one; empty: any or none.
            service: id of its service.
            source: id of its source.
            text: part of its name, its description or one of its tags, in any case of letters.
            permission: a user needs it to call the tool, for the tool's own sake or its service's.
            groups, state: an agent in this state that asks for these groups is offered the tool; see
                ``ToolDescriptor.is_offered``. Both None: in any group and state. If one of them is given, the other has
                TrustGraph's default: the group ``default``, the state ``undefined``.
            version: a range. Of each tool the version that :meth:`tool` selects; a tool without one is left out. None: the
                default version.

        Raises:
            ValueError: ``version`` is no range.
        """
        tools: Iterable[ToolDescriptor] = self.tools.values()
        if version is not None:
            range = to_range(version)
            selected = (select_version(tool, self.versions(tool.name), range) for tool in tools)
            tools = (tool for tool in selected if tool is not None)
        if category is not None:
            tools = (tool for tool in tools if tool.category == category)
        if tags := as_set("tags_any", tags_any):
            tools = (tool for tool in tools if not tags.isdisjoint(tool.tags))
        if service is not None:
            tools = (tool for tool in tools if tool.service == service)
        if source is not None:
            tools = (tool for tool in tools if self.sources.get(tool.name, self.source) == source)
        if groups is not None or state is not None:
            wanted = None if groups is None else as_set("groups", groups)
            tools = (tool for tool in tools if tool.is_offered(wanted, state))
        if permission is not None:
            tools = (tool for tool in tools if permission in self.permissions_of(tool))
        if part := text.casefold():
            tools = (tool for tool in tools if part in _search_text(tool))
        return tuple(tools)

    def permissions_of(self, tool: ToolDescriptor) -> tuple[str, ...]:
        """Return all permissions that a user needs to call a tool: its own and its service's."""
        inherited = self.service_or_default(tool).permissions
        return tuple(dict.fromkeys((*tool.permissions, *inherited))) if inherited else tool.permissions

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a catalogue is immutable: load a new one instead")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a catalogue is immutable: load a new one instead")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalog):
            return NotImplemented
        return self.versions_by_id == other.versions_by_id and self.versions_by_name == other.versions_by_name

    def __hash__(self) -> int:
        return hash((self.services, self.tools))

    def __repr__(self) -> str:
        return f"<Catalog: {len(self.services)} services, {len(self.tools)} tools>"

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), source=self.source, sources=self.sources)
        return make, (tuple(self.iterate_services()), tuple(self.iterate_tools()))


def _group_versions(named: Iterable[tuple[str, D]]) -> dict[str, tuple[D, ...]]:
    """Return the versions of each name, highest first."""
    grouped: dict[str, list[D]] = {}
    for name, descriptor in named:
        grouped.setdefault(name, []).append(descriptor)
    found = {name: sort_versions(descriptors) for name, descriptors in grouped.items()}
    for name, versions in found.items():
        if len(versions) > 1 and len({each.version for each in versions}) != len(versions):
            raise ValueError(f"duplicate service id or tool name '{name}': give each its own, or its own version")
    return found


def _search_text(tool: ToolDescriptor) -> str:
    return "\0".join((tool.name, tool.description, *tool.tags)).casefold()


def load_items(items: Iterable[Item]) -> Catalog:
    """The catalogue that ``items`` make, services and tools in any order. Warnings go to the log ``dispatch.catalog``.

    Raises:
        CatalogError: there are mistakes; it lists every one.
    """
    return require_valid(*check_items(items))


def check_items(items: Iterable[Item], source: str = "code") -> tuple[Catalog | None, list[Problem]]:
    """The catalogue that ``items`` from ``source`` make, and everything that is to be said about them. With any error there
    is no catalogue. Never raises for what an item holds."""
    items = list(items)
    services = read_services(items)
    versions = services.definitions.by_name
    tools = read_tools(items, versions, services.unavailable)
    problems = [*services.problems, *tools.problems]
    if services.refused or tools.refused or any(isinstance(item.raw, Unreadable) for item in items):
        return None, problems
    flat = chain.from_iterable
    return Catalog(flat(versions.values()), flat(tools.definitions.by_name.values()), source=source), problems


# The differences between two catalogues.


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
    services = _compare(former.versions_by_id, new.versions_by_id)
    changed = frozenset(services.changed)
    return CatalogChanges(_compare(former.versions_by_name, new.versions_by_name, changed), services)


def _compare(
    former: Mapping[str, tuple[Any, ...]], new: Mapping[str, tuple[Any, ...]], services: frozenset[str] = frozenset()
) -> NameChanges:
    """Compare all versions of the entries; those of changed ``services`` have changed, too."""
    added, changed = [], []
    for name, versions in new.items():
        if name not in former:
            added.append(name)
        # Tuples compare their elements by identity first.
        elif versions != former[name] or (services and any(each.service in services for each in versions)):
            changed.append(name)
    return NameChanges(tuple(added), tuple(changed), tuple(name for name in former if name not in new))


# Fingerprints of definitions: whether a tool, or its service, is still the one that was approved.


def fingerprint(tool: ToolDescriptor, service: ServiceDescriptor) -> str:
    """Return the SHA-256 of a tool's definition, in hexadecimal digits.

    It covers what a model reads and where its calls go: the name, the description, the schemas (``arguments``,
    ``input-schema``, ``output-schema``), the service's id and topics, the config and the version. It does not cover the
    policy, the permissions and other keys by which an operator restricts the same tool, nor the service's instances, which
    come and go: see :func:`service_fingerprint`.
    """
    return hash_definition(tool_definition(tool, service))


def tool_definition(tool: ToolDescriptor, service: ServiceDescriptor) -> dict[str, object]:
    """Return what :func:`fingerprint` covers."""
    return {
        "name": tool.name,
        "description": tool.description,
        "arguments": msgspec.to_builtins(tool.arguments),
        "input-schema": tool.input_schema,
        "output-schema": tool.output_schema,
        "service": {"id": service.id, "request-queue": service.request_queue, "response-queue": service.response_queue},
        "config": tool.config,
        "version": tool.version,
    }


def service_fingerprint(service: ServiceDescriptor) -> str:
    """Return the SHA-256 of a service's definition, in hexadecimal digits.

    It covers the id, all topics with those of the instances, the config parameters and the version. It does not cover the
    policy, the permissions and the weights of instances.
    """
    return hash_definition(service_definition(service))


def service_definition(service: ServiceDescriptor) -> dict[str, object]:
    """Return what :func:`service_fingerprint` covers."""
    return {
        "id": service.id,
        "request-queue": service.request_queue,
        "response-queue": service.response_queue,
        "config-params": msgspec.to_builtins(service.config_params),
        "instances": [
            {key: value for key, value in each.items() if key != "weight"}
            for each in msgspec.to_builtins(service.instances)
        ],
        "version": service.version,
    }


def hash_definition(definition: Mapping[str, object]) -> str:
    """Return the fingerprint of what it covers."""
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# The conditions of lists of tools.


class ListConditions(TypedDict, total=False):
    """The arguments of :meth:`dispatch.Catalog.list`, which describes them."""

    category: str | None
    tags_any: Iterable[str]
    service: str | None
    source: str | None
    text: str
    permission: str | None
    groups: Iterable[str] | None
    state: str | None
    version: str | Range | None
