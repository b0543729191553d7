"""The rows of ``dispatch tools``: tools in force, and with ``--all`` everything that is not in force, with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from dispatch.catalog import Catalog, CatalogError, ToolDescriptor
from dispatch.cli.catalog.approval import find_held, fingerprint_tool
from dispatch.cli.catalog.snapshot import Snapshot

FINGERPRINT_DIGITS: Final = 12
"""Digits of a fingerprint in a list: enough to tell the definitions of one tool apart."""


class ListedTool(NamedTuple):
    """A tool in force.

    Attributes:
        tool: its default version, or the one in the range that is asked for.
        source: id of its source.
        fingerprint: of its definition, in full.
    """

    tool: ToolDescriptor
    source: str
    fingerprint: str

    @property
    def short_fingerprint(self) -> str:
        """The first digits of the fingerprint."""
        return self.fingerprint[:FINGERPRINT_DIGITS]

    def as_dict(self, catalog: Catalog) -> dict[str, Any]:
        """Return the descriptor with topics, source and fingerprint as plain values."""
        value: dict[str, Any] = msgspec.to_builtins(self.tool)
        service = catalog.service_or_default(self.tool)
        value["request-queue"] = service.request_queue
        value["response-queue"] = service.response_queue
        value["source"] = self.source
        value["fingerprint"] = self.fingerprint
        return value


class UnusedItem(NamedTuple):
    """An item that is not in force.

    Attributes:
        status: ``held``, ``shadowed``, ``refused``, ``foreign`` (of another runtime) or ``version`` (not the default one).
        kind: ``tool`` or ``tool-service``.
        name: of the tool, or id of the service; empty: unknown.
        source: id of its source.
        origin: file or place of the item.
        reason: why it is not in force.
        fix: what to do about it; empty: nothing is wrong.
    """

    status: str
    kind: str
    name: str
    source: str
    origin: str
    reason: str
    fix: str = ""


def list_tool(catalog: Catalog, tool: ToolDescriptor) -> ListedTool:
    """Return the row of one tool of ``catalog``."""
    return ListedTool(tool, catalog.source_of(tool.name), fingerprint_tool(catalog, tool))


def list_unused(snapshot: Snapshot, approved: Mapping[str, frozenset[str]]) -> list[UnusedItem]:
    """Return everything that is not in force.

    Args:
        snapshot: of the sources.
        approved: fingerprints by ``tool/NAME`` and ``tool-service/ID``; empty: nothing is held.
    """
    return [
        *_list_held(snapshot, approved),
        *_list_shadowed(snapshot),
        *_list_refused(snapshot),
        *_list_failed(snapshot),
        *_list_versions(snapshot.catalog),
        *_list_others(snapshot),
    ]


def _list_held(snapshot: Snapshot, approved: Mapping[str, frozenset[str]]) -> Iterator[UnusedItem]:
    for held in find_held(snapshot.catalog, approved):
        prints = ", ".join(print[:FINGERPRINT_DIGITS] for print in held.waiting)
        yield UnusedItem(
            "held",
            held.kind,
            held.name,
            held.source,
            held.key,
            f"the definition {prints} is not approved: sources that hold changes keep the former one",
            f"dispatch tools approve {held.name}",
        )


def _list_shadowed(snapshot: Snapshot) -> Iterator[UnusedItem]:
    for report in snapshot.merged.reports.values():
        for each in report.shadowed:
            is_tool = (
                each.name in snapshot.catalog.tools and snapshot.catalog.source_of(each.name) == each.active_source
            )
            yield UnusedItem(
                "shadowed",
                "tool" if is_tool else "tool-service",
                each.name,
                each.source,
                each.origin,
                f"{each.active_source} comes earlier and has the same name: {each.active_origin}",
                "rename one of them, or remove it",
            )


def _list_refused(snapshot: Snapshot) -> Iterator[UnusedItem]:
    for id, report in snapshot.merged.reports.items():
        for read in report.refused:
            for problem in read.problems:
                if problem.severity == "error":
                    where = f"{problem.key}: " if problem.key else ""
                    reason = f"{where}{problem.problem}"
                    yield UnusedItem(
                        "refused", read.item.kind, read.name or read.item.key, id, problem.file, reason, problem.fix
                    )


def _list_failed(snapshot: Snapshot) -> Iterator[UnusedItem]:
    for id, error in snapshot.failures.items():
        if not isinstance(error, CatalogError):
            yield UnusedItem("refused", "source", "", id, id, str(error), "check with 'dispatch doctor'")
            continue
        for problem in error.problems:
            if problem.severity == "error":
                where = f"{problem.key}: " if problem.key else ""
                reason = f"{where}{problem.problem}; the folder is loaded as a whole or not at all"
                yield UnusedItem("refused", "file", "", id, problem.file, reason, problem.fix)


def _list_versions(catalog: Catalog) -> Iterator[UnusedItem]:
    for name, default in catalog.tools.items():
        for each in catalog.versions(name):
            if each is not default:
                share = default.rollout.get(each.version or "")
                calls = f"{share:g} % of the calls go there" if share else "only calls that ask for it go there"
                reason = f"the default version is {default.version or 'the one without a version'}; {calls}"
                yield UnusedItem(
                    "version", "tool", name, catalog.source_of(name), f"tool/{name}@{each.version}", reason
                )


def _list_others(snapshot: Snapshot) -> Iterator[UnusedItem]:
    for name, other in snapshot.merged.others.items():
        reason = f"another runtime executes tools of the type '{other.type}'"
        yield UnusedItem("foreign", "tool", name, other.source, other.origin, reason)


def format_arguments(tool: ToolDescriptor) -> str:
    """Return the arguments of a tool in one line."""
    return ", ".join(
        f"{argument.name}{'?' if argument.required is False else ''}: {argument.type}"
        for argument in tool.described_arguments
    )
