"""The catalogue: an immutable snapshot of services and tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dispatch._internal.suggestions import excerpt, find_near_names, join_alternatives, join_names
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.errors import Problem
from dispatch.catalog.frozen_json import FrozenDict
from dispatch.catalog.loader import read_items, require_valid
from dispatch.catalog.readers.item import Item


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


class Catalog:
    """An immutable snapshot of services and tools; every tool's service is in it.

    Attributes:
        services: by id, in the order of loading.
        tools: by name, in the order of loading.
        source: label of the source in metrics: ``directory``, ``code``.
    """

    __slots__ = ("services", "source", "tools")

    services: Mapping[str, ServiceDescriptor]
    tools: Mapping[str, ToolDescriptor]
    source: str

    def __init__(
        self,
        services: Iterable[ServiceDescriptor] = (),
        tools: Iterable[ToolDescriptor] = (),
        *,
        source: str = "code",
    ) -> None:
        """Make a catalogue of checked descriptors; :meth:`of` takes raw ones.

        Raises:
            ValueError: two services with one id, two tools with one name, or a tool without its service.
        """
        service_list, tool_list = list(services), list(tools)
        by_id = {service.id: service for service in service_list}
        by_name = {tool.name: tool for tool in tool_list}
        if len(by_id) != len(service_list) or len(by_name) != len(tool_list):
            raise ValueError("duplicate service id or tool name: give each its own")
        for tool in tool_list:
            if tool.service not in by_id:
                raise ValueError(f"the tool '{tool.name}' refers to the service '{tool.service}', which is missing")
        object.__setattr__(self, "services", FrozenDict(by_id))
        object.__setattr__(self, "tools", FrozenDict(by_name))
        object.__setattr__(self, "source", source)

    @classmethod
    def empty(cls) -> Catalog:
        """Return a catalogue without services and tools."""
        return cls()

    @classmethod
    def of(cls, services: Iterable[Mapping[str, Any]] = (), tools: Iterable[Mapping[str, Any]] = ()) -> Catalog:
        """Return a catalogue of raw descriptors: the contents of their files as Python ``dict``.

        Raises:
            CatalogError: lists all errors in the descriptors, with ``services[0]`` or ``tools[0]`` in place of a file.
        """
        items = [Item(f"services[{index}]", "tool-service", "", raw) for index, raw in enumerate(services)]
        items += [Item(f"tools[{index}]", "tool", "", raw) for index, raw in enumerate(tools)]
        return load_items(items)

    def tool(self, name: str) -> ToolDescriptor:
        """Return the tool with that name.

        Raises:
            UnknownToolError: there is none.
        """
        found = self.tools.get(name)
        if found is None:
            raise UnknownToolError(name, find_near_names(name, self.tools), tuple(self.tools))
        return found

    def service(self, id: str) -> ServiceDescriptor:
        """Return the service with that id.

        Raises:
            UnknownServiceError: there is none.
        """
        found = self.services.get(id)
        if found is None:
            raise UnknownServiceError(id, find_near_names(id, self.services), tuple(self.services))
        return found

    def service_of(self, tool: str | ToolDescriptor) -> ServiceDescriptor:
        """Return the service of a tool.

        Raises:
            UnknownToolError: there is no tool with that name.
            UnknownServiceError: the descriptor belongs to another catalogue, and its service is not in this one.
        """
        return self.service((self.tool(tool) if isinstance(tool, str) else tool).service)

    def list(
        self, *, category: str | None = None, tags_any: Iterable[str] = (), service: str | None = None
    ) -> tuple[ToolDescriptor, ...]:
        """Return the tools in the order of loading; only those of a category, a service, or with any of some tags."""
        tags = frozenset(tags_any)
        return tuple(
            tool
            for tool in self.tools.values()
            if (category is None or tool.category == category)
            and (not tags or not tags.isdisjoint(tool.tags))
            and (service is None or tool.service == service)
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a catalogue is immutable: load a new one instead")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a catalogue is immutable: load a new one instead")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalog):
            return NotImplemented
        return self.services == other.services and self.tools == other.tools

    def __hash__(self) -> int:
        return hash((self.services, self.tools))

    def __repr__(self) -> str:
        return f"<Catalog: {len(self.services)} services, {len(self.tools)} tools>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(self.services.values()), tuple(self.tools.values()))


def load_items(items: Iterable[Item], problems: Iterable[Problem] = ()) -> Catalog:
    """The catalogue that ``items`` make. Warnings go to the log ``dispatch.catalog``.

    Args:
        items: the descriptors, services and tools in any order.
        problems: what the source has already found.

    Raises:
        CatalogError: there are mistakes, here or among ``problems``; it lists every one.
    """
    catalog, found = check_items(items)
    return require_valid(catalog, [*problems, *found])


def check_items(items: Iterable[Item], source: str = "code") -> tuple[Catalog | None, list[Problem]]:
    """The catalogue that ``items`` from ``source`` make, and everything that is to be said about them. With any error there
    is no catalogue. Never raises for what an item holds."""
    contents, problems = read_items(items)
    return None if contents is None else Catalog(*contents, source=source), problems
