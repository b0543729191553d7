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

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in _select_columns(HEADINGS, circuits):
        table.add_column(heading, style="cyan" if heading == "Tool" else "", overflow="fold")
    for each in tools:
        *cells, description = _select_columns(_cells(each, circuits), circuits)
        # The first sentence only: 'tools NAME' and --json show the rest.
        table.add_row(*map(Text, [*cells, description.partition(". ")[0]]))
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
