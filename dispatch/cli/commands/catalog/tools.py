"""``dispatch tools``: list the tools of all sources, or show one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.output import print_json, print_out
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.catalog import Catalog, ToolDescriptor
    from dispatch.cli.catalog.snapshot import Snapshot

_FILTERS = "Filters"


@with_settings("broker", "catalog", "trustgraph", "workspace", "approvals", "token_file", "trust_certs")
def tools(
    settings: Settings,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show all details of this tool.", show_default=False)
    ] = None,
    all: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also what is not in force, each with the reason and the fix: held, shadowed and refused items, versions "
            "beside the default one, tools of other runtimes.",
        ),
    ] = False,
    category: Annotated[
        str | None, typer.Option("--category", help="Of this category.", show_default=False, rich_help_panel=_FILTERS)
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag", help="With this tag; several: with one of them.", show_default=False, rich_help_panel=_FILTERS
        ),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option("--service", metavar="ID", help="Of this service.", show_default=False, rich_help_panel=_FILTERS),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="ID",
            help="Of this source: folder:DIR or trustgraph.",
            show_default=False,
            rich_help_panel=_FILTERS,
        ),
    ] = None,
    text: Annotated[
        str,
        typer.Option(
            "--text",
            help="With this text in the name, the description or a tag.",
            show_default=False,
            rich_help_panel=_FILTERS,
        ),
    ] = "",
    permission: Annotated[
        str | None,
        typer.Option(
            "--permission", help="A user needs this permission.", show_default=False, rich_help_panel=_FILTERS
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            help="Offered to an agent that asks for this group, as in TrustGraph; '*': for all.",
            show_default=False,
            rich_help_panel=_FILTERS,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="Offered to an agent in this state, as in TrustGraph.",
            show_default=False,
            rich_help_panel=_FILTERS,
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            metavar="RANGE",
            help="With a version in this range, such as '^1.4'; that version is shown.",
            show_default=False,
            rich_help_panel=_FILTERS,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print descriptors as one line of JSON: a list, or that of NAME.")
    ] = False,
) -> None:
    """List the tools of the catalogue with their source, version and fingerprint, or show one with all details and the
    command that calls it.

    [bold]dispatch tools --catalog examples/tools[/bold]

    What is not in force, and why: [bold]dispatch tools --catalog tools --trustgraph --all[/bold]

    [bold]dispatch tools --text joke --version '^1.4'[/bold]

    [bold]dispatch tools tell-joke[/bold]

    Approve a changed definition: [bold]dispatch tools approve tell-joke --approvals approvals.json[/bold]
    """
    from dispatch.cli.catalog.approval import load_approved
    from dispatch.cli.catalog.given_sources import read_given_sources
    from dispatch.cli.catalog.listed_tool import list_tool, list_unused
    from dispatch.cli.catalog.tool_details import describe_tool
    from dispatch.cli.catalog.tool_table import print_tools, print_unused

    approved = load_approved(settings.approvals_file)
    snapshot = read_given_sources(settings, "dispatch tools")
    if not all:
        snapshot.require_all()
    catalog = snapshot.log_warnings().catalog
    if name is not None:
        found = list_tool(catalog, _find_tool(catalog, name, version))
        if json:
            print_json(found.as_dict(catalog))
        else:
            print_out(describe_tool(catalog, found))
        return
    is_filtered = bool(category or tag or service or source or text or permission or group or state or version)
    selected = _select(
        catalog,
        category=category,
        tags_any=tag or (),
        service=service,
        source=source,
        text=text,
        permission=permission,
        groups=group,
        state=state,
        version=version,
    )
    listed = [list_tool(catalog, tool) for tool in selected]
    unused = [each for each in list_unused(snapshot, approved) if _is_wanted(each.name, each.source, text, source)]
    if json:
        rows = [each.as_dict(catalog) for each in listed]
        if all:
            rows = [row | {"status": "in-force"} for row in rows] + [each._asdict() for each in unused]
        print_json(rows)
        return
    if listed:
        print_tools(listed)
    elif is_filtered:
        print_out("No tool meets these conditions.")
    else:
        print_out(f"{_name_sources(snapshot)} contains no tools.")
    if all:
        print_unused(unused)
    else:
        _hint_at_unused(sum(each.status in _NOTABLE for each in unused))


_NOTABLE = ("held", "shadowed", "refused")
"""Of which a list without ``--all`` prints the number."""


def _find_tool(catalog: Catalog, name: str, version: str | None) -> ToolDescriptor:
    from dispatch.catalog import UnknownToolError, VersionMismatchError
    from dispatch.cli.exit_codes import CliError

    try:
        return catalog.tool(name, version)
    except (UnknownToolError, VersionMismatchError, ValueError) as error:
        raise CliError(str(error)) from None


def _select(catalog: Catalog, **conditions: object) -> tuple[ToolDescriptor, ...]:
    from dispatch.cli.exit_codes import CliError

    try:
        return catalog.list(**conditions)  # type: ignore[arg-type] # the options of the command, by their names
    except ValueError as error:
        raise CliError(str(error)) from None


def _is_wanted(name: str, source: str, text: str, wanted_source: str | None) -> bool:
    return text.casefold() in name.casefold() and wanted_source in (None, source)


def _name_sources(snapshot: Snapshot) -> str:
    return ", ".join(id.removeprefix("folder:") for id in snapshot.merged.reports)


def _hint_at_unused(count: int) -> None:
    from dispatch.cli.output import format_count, print_err

    if count:
        is_one = count == 1
        print_err(
            f"{format_count(count, 'item')} {'is' if is_one else 'are'} not in force; 'dispatch tools --all' says why."
        )
