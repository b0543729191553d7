"""Reads the items of one source as descriptors. An item that did not change is not read again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.errors import CatalogError, Problem
from dispatch.catalog.frozen_json import join_path
from dispatch.catalog.readers.item import (
    KINDS,
    Item,
    ReadItem,
    Services,
    Unavailable,
    Unreadable,
    find_service,
    read_service_item,
    read_tool_item,
    refuse_item,
)
from dispatch.catalog.version_selection import select_default, sort_versions
from dispatch.policy import DEFAULT_POLICY, Policy

Result = TypeVar("Result")
Key = tuple[str, str, str]

_log = logging.getLogger("dispatch.catalog")


class Contents(NamedTuple):
    """The valid descriptors of one source."""

    services: list[ServiceDescriptor]
    tools: list[ToolDescriptor]


def read_items(items: Iterable[Item]) -> tuple[Contents | None, list[Problem]]:
    """Read the descriptors in ``items``, and report every problem in them. With any error there are no contents. The
    content of an item never raises an exception."""
    reader = ItemReader(items := list(items))
    services: dict[str, list[ServiceDescriptor]] = {}
    for each in reader.read_services():
        if each.service is not None:
            services.setdefault(each.service.id, []).append(each.service)
    tools = [each.tool for each in reader.read_tools(services) if each.tool is not None]
    is_readable = not any(isinstance(item.raw, Unreadable) for item in items)
    if reader.refused or not is_readable:
        return None, reader.problems
    return Contents([each for versions in services.values() for each in versions], tools), reader.problems


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


class ItemReader:
    """Reads the items of one source: services first, then tools with the services in force, which may be of other sources.

    Args:
        items: of the source.
        former: the reader of its former items: an item that did not change is not read again, and with ``keeps_valid`` an
            item that has become invalid is replaced by its last valid version.
        keeps_valid: see ``former``.
        policy: defaults under the policies of services and tools.

    Attributes:
        problems: everything that is to be said about the items.
        refused: the items that are invalid, each with its problems.
        others: tools of other runtimes.
    """

    def __init__(
        self,
        items: Sequence[Item],
        former: ItemReader | None = None,
        *,
        keeps_valid: bool = False,
        policy: Policy = DEFAULT_POLICY,
    ) -> None:
        self._policy = policy
        is_same_policy = former is not None and policy == former._policy
        self._items = items
        self._read: dict[Key, ReadItem] = {}
        self._uses: dict[Key, ServiceDescriptor | None] = {}
        self._former_read = former._read if former is not None and is_same_policy else {}
        self._former_uses = former._uses if former is not None and is_same_policy else {}
        self._former_valid = former._valid if former is not None and keeps_valid else {}
        self._valid: dict[Key, ReadItem] = {}
        self._refused_names: set[str] = set()
        self._ids_by_key: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.refused: list[ReadItem] = []
        self.others: list[ReadItem] = []
        for item in items:
            if item.kind not in KINDS:
                kinds = " or ".join(KINDS)
                self._add(
                    refuse_item(item, "", f"{excerpt(repr(item.kind))} is not a kind of descriptor", f"use {kinds}")
                )

    def read_services(self) -> Iterator[ReadItem]:
        """Yield the services that are valid, or were before."""
        origins = _Origins("id", "service id")
        for index, item in enumerate(self._items):
            if item.kind != "tool-service":
                continue
            if isinstance(item.raw, Unreadable):
                self._refused_names.add(item.key_name)
                continue
            key = _key(item)
            read = self._former_read.get(key)
            if read is None or not _is_same(read.item, item):
                read = read_service_item(item, self._policy)
            self._read[key] = read
            valid = self._choose(key, origins.check(index, read))
            if valid is None or not (valid is read or origins.claim_name(index, valid)):
                self._refused_names |= {read.name, item.key_name or read.name}
            else:
                self._ids_by_key.setdefault(item.key_name, valid.name)
                yield valid

    def read_tools(self, services: Services) -> Iterator[ReadItem]:
        """Yield the tools that are valid with ``services``, or were before. Call it after :meth:`read_services`."""
        origins = _Origins("name", "tool name")
        in_force: list[ReadItem] = []
        unavailable = Unavailable(frozenset(self._refused_names), self._ids_by_key)
        for index, item in enumerate(self._items):
            if item.kind != "tool" or isinstance(item.raw, Unreadable):
                continue
            key = _key(item)
            read = self._former_read.get(key)
            uses = find_service(item, services)
            is_same = read is not None and _is_same(read.item, item) and uses is not None
            if read is None or not is_same or self._former_uses.get(key) is not uses:
                read = read_tool_item(item, services, unavailable, self._policy)
            self._read[key], self._uses[key] = read, uses
            if read.other_type:
                self._add(read)
                self.others.append(read)
                continue
            valid = self._choose(key, origins.check(index, read), services)
            if valid is not None and valid.tool is not None and (valid is read or origins.claim_name(index, valid)):
                in_force.append(valid)
                yield valid
        self.problems += _check_rollouts(in_force)

    def _choose(self, key: Key, read: ReadItem, services: Services | None = None) -> ReadItem | None:
        """Report ``read`` and return it; or its last valid version, if it is invalid and that may be used."""
        self._add(read)
        if not read.is_refused:
            self._valid[key] = read
            return read
        last = self._former_valid.get(key)
        if last is not None and services is not None:
            last = read_tool_item(last.item, services, base=self._policy)
            if last.tool is None:
                return None
        if last is not None:
            self._valid[key] = last
        return last

    def _add(self, read: ReadItem) -> None:
        self.problems += read.problems
        if read.is_refused:
            self.refused.append(read)


def _key(item: Item) -> Key:
    return item.kind, item.namespace, item.key or item.origin


def _is_same(one: Item, other: Item) -> bool:
    # In Python 1 == True == 1.0; in JSON these are three values.
    return one is other or (one == other and repr(one.raw) == repr(other.raw))


def _check_rollouts(read: Sequence[ReadItem]) -> Iterator[Problem]:
    """Yield a warning for each share of a rollout that has no effect, because versions are separate items."""
    versions: dict[str, list[ReadItem]] = {
        each.name: [] for each in read if each.tool is not None and each.tool.rollout
    }
    for each in read if versions else ():
        if each.name in versions:
            versions[each.name].append(each)
    for name, items in versions.items():
        tools = [each.tool for each in items if each.tool is not None]
        known = {tool.version for tool in tools}
        default = select_default(sort_versions(tools))
        for each in items:
            for target in each.tool.rollout if each.tool is not None else ():
                at = join_path("rollout", target)
                if each.tool is not default:
                    instead = default.version or "the one without a version"
                    problem = f"the default version is {instead}, so these shares are ignored"
                    yield Problem(
                        each.item.origin, "rollout", problem, "move 'rollout' to the default version", "warning"
                    )
                    break
                if target not in known:
                    problem = (
                        f"there is no version {target} of '{excerpt(name)}', so its share stays on the default version"
                    )
                    yield Problem(each.item.origin, at, problem, "add that version, or remove the share", "warning")


class _Origins:
    """Where each version of an id or a name was found first, by the index of the item."""

    def __init__(self, key: str, what: str) -> None:
        self._key = key
        self._what = what
        self._first: dict[tuple[str, str | None], tuple[int, str]] = {}

    def check(self, index: int, read: ReadItem) -> ReadItem:
        """Return ``read``, refused if an earlier item has the same name and version."""
        if self.claim_name(index, read) or read.is_refused:
            return read
        _, first = self._first[read.name, read.version]
        of_version = f" with the version '{excerpt(read.version)}'" if read.version else ""
        problem = Problem(
            read.item.origin,
            self._key,
            f"the {self._what} '{excerpt(read.name)}'{of_version} is already used by {first}",
            f"give one of the two another {self._key} or version, or remove it",
        )
        return read._replace(service=None, tool=None, problems=(*read.problems, problem), is_refused=True)

    def claim_name(self, index: int, read: ReadItem) -> bool:
        """Claim the name and version of ``read`` for the item at ``index``; return False if another item has them."""
        if not read.name:
            return True
        first, _ = self._first.setdefault((read.name, read.version), (index, read.item.origin))
        return first == index
