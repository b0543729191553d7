"""The problems of one source, for ``dispatch check``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dispatch.catalog import Problem, Severity
from dispatch.cli.catalog.snapshot import Snapshot
from dispatch.cli.output import format_count, make_printable

_SEVERITIES: Final[Mapping[Severity, str]] = {"error": "error", "warning": "warning", "info": "note"}


class CheckedSource(NamedTuple):
    """A source with its problems.

    Attributes:
        id: of the source.
        problems: of its items, those that are shadowed among them.
        is_loaded: its items can be used, except those that are refused.
        services, tools: numbers in force.
    """

    id: str
    problems: Sequence[Problem]
    is_loaded: bool
    services: int
    tools: int

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.id.removeprefix("folder:")

    def summary(self, problems: Iterable[Problem]) -> str:
        """Return one line with the numbers of ``problems``."""
        return format_summary(self.label, problems, (self.services, self.tools) if self.is_loaded else None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        return {"source": self.id, "ok": self.is_loaded, "services": self.services, "tools": self.tools}


def list_checked_sources(snapshot: Snapshot) -> list[CheckedSource]:
    """Return all sources of a snapshot in their order."""
    catalog = snapshot.catalog
    checked = []
    for id, report in snapshot.merged.reports.items():
        services = len(catalog.services) if len(snapshot.merged.reports) == 1 else report.items - report.tools
        tools = sum(catalog.source_of(name) == id for name in catalog.tools)
        shadowed = [
            Problem(
                each.origin,
                "",
                f"'{each.name}' is shadowed: the earlier source {each.active_source} has it ({each.active_origin})",
                "rename one of them, or remove it",
                "warning",
            )
            for each in report.shadowed
        ]
        problems = [*snapshot.problems[id], *shadowed]
        checked.append(CheckedSource(id, problems, id not in snapshot.failures, services, tools))
    return checked


def format_summary(label: str, problems: Iterable[Problem], loaded: tuple[int, int] | None) -> str:
    """Return one line with the numbers of problems, services and tools.

    Args:
        label: of the source.
        problems: to count.
        loaded: numbers of services and tools; None: the source cannot be loaded.
    """
    counts = Counter(problem.severity for problem in problems)
    found = [
        f"{counts[severity]} {name}{'' if counts[severity] == 1 else 's'}"
        for severity, name in _SEVERITIES.items()
        if counts[severity]
    ]
    text = ", ".join(found) or "no mistakes"
    if loaded is None:
        return f"{make_printable(label)}: {text}. The catalogue cannot be loaded until the errors are fixed."
    services, tools = loaded
    return f"{make_printable(label)}: {format_count(services, 'service')}, {format_count(tools, 'tool')}, {text}."
