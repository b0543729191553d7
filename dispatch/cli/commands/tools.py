"""``dispatch tools``: what the catalogue has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.cli.output import console, is_terminal, printable, put, put_json
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.catalog import Catalog, ToolDescriptor


@takes("catalog")
def tools(
    settings: Settings,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show everything about this one.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The descriptors as JSON: a list, or the one of NAME.")] = False,
) -> None:
    """List the tools of the catalogue, or show one of them in full with the command that calls it."""
    from dispatch.catalog import UnknownToolError
    from dispatch.cli.exit_codes import CliError

    catalog = settings.load_catalog()
    if name is None:
        if json:
            put_json([_as_dict(catalog, tool) for tool in catalog.tools.values()])
        else:
            _show_list(catalog, settings.require_catalog_folder())
        return
    try:
        tool = catalog.tool(name)
    except UnknownToolError as unknown:
        raise CliError(str(unknown)) from None
    if json:
        put_json(_as_dict(catalog, tool))
    else:
        _show_one(catalog, tool)


def _as_dict(catalog: Catalog, tool: ToolDescriptor) -> dict[str, Any]:
    import msgspec

    value: dict[str, Any] = msgspec.to_builtins(tool)
    service = catalog.service_of(tool)
    value["request-queue"] = service.request_queue
    value["response-queue"] = service.response_queue
    return value


def _arguments(tool: ToolDescriptor) -> str:
    return ", ".join(
        f"{argument.name}{'?' if argument.required is False else ''}: {argument.type}" for argument in tool.arguments
    )


def _rows(catalog: Catalog) -> list[tuple[str, str, str, str]]:
    return [
        (tool.name, tool.service, _arguments(tool), " ".join(printable(tool.description).split()))
        for tool in catalog.tools.values()
    ]


def _show_list(catalog: Catalog, folder: str) -> None:
    rows = _rows(catalog)
    if not rows:
        put(f"There are no tools in {folder}.")
        return
    headings = ("Tool", "Service", "Arguments", "Description")
    if not is_terminal(sys.stdout):
        put(aligned([tuple(heading.upper() for heading in headings), *rows]))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, style in zip(headings, ("cyan", "", "", ""), strict=True):
        table.add_column(heading, style=style, overflow="fold")
    for *cells, description in rows:
        # Its first sentence: 'tools NAME' and --json have the rest.
        table.add_row(*map(Text, [*cells, description.partition(". ")[0]]))
    console().print(table)


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as lines, each column but the last as wide as its widest cell, two blanks between."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _show_one(catalog: Catalog, tool: ToolDescriptor) -> None:
    import json

    service = catalog.service_of(tool)
    said = {True: "yes", False: "no", None: "not declared"}
    rows = [
        ("name", tool.name),
        ("description", printable(tool.description)),
        ("service", f"{service.id}{f' {service.version}' if service.version else ''}"),
        ("request queue", service.request_queue),
        ("response queue", service.response_queue),
        ("read-only", said[tool.read_only]),
        ("idempotent", said[tool.idempotent]),
        ("destructive", said[tool.destructive]),
    ]
    for label, value in (
        ("config", tool.config),
        ("policy", tool.policy),
        ("its service's", service.policy),
        ("category", tool.category),
        ("tags", ", ".join(tool.tags)),
        ("author", tool.author),
    ):
        if value:
            rows.append((label, printable(value if isinstance(value, str) else json.dumps(dict(value)))))
    for argument in tool.arguments:
        need = {True: ", required", False: ", optional", None: ""}[argument.required]
        rows.append((f"  {argument.name}", f"{argument.type}{need}: {printable(argument.description)}"))
    put(aligned(rows))
    put("")
    put(f"dispatch call {tool.name} {' '.join(f'{a.name}=…' for a in tool.arguments)}".rstrip())
