"""Items as sources deliver them, and the reading of one item as a descriptor."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dispatch._internal.suggestions import excerpt, find_near_names, join_names
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.errors import Problem, Report
from dispatch.catalog.frozen_json import describe_kind, freeze_json
from dispatch.catalog.readers.item_key import ItemKey
from dispatch.catalog.readers.parsing import DocumentError, parse_json
from dispatch.catalog.readers.service import read_service
from dispatch.catalog.readers.tool import read_tool
from dispatch.catalog.version_selection import find_service_version
from dispatch.policy import DEFAULT_POLICY, Policy

_log = logging.getLogger("dispatch.catalog")

KINDS: Final = ("tool-service", "tool")
"""Kinds of items: TrustGraph's config types, and the names of the folders."""

_SCHEMAS: Final = ("input-schema", "output-schema")

Services = Mapping[str, Sequence[ServiceDescriptor]]
"""The versions of each service by id, in any order."""


class Unreadable:
    """Content of an item that its source could not read and has reported, so that tools of a service whose file has a syntax
    error are not reported as tools without a service. With the key ``""`` it stands for any number of items."""


class Refused(msgspec.Struct, frozen=True):
    """Content of a tool that its source refuses, with the reasons."""

    problems: tuple[Problem, ...]


# Items and readings form no cycles: gc=False excludes them from garbage collection, whose longest pause grows with the
# number of objects and stops every thread.


class Item(msgspec.Struct, frozen=True, gc=False):
    """A raw descriptor as a source delivers it.

    Attributes:
        origin: path or position for messages, such as ``tools[2]``.
        kind: one of :data:`KINDS`.
        key: the key under which it is stored (a file's stem): ``NAME`` or ``NAME@VERSION``, the defaults of its id or name
            and of its version; ``""``: none.
        raw: the descriptor as JSON values; or an :class:`Unreadable`, or a :class:`Refused`.
        namespace: prefix of its name or id, and of the service that it refers to: ``crm`` makes ``find`` into ``crm-find``.
        is_foreign: its schemas are another system's, whose authors do not read the reports: a schema is translated or
            widened, and no reason to refuse the tool.
    """

    origin: str
    kind: str
    key: str
    raw: object
    namespace: str = ""
    is_foreign: bool = False

    @property
    def key_name(self) -> str:
        """The name in its key, with the prefix of its namespace; ``""``: it has no key."""
        return self.add_namespace(ItemKey.parse(self.key).name)

    def add_namespace(self, name: str) -> str:
        """Return ``name`` with the prefix of the item's namespace."""
        return f"{self.namespace}-{name}" if self.namespace and name else name


class ReadItem(msgspec.Struct, frozen=True, gc=False):
    """What an item holds.

    Attributes:
        item: as it was delivered.
        service, tool: the descriptor; both None: the item is refused, or a tool of another runtime.
        problems: everything that is to be said about the item.
        is_refused: one of them is an error.
        name: the id or name, with its namespace, as far as it could be read.
        version: of the descriptor, as far as it could be read; None: it has none.
        other_type: type of a tool that another runtime executes; empty: dispatch's own.
    """

    item: Item
    service: ServiceDescriptor | None
    tool: ToolDescriptor | None
    problems: tuple[Problem, ...]
    is_refused: bool
    name: str = ""
    other_type: str = ""
    version: str | None = None


class Unavailable(NamedTuple):
    """Names that a tool may refer to by mistake, or that are not in force.

    Attributes:
        refused: ids and keys of services that have errors, ``""`` for unknown ones: a tool that refers to one of them has no
            error of its own.
        ids_by_key: ids of services by the keys of their items.
    """

    refused: frozenset[str] = frozenset()
    ids_by_key: Mapping[str, str] = {}


NONE_UNAVAILABLE: Final = Unavailable()


def refuse_item(item: Item, key: str, problem: str, fix: str) -> ReadItem:
    """Return ``item`` as refused for one reason."""
    return ReadItem(item, None, None, (Problem(item.origin, key, problem, fix),), True)


def read_service_item(item: Item, base: Policy = DEFAULT_POLICY) -> ReadItem:
    """Read a tool service; ``base``: defaults under its policy. The content of an item never raises an exception."""
    report = Report(item.origin)
    raw = _object(item.raw, report)
    if raw is None:
        return ReadItem(item, None, None, tuple(report.problems), True, item.key_name)
    service = read_service(raw, item.key, report, item.namespace, base)
    problems = tuple(report.problems)
    if report.has_errors:
        return ReadItem(item, None, None, problems, True, service.id, version=service.version)
    return ReadItem(item, service, None, problems, False, service.id, version=service.version)


def read_tool_item(
    item: Item, services: Services, unavailable: Unavailable = NONE_UNAVAILABLE, base: Policy = DEFAULT_POLICY
) -> ReadItem:
    """Read a tool. The content of an item never raises an exception.

    Args:
        services: in force.
        unavailable: other names of services, for the report.
        base: defaults under the policies of the service and the tool.
    """
    if isinstance(item.raw, Refused):
        return ReadItem(item, None, None, item.raw.problems, True, item.key_name)
    report = Report(item.origin)
    raw = _object(item.raw, report)
    if raw is None:
        return ReadItem(item, None, None, tuple(report.problems), True, item.key_name)
    if not _is_tool_service(raw, report):
        other, given = raw.get("type"), raw.get("name")
        name = item.add_namespace(given) if isinstance(given, str) else item.key_name
        problems = tuple(report.problems)
        return ReadItem(item, None, None, problems, report.has_errors, name, other if isinstance(other, str) else "")
    service = find_service(item, services)
    tool = read_tool(raw, item.key, service, report, item.namespace, base, is_foreign=item.is_foreign)
    meant = {tool.service, item.add_namespace(tool.service), ""}
    if service is None and tool.service.strip() and unavailable.refused.isdisjoint(meant):
        _report_unknown_service(item, tool.service, services, unavailable, report)
    problems = tuple(report.problems)
    if report.has_errors:
        return ReadItem(item, None, None, problems, True, tool.name, version=tool.version)
    if item.is_foreign:
        _log_widened(item, problems)
    return ReadItem(item, None, tool if service else None, problems, False, tool.name, version=tool.version)


def _log_widened(item: Item, problems: Sequence[Problem]) -> None:
    widened = [each for each in problems if each.severity == "warning" and each.key.startswith(_SCHEMAS)]
    if widened:
        first = widened[0]
        more = f" ({len(widened) - 1:,} more)" if len(widened) > 1 else ""
        _log.warning("%s is used with a part of its schema: %s: %s%s", item.origin, first.key, first.problem, more)


def find_service(item: Item, services: Services) -> ServiceDescriptor | None:
    """Return the service in force that a tool refers to, in the version that it requires; None: there is none.

    The service in the tool's namespace precedes the one without a prefix.
    """
    raw = item.raw
    if not isinstance(raw, (dict, Mapping)):  # perf: dict first, a check of Mapping costs ten times as much
        return None
    id = raw.get("service")
    if not isinstance(id, str):
        return None
    versions = services.get(item.add_namespace(id)) or services.get(id)
    if not versions:
        return None
    requires = raw.get("requires")
    return find_service_version(versions, requires if isinstance(requires, str) else None)


def _is_tool_service(raw: dict[str, Any], report: Report) -> bool:
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


def _report_unknown_service(
    item: Item, service_id: str, services: Services, unavailable: Unavailable, report: Report
) -> None:
    by_key = unavailable.ids_by_key.get(item.add_namespace(service_id)) or unavailable.ids_by_key.get(service_id)
    if by_key is not None and item.namespace:
        by_key = by_key.removeprefix(f"{item.namespace}-")
    near = find_near_names(service_id, [*services, *unavailable.refused], 1)
    if by_key is not None:
        fix = f'write "service": "{excerpt(by_key)}": that is the id in the item \'{excerpt(service_id)}\''
    elif near:
        fix = f'write "service": "{excerpt(near[0])}"'
    else:
        fix = f"add a tool service with the id '{excerpt(service_id)}'"
    if services and by_key is None:
        fix += f"; known services: {join_names(tuple(services))}"
    report.add_error("service", f"there is no tool service '{excerpt(service_id)}'", fix)


def _object(raw: object, report: Report) -> dict[str, Any] | None:
    value = freeze_json(raw, report)
    if isinstance(value, dict):
        return value
    fix = 'write one object: {"id": …} for a service, {"type": "tool-service", "name": …} for a tool'
    if isinstance(value, str) and value.lstrip().startswith("{"):
        fix = "remove the quotes: this is JSON inside a JSON text"
        try:
            parse_json(value)
        except DocumentError as error:  # a text that its source could not parse
            for key, problem, correction in error.mistakes:
                report.add_error(key, problem, correction)
    if not report.has_errors:
        report.add_error("", f"the descriptor is {describe_kind(value)}, not an object", fix)
    return None
