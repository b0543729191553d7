"""Reads the items of one source as descriptors. An item that did not change is not read again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from dispatch._internal import excerpt
from dispatch.catalog.descriptors import CatalogError, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.items import (
    KINDS,
    NONE_UNAVAILABLE,
    Item,
    ReadItem,
    Services,
    Unavailable,
    Unreadable,
    find_service,
    read_service_item,
    read_tool_item,
)
from dispatch.catalog.versions import select_default, sort_versions
from dispatch.documents import Problem, join_path
from dispatch.policy import DEFAULT_POLICY, Policy
from dispatch.telemetry.observers import HeldChange

Result = TypeVar("Result")
Key = tuple[str, str, str]
Renew = Callable[[ReadItem], ReadItem]

_log = logging.getLogger("dispatch.catalog")


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


class _Entry(msgspec.Struct, frozen=True, gc=False):
    """What an item holds.

    Attributes:
        key: that the versions of an item share.
        read: the item as it is now.
        uses: the service to which a tool refers; None: it is unknown.
        valid: the item, or its last valid version; None: it was never valid.
    """

    key: Key
    read: ReadItem
    uses: ServiceDescriptor | None = None
    valid: ReadItem | None = None


D = TypeVar("D", ServiceDescriptor, ToolDescriptor)


class HeldDefinition(HeldChange, frozen=True):
    """A changed definition that waits for approval, with what changes.

    Attributes:
        key: ``tool/NAME`` or ``tool-service/ID``.
        before: what the fingerprints of the definitions in force cover, as JSON, a line each; empty: there is none.
        after: what the one of the definition that waits covers.
    """

    key: str
    before: str
    after: str


class Definitions(Generic[D]):
    """The descriptors of one kind of one source. Unchanged after its creation.

    Attributes:
        by_name: the versions of each name, in the order of the source.
        origins: origin of the first version of each name.
        held: changes that wait for approval.
    """

    def __init__(self, found: Iterable[tuple[str, str, D]] = ()) -> None:
        """Group ``found``: name, origin and descriptor of each."""
        self.by_name: dict[str, tuple[D, ...]] = {}
        self.origins: dict[str, str] = {}
        self.held: list[HeldDefinition] = []
        by_name, origins = self.by_name, self.origins
        for name, origin, descriptor in found:
            if name in by_name:
                by_name[name] += (descriptor,)
            else:
                by_name[name] = (descriptor,)
                origins[name] = origin


class Reading:
    """What the items of one kind of one source hold. Unchanged after its creation, except by the functions of this module
    that make it.

    Args:
        items: of the source.
        policy: defaults under the policies of services and tools.
        former: the reading of its former items: an item that did not change is not read again.
        keeps_valid: an item that has become invalid is replaced by its last valid version.

    Attributes:
        in_force: the valid items, or their last valid versions.
        problems: everything that is to be said about the items.
        refused: the items that are invalid, each with its problems.
        others: tools of other runtimes.
        services: the services of which tools were read.
        unavailable: names of services that a tool may refer to by mistake.
        reusable: former entries by the identity of their items; none if the policy is another one.
    """

    def __init__(
        self, items: Sequence[Item], policy: Policy, former: Reading | None = None, *, keeps_valid: bool = False
    ) -> None:
        self.items = items
        self.policy = policy
        self.in_force: list[ReadItem] = []
        self.problems: list[Problem] = []
        self.refused: list[ReadItem] = []
        self.others: list[ReadItem] = []
        self.services: Services = {}
        self.unavailable = NONE_UNAVAILABLE
        self.reusable = former._entries if former is not None and former.policy == policy else {}
        self._former = former
        self._keeps_valid = keeps_valid
        self._claimed: dict[tuple[str, str | None], tuple[int, str]] = {}
        """Index and origin of the item that has each name and version."""
        self._entries: dict[int, _Entry] = {}
        """By the identities of ``items``, which live as long."""
        self._by_key: dict[Key, _Entry] = {}

    @cached_property
    def definitions(self) -> Definitions[Any]:
        """The descriptors in force."""
        return Definitions((each.name, each.item.origin, each.service or each.tool) for each in self.in_force)

    def find_equal(self, item: Item, key: Key) -> _Entry | None:
        """Return the reusable entry of an equal item."""
        if self._former is None or not self.reusable:
            return None
        found = self.reusable.get(id(item)) or self._former._find(key)
        return found if found is not None and _is_same(found.read.item, item) else None

    def _find(self, key: Key) -> _Entry | None:
        if not self._by_key:
            self._by_key = {entry.key: entry for entry in self._entries.values()}
        return self._by_key.get(key)

    def settle(self, index: int, item: Item, entry: _Entry, renew: Renew) -> ReadItem | None:
        """Put an item in force, otherwise its last valid version. Return what is in force; None: nothing.

        Args:
            renew: reads the last valid version with the services that are in force now.
        """
        read = self._check_name(index, entry.read)
        found = valid = read if read.service or read.tool else None  # not of a valid tool whose service is refused
        if found is None and self._former is not None and self._keeps_valid:
            former = self._former._find(entry.key)
            valid = None if former is None else former.valid
            now = None if valid is None else renew(valid)
            if now is not None and (now.service or now.tool) and self._claim_name(index, now):
                found = valid = now
        self._entries[id(item)] = entry if entry.valid is valid else _Entry(entry.key, entry.read, entry.uses, valid)
        self.add(read)
        if found is not None:
            self.in_force.append(found)
        return found

    def _check_name(self, index: int, read: ReadItem) -> ReadItem:
        """Return ``read``, refused if an earlier item has the same name and version."""
        if self._claim_name(index, read) or read.is_refused:
            return read
        _, first = self._claimed[read.name, read.version]
        of_version = f" with the version '{excerpt(read.version)}'" if read.version else ""
        key, what = ("name", "tool name") if read.item.kind == "tool" else ("id", "service id")
        problem = Problem(
            read.item.origin,
            key,
            f"the {what} '{excerpt(read.name)}'{of_version} is already used by {first}",
            f"give one of the two another {key} or version, or remove it",
        )
        problems = (*read.problems, problem)
        return msgspec.structs.replace(read, service=None, tool=None, problems=problems, is_refused=True)

    def _claim_name(self, index: int, read: ReadItem) -> bool:
        """Claim the name and version of ``read`` for the item at ``index``; return False if another item has them."""
        if not read.name:
            return True
        first, _ = self._claimed.setdefault((read.name, read.version), (index, read.item.origin))
        return first == index

    def add(self, read: ReadItem) -> None:
        """Record the problems of an item."""
        self.problems += read.problems
        if read.is_refused:
            self.refused.append(read)

    def add_other(self, item: Item, entry: _Entry) -> None:
        """Record a tool of another runtime."""
        self._entries[id(item)] = entry
        self.add(entry.read)
        self.others.append(entry.read)

    def seal(self) -> Reading:
        """Release what only the reading itself needed; return it."""
        self._former, self.reusable, self._claimed = None, {}, {}
        return self


def read_services(
    items: Sequence[Item], policy: Policy = DEFAULT_POLICY, former: Reading | None = None, *, keeps_valid: bool = False
) -> Reading:
    """Read the services among ``items``; see :class:`Reading`. Items of an unknown kind are refused."""
    reading = Reading(items, policy, former, keeps_valid=keeps_valid)
    refused_names: set[str] = set()
    ids_by_key: dict[str, str] = {}
    for index, item in enumerate(items):
        if item.kind == "tool":
            continue
        if item.kind not in KINDS:
            problem = f"{excerpt(repr(item.kind))} is not a kind of descriptor"
            problems = (Problem(item.origin, "", problem, f"use {' or '.join(KINDS)}"),)
            reading.add(ReadItem(item, None, None, problems, True))
            continue
        if isinstance(item.raw, Unreadable):
            refused_names.add(item.key_name)
            continue
        entry = reading.reusable.get(id(item))
        if entry is None:
            key = _key(item)
            entry = reading.find_equal(item, key) or _Entry(key, read_service_item(item, policy))
        read = reading.settle(index, item, entry, lambda valid: valid)
        if read is None:
            refused_names |= {entry.read.name, item.key_name or entry.read.name}
        else:
            ids_by_key.setdefault(item.key_name, read.name)
    reading.unavailable = Unavailable(frozenset(refused_names), ids_by_key)
    return reading.seal()


def read_tools(
    items: Sequence[Item],
    services: Services,
    unavailable: Unavailable = NONE_UNAVAILABLE,
    policy: Policy = DEFAULT_POLICY,
    former: Reading | None = None,
    *,
    keeps_valid: bool = False,
) -> Reading:
    """Read the tools among ``items`` with the services in force, which may be of other sources; see :class:`Reading`.

    Args:
        unavailable: of the reading of the services.
    """
    reading = Reading(items, policy, former, keeps_valid=keeps_valid)
    reading.services, reading.unavailable = services, unavailable
    has_same_services = former is not None and former.services is services and former.unavailable == unavailable
    reused = reading.reusable if has_same_services else {}

    def renew(valid: ReadItem) -> ReadItem:
        return read_tool_item(valid.item, services, base=policy)

    for index, item in enumerate(items):
        entry = reused.get(id(item))
        if entry is None:
            if item.kind != "tool" or isinstance(item.raw, Unreadable):
                continue
            uses = find_service(item, services)
            key = _key(item)
            entry = reading.find_equal(item, key)
            if entry is None or uses is None or entry.uses is not uses:
                valid = None if entry is None else entry.valid
                entry = _Entry(key, read_tool_item(item, services, unavailable, policy), uses, valid)
        if entry.read.other_type:
            reading.add_other(item, entry)
        else:
            reading.settle(index, item, entry, renew)
    reading.problems += _check_rollouts(reading.in_force)
    return reading.seal()


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
