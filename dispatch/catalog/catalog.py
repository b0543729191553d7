"""The catalogue: one immutable snapshot of the services and tools there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dispatch._internal.suggestions import excerpt, listed, near_names, one_of
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.errors import Problem
from dispatch.catalog.frozen_json import FrozenDict
from dispatch.catalog.loader import Item, read_items, settle


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
            text += f" Did you mean {one_of(self.near)}?"
        if not self.known:
            return f"{text} No {self._what}s are loaded."
        return f"{text} Known {self._what}s: {listed(self.known)}."

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.near, self.known)


class UnknownToolError(_UnknownError):
    """No tool of that name. ``name`` was asked for, ``near`` are the names that were probably meant (best first),
    ``known`` are all of them. The text tells a model which names to use."""

    _what = "tool"


class UnknownServiceError(_UnknownError):
    """No tool service of that id; attributes as in :class:`UnknownToolError`."""

    _what = "tool service"


class Catalog:
    """An immutable snapshot of services and tools; every tool's service is in it.

    Attributes:
        services: by id, in the order of loading.
        tools: by name, in the order of loading.
        source: where it came from, in a word for metrics: ``directory``, ``code``.
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
        """A catalogue of descriptors that were checked before: see :meth:`of` for raw ones.

        Raises:
            ValueError: two services of one id, two tools of one name, or a tool without its service.
        """
        service_list, tool_list = list(services), list(tools)
        by_id = {service.id: service for service in service_list}
        by_name = {tool.name: tool for tool in tool_list}
        if len(by_id) != len(service_list) or len(by_name) != len(tool_list):
            raise ValueError("a service id or a tool name stands twice: give each its own")
        for tool in tool_list:
            if tool.service not in by_id:
                raise ValueError(f"the tool '{tool.name}' names the service '{tool.service}', which is not given")
        object.__setattr__(self, "services", FrozenDict(by_id))
        object.__setattr__(self, "tools", FrozenDict(by_name))
        object.__setattr__(self, "source", source)

    @classmethod
    def empty(cls) -> Catalog:
        """A catalogue without services and tools."""
        return cls()

    @classmethod
    def of(cls, services: Iterable[Mapping[str, Any]] = (), tools: Iterable[Mapping[str, Any]] = ()) -> Catalog:
        """A catalogue of raw descriptors, each written as in its file but as a Python ``dict``.

        Raises:
            CatalogError: there are mistakes; it lists all of them, with ``services[0]`` and ``tools[0]`` for files.
        """
        items = [Item(f"services[{index}]", "tool-service", "", raw) for index, raw in enumerate(services)]
        items += [Item(f"tools[{index}]", "tool", "", raw) for index, raw in enumerate(tools)]
        return load_items(items)

    def tool(self, name: str) -> ToolDescriptor:
        """The tool of that name.

        Raises:
            UnknownToolError: there is none.
        """
        found = self.tools.get(name)
        if found is None:
            raise UnknownToolError(name, near_names(name, self.tools), tuple(self.tools))
        return found

    def service(self, id: str) -> ServiceDescriptor:
        """The service of that id.

        Raises:
            UnknownServiceError: there is none.
        """
        found = self.services.get(id)
        if found is None:
            raise UnknownServiceError(id, near_names(id, self.services), tuple(self.services))
        return found

    def service_of(self, tool: str | ToolDescriptor) -> ServiceDescriptor:
        """The service behind a tool of this catalogue.

        Raises:
            UnknownToolError: there is no tool of that name.
            UnknownServiceError: the descriptor is of another catalogue, and its service is not here.
        """
        return self.service((self.tool(tool) if isinstance(tool, str) else tool).service)

    def list(
        self, *, category: str | None = None, tags_any: Iterable[str] = (), service: str | None = None
    ) -> tuple[ToolDescriptor, ...]:
        """The tools in the order of loading; only those of a category, with any of some tags, of a service."""
        tags = frozenset(tags_any)
        return tuple(
            tool
            for tool in self.tools.values()
            if (category is None or tool.category == category)
            and (not tags or not tags.isdisjoint(tool.tags))
            and (service is None or tool.service == service)
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a catalogue cannot be changed: load a new one instead")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a catalogue cannot be changed: load a new one instead")

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
    return settle(catalog, [*problems, *found])


def check_items(items: Iterable[Item], source: str = "code") -> tuple[Catalog | None, list[Problem]]:
    """The catalogue that ``items`` from ``source`` make, and everything that is to be said about them. With any error there
    is no catalogue. Never raises for what an item holds."""
    contents, problems = read_items(items)
    return None if contents is None else Catalog(*contents, source=source), problems
