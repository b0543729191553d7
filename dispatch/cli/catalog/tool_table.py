"""The tables of ``dispatch tools``: rich on a terminal, aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dispatch.cli.catalog.listed_tool import ListedTool, UnusedItem, format_arguments
from dispatch.cli.output import align_columns, console, is_terminal, make_printable, print_out

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS: Final = ("Tool", "Version", "Service", "Source", "Fingerprint", "Circuit", "Arguments", "Description")
UNUSED_HEADINGS: Final = ("Not in force", "Name", "Source", "Where", "Why", "Fix")
MIN_DESCRIPTION: Final = 12
"""Characters of a description that a terminal shows, however wide the other columns are."""
_GAP: Final = 2
_CIRCUIT: Final = HEADINGS.index("Circuit")


def print_tools(tools: Sequence[ListedTool], circuits: Mapping[str, str] | None = None) -> None:
    """Print the tools in force.

    Args:
        tools: the rows.
        circuits: state of the circuit by the tool's name; None: no such column.
    """
    if is_terminal(sys.stdout):
        console().print(make_tool_table(tools, circuits))
        return
    headings = tuple(heading.upper() for heading in _select_columns(HEADINGS, circuits))
    print_out(align_columns([headings, *(_select_columns(_cells(each, circuits), circuits) for each in tools)]))


def make_tool_table(tools: Sequence[ListedTool], circuits: Mapping[str, str] | None = None) -> Table:
    """Return the tools in force as a table for a terminal; see :func:`print_tools`."""
    from rich.table import Table
    from rich.text import Text

    headings = [each for each in _select_columns(HEADINGS, circuits) if each != "Arguments"]
    rows = [dict(zip(HEADINGS, _cells(each, circuits), strict=True)) for each in tools]
    *others, last = headings
    used = sum(_GAP + max(len(heading), *(len(row[heading]) for row in rows), 0) for heading in others)
    limit = max(MIN_DESCRIPTION, console().width - used)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, style="cyan" if heading == "Tool" else "", overflow="fold")
    for row in rows:
        # One line for each tool: 'tools NAME' and --json show the arguments and the whole description.
        table.add_row(*(Text(row[heading]) for heading in others), Text(make_printable(row[last], limit)))
    return table


def print_unused(items: Sequence[UnusedItem]) -> None:
    """Print everything that is not in force, with its reason and fix."""
    print_out("")
    if not items:
        print_out("Everything is in force.")
    elif is_terminal(sys.stdout):
        console().print(make_unused_table(items))
    else:
        print_out(align_columns([tuple(heading.upper() for heading in UNUSED_HEADINGS), *map(_unused_cells, items)]))


def make_unused_table(items: Sequence[UnusedItem]) -> Table:
    """Return everything that is not in force as a table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in UNUSED_HEADINGS:
        table.add_column(heading, style="yellow" if heading == "Not in force" else "", overflow="fold")
    for each in items:
        table.add_row(*map(Text, _unused_cells(each)))
    return table


def _unused_cells(each: UnusedItem) -> tuple[str, ...]:
    cells = (each.status, each.name or "-", each.source or "-", each.origin, each.reason, each.fix)
    return tuple(make_printable(" ".join(cell.split())) for cell in cells)


def _cells(each: ListedTool, circuits: Mapping[str, str] | None) -> tuple[str, ...]:
    tool = each.tool
    return (
        tool.name,
        tool.version or "-",
        tool.service,
        each.source,
        each.short_fingerprint,
        (circuits or {}).get(tool.name, "-"),
        format_arguments(tool),
        " ".join(make_printable(tool.description).split()),
    )


def _select_columns(cells: Sequence[str], circuits: Mapping[str, str] | None) -> tuple[str, ...]:
    return tuple(cell for index, cell in enumerate(cells) if circuits is not None or index != _CIRCUIT)
