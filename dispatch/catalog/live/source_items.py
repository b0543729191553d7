"""The items of one source, and what was read of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dispatch.catalog.catalog import Catalog
from dispatch.catalog.descriptors import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.loader import Reading, read_services, read_tools
from dispatch.catalog.readers.item import Item, Services
from dispatch.catalog.sources.base import OnChange
from dispatch.policy import Policy
from dispatch.telemetry.catalog_observer import HeldChange

D = TypeVar("D", ServiceDescriptor, ToolDescriptor)


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
        self.held: list[HeldChange] = []
        by_name, origins = self.by_name, self.origins
        for name, origin, descriptor in found:
            if name in by_name:
                by_name[name] += (descriptor,)
            else:
                by_name[name] = (descriptor,)
                origins[name] = origin


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
        self.catalog: Catalog | None = None
        """Descriptors instead of items."""
        self.service_reading: Reading | None = None
        self.tool_reading: Reading | None = None
        self._services: tuple[object, Definitions[ServiceDescriptor]] = None, Definitions()
        self._tools: tuple[object, Definitions[ToolDescriptor]] = None, Definitions()
        """Each with the reading, or the catalogue, of which it was made."""
        self._approved: dict[str, _Approval[Any]] = {}
        """The definitions in force, by kind and name, of a source that holds changes."""

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The readings of services and tools."""
        return tuple(each for each in (self.service_reading, self.tool_reading) if each is not None)

    def services(self, policy: Policy) -> Definitions[ServiceDescriptor]:
        """Return the services; ``policy``: defaults under their policies."""
        if self.catalog is not None:
            if self._services[0] is not self.catalog:
                found = ((each.id, self.id, each) for each in self.catalog.iterate_services())
                self._services = self.catalog, Definitions(found)
            return self._services[1]
        reading = self._read_services(policy)
        if self._services[0] is not reading:
            valid = ((each.service.id, each.item.origin, each.service) for each in reading.in_force if each.service)
            self._services = reading, Definitions(valid)
        return self._services[1]

    def _read_services(self, policy: Policy) -> Reading:
        reading = self.service_reading
        if reading is None or reading.items is not self.items or reading.policy != policy:
            reading = read_services(self.items, policy, reading, keeps_valid=not self.is_atomic)
            self.service_reading = reading
        return reading

    def tools(self, policy: Policy, services: Services) -> Definitions[ToolDescriptor]:
        """Return the tools; ``services``: in force, of all sources."""
        if self.catalog is not None:
            if self._tools[0] is not self.catalog:
                found = ((each.name, self.id, each) for each in self.catalog.iterate_tools())
                self._tools = self.catalog, Definitions(found)
            return self._tools[1]
        unavailable = self._read_services(policy).unavailable
        reading = self.tool_reading
        is_same = reading is not None and reading.items is self.items and reading.policy == policy
        if reading is None or not is_same or reading.services is not services:
            reading = read_tools(self.items, services, unavailable, policy, reading, keeps_valid=not self.is_atomic)
            self.tool_reading = reading
        if self._tools[0] is not reading:
            valid = ((each.tool.name, each.item.origin, each.tool) for each in reading.in_force if each.tool)
            self._tools = reading, Definitions(valid)
        return self._tools[1]

    def hold_changes(
        self,
        kind: str,
        found: Definitions[D],
        fingerprint_of: Callable[[D], str],
        context_of: Callable[[D], object],
        approved: Mapping[str, frozenset[str]],
        first_seen: dict[str, frozenset[str]],
    ) -> Definitions[D]:
        """Return the definitions in force: changed ones are replaced by the approved ones that were in force.

        Args:
            kind: ``tool`` or ``tool-service``.
            found: the definitions as the source delivers them.
            fingerprint_of: of a definition.
            context_of: what a fingerprint depends on besides the definition; None: the definition cannot be in force now.
            approved: fingerprints by ``tool/NAME`` and ``tool-service/ID``.
            first_seen: gets the fingerprints of definitions of a name without any approved one.
        """
        in_force: Definitions[D] = Definitions()
        remembered = {key: each for key, each in self._approved.items() if not key.startswith(f"{kind}/")}
        for name, versions in found.by_name.items():
            key = f"{kind}/{name}"
            former = self._approved.get(key)
            context = tuple(map(context_of, versions))
            if former is not None and former.is_of(versions, context):
                prints = former.prints
            else:
                prints = tuple(map(fingerprint_of, versions))
            known = approved.get(key, first_seen.get(key))
            if known is None:  # the first source with that name decides
                known = first_seen[key] = frozenset(prints)
            waiting = [print for print in prints if print not in known]
            if not waiting:
                remembered[key] = _Approval(versions, context, prints)
                in_force.by_name[name], in_force.origins[name] = versions, found.origins[name]
                continue
            now = ""
            if former is not None:
                remembered[key] = former
                if all(context_of(each) is not None for each in former.versions):
                    in_force.by_name[name], in_force.origins[name] = former.versions, found.origins[name]
                    now = ", ".join(former.prints)
            in_force.held += [HeldChange(self.id, name, now, print) for print in waiting]
        self._approved = remembered
        return in_force


class _Approval(Generic[D]):
    """Definitions of one name in force, what their fingerprints depend on, and their fingerprints."""

    def __init__(self, versions: tuple[D, ...], context: tuple[object, ...], prints: tuple[str, ...]) -> None:
        self.versions: tuple[D, ...] = versions
        self.context = context
        self.prints = prints

    def is_of(self, versions: tuple[D, ...], context: tuple[object, ...]) -> bool:
        """Return whether the fingerprints are those of ``versions``; equal objects are compared by identity first."""
        return self.versions == versions and self.context == context
