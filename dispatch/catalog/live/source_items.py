"""The items of one source, and what was read of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from dispatch.catalog.catalog import Catalog
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.loader import ItemReader
from dispatch.catalog.readers.item import Item, Services
from dispatch.catalog.sources.base import OnChange
from dispatch.policy import Policy
from dispatch.telemetry.catalog_observer import HeldChange

D = TypeVar("D", ServiceDescriptor, ToolDescriptor)
Found = tuple[str, D]
"""A descriptor with its origin."""


class SourceItems:
    """The items of one source.

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
        self.catalog: Catalog | None = None
        """Descriptors instead of items."""
        self.reader = ItemReader(())
        """What was read at the last merge."""
        self._approved: dict[str, list[Any]] = {}
        """The definitions in force, by kind and name, of a source that holds changes."""

    def begin(self, items: Sequence[Item], policy: Policy) -> ItemReader:
        """Return a reader of ``items`` over the defaults ``policy``. What did not change since the last merge is not read
        again."""
        return ItemReader(items, self.reader, keeps_valid=not self.is_atomic, policy=policy)

    def services(self, reader: ItemReader) -> Iterator[Found[ServiceDescriptor]]:
        """Yield the services with their origins."""
        if self.catalog is not None:
            for service in self.catalog.iterate_services():
                yield self.id, service
        for read in reader.read_services():
            if read.service is not None:
                yield read.item.origin, read.service

    def tools(self, reader: ItemReader, services: Services) -> Iterator[Found[ToolDescriptor]]:
        """Yield the tools with their origins."""
        if self.catalog is not None:
            for tool in self.catalog.iterate_tools():
                yield self.id, tool
        for read in reader.read_tools(services):
            if read.tool is not None:
                yield read.item.origin, read.tool

    def hold_changes(
        self,
        kind: str,
        found: Iterable[Found[D]],
        name_of: Callable[[D], str],
        fingerprint_of: Callable[[D], str],
        approved: Mapping[str, frozenset[str]],
        first_seen: dict[str, frozenset[str]],
    ) -> tuple[list[Found[D]], list[HeldChange]]:
        """Replace changed definitions by the approved ones that were in force.

        Args:
            kind: ``tool`` or ``tool-service``.
            found: the definitions as the source delivers them.
            approved: fingerprints by ``tool/NAME`` and ``tool-service/ID``.
            first_seen: gets the fingerprints of definitions of a name without any approved one.

        Returns:
            The definitions in force, and those that wait.
        """
        by_name: dict[str, list[Found[D]]] = {}
        for each in found:
            by_name.setdefault(name_of(each[1]), []).append(each)
        in_force: list[Found[D]] = []
        held: list[HeldChange] = []
        for name, versions in by_name.items():
            key = f"{kind}/{name}"
            prints = [fingerprint_of(descriptor) for _, descriptor in versions]
            known = approved.get(key)
            if known is None:
                known = first_seen[key] = frozenset(prints)
            waiting = [print for print in prints if print not in known]
            if not waiting:
                self._approved[key] = versions
                in_force += versions
                continue
            former: list[Found[D]] = self._approved.get(key, [])
            in_force += former
            now = ", ".join(fingerprint_of(descriptor) for _, descriptor in former)
            held += [HeldChange(self.id, name, now, print) for print in waiting]
        return in_force, held
