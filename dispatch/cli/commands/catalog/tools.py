"""``dispatch tools``: list the tools of all sources, or show one."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.output import console, is_terminal, print_json, print_out, print_warning
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.catalog import Catalog, ToolDescriptor
    from dispatch.cli.catalog.listed_tool import ListedTool, UnusedItem
    from dispatch.cli.catalog.snapshot import Snapshot
    from dispatch.cli.catalog.tool_filter import ToolFilter
    from dispatch.cli.catalog.tool_watch import WatchDisplay

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
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Follow the sources and show each change, until Ctrl-C. With --json: one line for each event.",
        ),
    ] = False,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            metavar="URL",
            help="Show the state of the circuits of running agents: their metrics endpoints, http://HOST:PORT/metrics.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print descriptors as one line of JSON: a list, or that of NAME.")
    ] = False,
) -> None:
    """List the tools of the catalogue with their source, version and fingerprint, or show one with all details and the
    command that calls it.

    [bold]dispatch tools --catalog examples/tools[/bold]

    Also the items that are not in force: [bold]dispatch tools --catalog tools --trustgraph --all[/bold]

    [bold]dispatch tools --text joke --version '^1.4'[/bold]

    [bold]dispatch tools tell-joke[/bold]

    Each change as it comes into force: [bold]dispatch tools --catalog tools --trustgraph --watch[/bold]

    With the circuits of an agent: [bold]dispatch tools --metrics http://localhost:9464/metrics[/bold]

    Approve a changed definition: [bold]dispatch tools approve tell-joke --approvals approvals.json[/bold]
    """
    from dispatch.cli.catalog.approval import load_approved
    from dispatch.cli.catalog.circuits import read_circuits
    from dispatch.cli.catalog.given_sources import read_given_sources
    from dispatch.cli.catalog.listed_tool import list_tool, list_unused
    from dispatch.cli.catalog.tool_details import describe_tool
    from dispatch.cli.catalog.tool_filter import ToolFilter
    from dispatch.cli.catalog.tool_table import print_tools, print_unused

    approved = load_approved(settings.approvals_file)
    wanted = ToolFilter(category, tag or (), service, source, text, permission, group, state, version)
    if watch:
        _watch(settings, wanted, metrics or (), name, shows_unused=all, json=json)
        return
    snapshot = read_given_sources(settings, "dispatch tools")
    if not all:
        snapshot.require_all()
    catalog = snapshot.log_warnings().catalog
    circuits = read_circuits(metrics, print_warning) if metrics else None
    if name is not None:
        found = list_tool(catalog, _find_tool(catalog, name, version, list_unused(snapshot, approved)))
        if json:
            print_json(found.as_dict(catalog) | _circuit_of(found, circuits))
        else:
            print_out(describe_tool(catalog, found, circuits))
        return
    listed = wanted.select(catalog)
    unused = wanted.select_unused(list_unused(snapshot, approved))
    if json:
        rows = [each.as_dict(catalog) | _circuit_of(each, circuits) for each in listed]
        if all:
            rows = [row | {"status": "in-force"} for row in rows] + [each._asdict() for each in unused]
        print_json(rows)
        return
    if listed:
        print_tools(listed, circuits)
    elif wanted.is_empty:
        print_out(f"{_name_sources(snapshot)} contains no tools.")
    else:
        print_out("No tool meets these conditions.")
    if all:
        print_unused(unused)
    else:
        _hint_at_unused(sum(each.status in _NOTABLE for each in unused))


_NOTABLE = ("held", "shadowed", "refused")
"""Of which a list without ``--all`` prints the number."""


def _watch(
    settings: Settings, wanted: ToolFilter, metrics: Sequence[str], name: str | None, *, shows_unused: bool, json: bool
) -> None:
    from dispatch.cli.catalog.given_sources import list_sources, run_with_progress
    from dispatch.cli.catalog.tool_watch import ToolWatch
    from dispatch.cli.catalog.watch_display import JsonDisplay, LineDisplay, LiveDisplay
    from dispatch.cli.exit_codes import CliError
    from dispatch.cli.logs import show_logs
    from dispatch.dispatcher.connection import connect

    if name is not None:
        raise CliError("--watch follows the list of tools.", f"select the tool with --text {name}")
    needs_broker = settings.trustgraph_workspace is not None
    broker = settings.require_pulsar_url("dispatch tools") if needs_broker else "memory://"
    dispatcher = connect(broker, list_sources(settings, watch=True), security=settings.security())
    show_logs(settings.verbose, logging.ERROR)  # its warnings are among the events that are shown
    with contextlib.ExitStack() as stack:
        display: WatchDisplay
        if json:
            display = JsonDisplay(lambda: dispatcher.catalog)
        elif is_terminal(sys.stdout):
            from rich.live import Live

            live = Live(console=console(), auto_refresh=False, vertical_overflow="ellipsis")
            display = LiveDisplay(stack.enter_context(live), shows_unused)
        else:
            display = LineDisplay(shows_unused)
        watch = ToolWatch(dispatcher, wanted, settings.approvals_file, metrics, display)
        run_with_progress(watch.run(), f"Reading the sources through {broker} …", lambda: watch.is_started)


def _circuit_of(listed: ListedTool, circuits: Mapping[str, str] | None) -> dict[str, str | None]:
    return {} if circuits is None else {"circuit": circuits.get(listed.tool.name)}


def _find_tool(catalog: Catalog, name: str, version: str | None, unused: Sequence[UnusedItem]) -> ToolDescriptor:
    from dispatch.catalog import UnknownToolError, VersionMismatchError
    from dispatch.cli.exit_codes import CliError

    try:
        return catalog.tool(name, version)
    except UnknownToolError as error:
        for each in unused:
            if each.name == name and each.kind == "tool":
                raise CliError(f"The tool '{name}' is {each.status}: {each.origin}: {each.reason}.", each.fix) from None
        raise CliError(str(error)) from None
    except (VersionMismatchError, ValueError) as error:
        raise CliError(str(error)) from None


def _name_sources(snapshot: Snapshot) -> str:
    return ", ".join(id.removeprefix("folder:") for id in snapshot.merged.reports)


def _hint_at_unused(count: int) -> None:
    from dispatch.cli.output import format_count, print_err

    if count:
        is_one = count == 1
        print_err(
            f"{format_count(count, 'item')} {'is' if is_one else 'are'} not in force; 'dispatch tools --all' says why."
        )
