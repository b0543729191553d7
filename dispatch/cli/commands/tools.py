"""``dispatch tools``: list the tools of the catalogue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.cli.output import align_columns, console, is_terminal, make_printable, print_json, print_out
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.catalog import Catalog, ToolDescriptor


@with_settings("catalog")
def tools(
    settings: Settings,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show all details of this tool.", show_default=False)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print descriptors as one line of JSON: a list, or that of NAME.")
    ] = False,
) -> None:
    """List the tools of the catalogue, or show one with all details and the command that calls it.

    [bold]dispatch tools --catalog examples/tools[/bold]

    [bold]dispatch tools tell-joke[/bold]
    """
    from dispatch.catalog import UnknownToolError
    from dispatch.cli.exit_codes import CliError

    catalog = settings.load_catalog()
    if name is None:
        if json:
            print_json([_as_dict(catalog, tool) for tool in catalog.tools.values()])
        else:
            _show_list(catalog, settings.require_catalog_folder())
        return
    try:
        tool = catalog.tool(name)
    except UnknownToolError as unknown:
        raise CliError(str(unknown)) from None
    if json:
        print_json(_as_dict(catalog, tool))
    else:
        _show_one(catalog, tool)


def _as_dict(catalog: Catalog, tool: ToolDescriptor) -> dict[str, Any]:
    import msgspec

    value: dict[str, Any] = msgspec.to_builtins(tool)
    service = catalog.service_or_default(tool)
    value["request-queue"] = service.request_queue
    value["response-queue"] = service.response_queue
    return value


def _arguments(tool: ToolDescriptor) -> str:
    return ", ".join(
        f"{argument.name}{'?' if argument.required is False else ''}: {argument.type}"
        for argument in tool.described_arguments
    )


def _rows(catalog: Catalog) -> list[tuple[str, str, str, str]]:
    return [
        (tool.name, tool.service, _arguments(tool), " ".join(make_printable(tool.description).split()))
        for tool in catalog.tools.values()
    ]


def _show_list(catalog: Catalog, folder: str) -> None:
    rows = _rows(catalog)
    if not rows:
        print_out(f"{folder} contains no tools.")
        return
    headings = ("Tool", "Service", "Arguments", "Description")
    if not is_terminal(sys.stdout):
        print_out(align_columns([tuple(heading.upper() for heading in headings), *rows]))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, style in zip(headings, ("cyan", "", "", ""), strict=True):
        table.add_column(heading, style=style, overflow="fold")
    for *cells, description in rows:
        # The first sentence only: 'tools NAME' and --json show the rest.
        table.add_row(*map(Text, [*cells, description.partition(". ")[0]]))
    console().print(table)


def _show_one(catalog: Catalog, tool: ToolDescriptor) -> None:
    import json

    service = catalog.service_or_default(tool)
    declared = {True: "yes", False: "no", None: "not declared"}
    rows = [
        ("name", tool.name),
        ("description", make_printable(tool.description)),
        ("service", f"{service.id}{f' {service.version}' if service.version else ''}"),
        ("request queue", service.request_queue),
        ("response queue", service.response_queue),
        ("read-only", declared[tool.read_only]),
        ("idempotent", declared[tool.idempotent]),
        ("destructive", declared[tool.destructive]),
    ]
    for label, value in (
        ("config", tool.config),
        ("policy", tool.policy),
        ("service policy", service.policy),
        ("category", tool.category),
        ("tags", ", ".join(tool.tags)),
        ("author", tool.author),
    ):
        if value:
            rows.append((label, make_printable(value if isinstance(value, str) else json.dumps(dict(value)))))
    for argument in tool.described_arguments:
        need = {True: ", required", False: ", optional", None: ""}[argument.required]
        rows.append((f"  {argument.name}", f"{argument.type}{need}: {make_printable(argument.description)}"))
    print_out(align_columns(rows))
    print_out("")
    print_out(f"dispatch call {tool.name} {' '.join(f'{a.name}=…' for a in tool.described_arguments)}".rstrip())
