"""Loads raw descriptors from any source: the contents of a catalogue, or every problem in them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

from dispatch._internal.suggestions import excerpt, find_near_names, join_names
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.errors import CatalogError, Problem, Report
from dispatch.catalog.frozen_json import describe_kind, freeze_json
from dispatch.catalog.readers.service import read_service
from dispatch.catalog.readers.tool import read_tool

Result = TypeVar("Result")

_log = logging.getLogger("dispatch.catalog")

KINDS: Final = ("tool-service", "tool")
"""Kinds of items: TrustGraph's config types, and the names of the folders."""


class Unreadable:
    """Content of an item that its source could not read and has reported, so that tools of a service whose file has a syntax
    error are not reported as tools without a service. With the key ``""`` it stands for any number of items."""


class Item(NamedTuple):
    """A raw descriptor as a source delivers it.

    Attributes:
        origin: path or position for messages, such as ``tools[2]``.
        kind: one of :data:`KINDS`.
        key: the key under which it is stored (a file's stem), the default of its id or name; ``""``: none.
        raw: the descriptor as JSON values; or an :class:`Unreadable`.
        namespace: prefix of its name or id, and of the service that it refers to: ``crm`` makes ``find`` into ``crm-find``.
    """

    origin: str
    kind: str
    key: str
    raw: object
    namespace: str = ""


class Contents(NamedTuple):
    """The valid descriptors of one source."""

    services: list[ServiceDescriptor]
    tools: list[ToolDescriptor]


def read_items(items: Iterable[Item]) -> tuple[Contents | None, list[Problem]]:
    """Read the descriptors in ``items``, and report every problem in them. With any error there are no contents. The
    content of an item never raises an exception."""
    return _Loader().load(list(items))


def require_valid(result: Result | None, problems: list[Problem]) -> Result:
    """Return ``result`` if it may be used, and log its warnings.

    Raises:
        CatalogError: there is none, or an error is among ``problems``.
    """
    if result is None or any(problem.severity == "error" for problem in problems):
        raise CatalogError(problems)
    for problem in problems:
        if problem.severity == "warning":
            _log.warning("%s", problem)
    return result


class _Loader:
    def __init__(self) -> None:
        self._services: dict[str, ServiceDescriptor] = {}
        self._tools: dict[str, ToolDescriptor] = {}
        self._id_origins: dict[str, str] = {}
        self._name_origins: dict[str, str] = {}
        self._ids_by_key: dict[str, str] = {}
        # Ids and keys of services that have errors; "" if not even the id of one is known.
        self._invalid: set[str] = set()
        self._problems: list[Problem] = []
        self._failed = False

    def load(self, items: list[Item]) -> tuple[Contents | None, list[Problem]]:
        for item in items:
            if item.kind not in KINDS:
                report = Report(item.origin)
                report.add_error(
                    "", f"{excerpt(repr(item.kind))} is not a kind of descriptor", f"use {' or '.join(KINDS)}"
                )
                self._add_report(report)
        for item in items:
            if item.kind == "tool-service":
                self._load_service(item)
        for item in items:
            if item.kind == "tool":
                self._load_tool(item)
        if self._failed:
            return None, self._problems
        return Contents([*self._services.values()], [*self._tools.values()]), self._problems

    def _load_service(self, item: Item) -> None:
        if isinstance(item.raw, Unreadable):
            self._invalid.add(item.key)
            self._failed = True
            return
        report = Report(item.origin)
        raw = _object(item.raw, report)
        if raw is None:
            self._invalid.add(item.key)
        else:
            service = read_service(raw, item.key, report)
            first = self._id_origins.setdefault(service.id, item.origin)
            if service.id and first != item.origin:
                report.add_error(
                    "id",
                    f"the service id '{excerpt(service.id)}' is already used by {first}",
                    "give one of the two another id, or remove it",
                )
            if report.has_errors:
                self._invalid |= {service.id, item.key or service.id}
            else:
                self._services[service.id] = service
                self._ids_by_key.setdefault(item.key, service.id)
        self._add_report(report)

    def _load_tool(self, item: Item) -> None:
        if isinstance(item.raw, Unreadable):
            self._failed = True
            return
        report = Report(item.origin)
        raw = _object(item.raw, report)
        if raw is not None and self._is_tool_service(raw, report):
            service_id = raw.get("service")
            service = self._services.get(service_id) if isinstance(service_id, str) else None
            tool = read_tool(raw, item.key, service, report)
            if service is None and tool.service.strip() and self._invalid.isdisjoint((tool.service, "")):
                self._unknown_service(tool.service, report)
            first = self._name_origins.setdefault(tool.name, item.origin)
            if tool.name and first != item.origin:
                report.add_error(
                    "name",
                    f"the tool name '{excerpt(tool.name)}' is already used by {first}",
                    "give one of the two another name, or remove it",
                )
            if not report.has_errors:
                self._tools[tool.name] = tool
        self._add_report(report)

    def _is_tool_service(self, raw: dict[str, Any], report: Report) -> bool:
        tool_type = raw.get("type")
        if tool_type == "tool-service":
            return True
        fix = 'write "type": "tool-service" if a tool service does its work'
        if tool_type is None:
            report.add_error("type", "the required key 'type' is missing", 'add "type": "tool-service"')
            return True  # so that its other problems are reported in the same run
        if isinstance(tool_type, str):
            # Tools of other runtimes are in the same folder: only a probable misspelling deserves a warning.
            add = report.add_warning if find_near_names(tool_type, ("tool-service",), 1) else report.add_info
            add("type", f"a tool of the type '{excerpt(tool_type)}' is not dispatch's: it is ignored", fix)
            return False
        report.add_error("type", f"'type' is {describe_kind(tool_type)}, not a text", 'write "type": "tool-service"')
        return True

    def _unknown_service(self, service_id: str, report: Report) -> None:
        by_key = self._ids_by_key.get(service_id)
        near = find_near_names(service_id, [*self._services, *self._invalid], 1)
        if by_key is not None:
            fix = f'write "service": "{excerpt(by_key)}": that is the id in the item \'{excerpt(service_id)}\''
        elif near:
            fix = f'write "service": "{excerpt(near[0])}"'
        else:
            fix = f"add a tool service with the id '{excerpt(service_id)}'"
        if self._services and by_key is None:
            fix += f"; known services: {join_names(tuple(self._services))}"
        report.add_error("service", f"there is no tool service '{excerpt(service_id)}'", fix)

    def _add_report(self, report: Report) -> None:
        self._failed = self._failed or report.has_errors
        self._problems += report.problems


def _object(raw: object, report: Report) -> dict[str, Any] | None:
    value = freeze_json(raw, report)
    if isinstance(value, dict):
        return value
    fix = 'write one object: {"id": …} for a service, {"type": "tool-service", "name": …} for a tool'
    if isinstance(value, str) and value.lstrip().startswith("{"):
        fix = "remove the quotes: this is JSON inside a JSON text"
    if not report.has_errors:
        report.add_error("", f"the descriptor is {describe_kind(value)}, not an object", fix)
    return None
