"""Definitions that wait for approval, as far as the file of approved ones shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dispatch._internal.suggestions import join_names
from dispatch.catalog import Catalog, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.fingerprint import fingerprint, service_fingerprint
from dispatch.catalog.live.approvals import Approvals, ApprovalsError
from dispatch.cli.exit_codes import CliError, Exit


class HeldDefinition(NamedTuple):
    """A definition that differs from the approved ones.

    Attributes:
        kind: ``tool`` or ``tool-service``.
        name: of the tool, or id of the service.
        source: id of its source.
        approved: fingerprints in the file.
        present: fingerprints of all versions that the source delivers.
        versions: their descriptors, highest version first.
    """

    kind: str
    name: str
    source: str
    approved: frozenset[str]
    present: tuple[str, ...]
    versions: tuple[ToolDescriptor | ServiceDescriptor, ...]

    @property
    def key(self) -> str:
        """Its key in the file of approved definitions."""
        return f"{self.kind}/{self.name}"

    @property
    def waiting(self) -> tuple[str, ...]:
        """The fingerprints that are not approved."""
        return tuple(print for print in self.present if print not in self.approved)


def find_held(catalog: Catalog, approved: Mapping[str, frozenset[str]]) -> Iterator[HeldDefinition]:
    """Yield the services and tools of ``catalog`` that are not approved in their present definition. The first definition
    of a name needs no approval.

    Args:
        catalog: what the sources deliver.
        approved: fingerprints by ``tool/NAME`` and ``tool-service/ID``.
    """
    for id in catalog.services:
        known = approved.get(f"tool-service/{id}")
        if known is not None:
            services = catalog.service_versions(id)
            prints = tuple(map(service_fingerprint, services))
            if not known.issuperset(prints):
                yield HeldDefinition("tool-service", id, "", known, prints, services)
    for name in catalog.tools:
        known = approved.get(f"tool/{name}")
        if known is not None:
            tools = catalog.versions(name)
            prints = tuple(fingerprint_tool(catalog, tool) for tool in tools)
            if not known.issuperset(prints):
                yield HeldDefinition("tool", name, catalog.source_of(name), known, prints, tools)


def fingerprint_tool(catalog: Catalog, tool: ToolDescriptor) -> str:
    """Return the fingerprint of a tool with the service that it uses."""
    return fingerprint(tool, catalog.service_or_default(tool))


def load_approved(path: str | None) -> Mapping[str, frozenset[str]]:
    """Return the approved fingerprints in the file ``path``; none without a file.

    Raises:
        CliError: the file cannot be used.
    """
    if path is None:
        return {}
    try:
        return Approvals(path).load()
    except ApprovalsError as error:
        raise CliError(str(error), code=Exit.FAILED) from None


def select_held(
    names: Sequence[str], held: Sequence[HeldDefinition], catalog: Catalog, file: str
) -> list[HeldDefinition]:
    """Return the held definitions with these names, and those of the services of these tools.

    Raises:
        CliError: a name is not held; the error has the names that are.
    """
    by_key = {each.key: each for each in held}
    selected: dict[str, HeldDefinition] = {}
    for name in names:
        found = {key: by_key[key] for key in (f"tool/{name}", f"tool-service/{name}", name) if key in by_key}
        if not found:
            known = tuple(dict.fromkeys(each.name for each in held))
            waiting = f"held are {join_names(known)}" if known else f"nothing is held, as far as {file} shows"
            raise CliError(
                f"'{name}' is not held, so nothing was approved; {waiting}.",
                "'dispatch tools --all' lists what is held; give the sources as the dispatcher has them",
            )
        for each in found.values():
            if each.kind == "tool" and name in catalog.tools:
                service = by_key.get(f"tool-service/{catalog.tools[name].service}")
                if service is not None:
                    selected[service.key] = service
        selected |= found
    return list(selected.values())
