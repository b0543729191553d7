"""``dispatch tools``, ``tools approve`` and ``find``: the tools of all sources, what is not in force, and changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

import msgspec
import typer

from dispatch._internal import join_names
from dispatch.catalog import Catalog, CatalogError, Problem, ServiceDescriptor, ToolDescriptor, UnknownToolError
from dispatch.catalog.approvals import Approvals
from dispatch.catalog.catalog import ListConditions, fingerprint, service_fingerprint
from dispatch.catalog.items import SourceStatus
from dispatch.catalog.merge import Merged
from dispatch.cli.base import (
    SOURCES,
    CliError,
    Exit,
    Rows,
    Settings,
    align_columns,
    console,
    format_count,
    is_terminal,
    make_printable,
    print_err,
    print_json,
    print_out,
    print_result,
    print_warning,
    run_async,
    run_first,
    show_logs,
    with_settings,
)
from dispatch.cli.sources import ServerFailedError, Snapshot, list_sources, read_given_sources, run_with_progress
from dispatch.dispatcher import Dispatcher, connect
from dispatch.search import DEFAULT_LIMIT, RankedTool, ToolSearch
from dispatch.telemetry.events import (
    CatalogChanged,
    ChangeHeld,
    CircuitChanged,
    Event,
    EventStream,
    ItemRefused,
    ItemShadowed,
    SourceChanged,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


_filter = partial(typer.Option, rich_help_panel="Filters")


@dataclass(frozen=True)
class Filters:
    """The tools that are listed: the fields of :class:`ListConditions`.

    Attributes:
        category: Of this category.
        tags_any: With this tag; several: with one of them.
        service (ID): Of this service.
        source (ID): Of this source: folder:DIR, trustgraph or announced.
        text: With this text in the name, the description or a tag.
        permission: A user needs this permission.
        groups: Offered to an agent that asks for this group, as in TrustGraph; '*': for all.
        state: Offered to an agent in this state, as in TrustGraph.
        version (RANGE): With a version in this range, such as '^1.4'; that version is shown.
    """

    category: Annotated[str | None, _filter()] = None
    tags_any: Annotated[list[str] | None, _filter("--tag")] = None
    service: Annotated[str | None, _filter()] = None
    source: Annotated[str | None, _filter()] = None
    text: Annotated[str, _filter()] = ""
    permission: Annotated[str | None, _filter()] = None
    groups: Annotated[list[str] | None, _filter("--group")] = None
    state: Annotated[str | None, _filter()] = None
    version: Annotated[str | None, _filter()] = None


@with_settings("broker", *SOURCES, "approvals", "token_file", "trust_certs")
def tools(
    settings: Settings,
    name: Annotated[str | None, typer.Argument()] = None,
    all: bool = False,
    *,
    filters: Filters,
    watch: Annotated[bool, typer.Option("--watch", "-w")] = False,
    metrics: list[str] | None = None,
    json: bool = False,
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

    Args:
        name (NAME): Show all details of this tool.
        all: Also what is not in force, each with the reason and the fix: held, shadowed and refused items, versions
            beside the default one, tools of other runtimes.
        watch: Follow the sources and show each change, until Ctrl-C. With --json: one line for each event.
        metrics (URL): Show the state of the circuits of running agents: their metrics endpoints,
            http://HOST:PORT/metrics.
        json: Print descriptors as one line of JSON: a list, or that of NAME.
    """
    approved = load_approved(settings.approvals_file)
    wanted = cast(ListConditions, asdict(filters) | {"tags_any": filters.tags_any or ()})
    if watch:
        _watch(settings, wanted, metrics or (), name, shows_unused=all, json=json)
        return
    snapshot = read_given_sources(settings, "dispatch tools")
    if not all:
        snapshot.require_all()
    catalog = snapshot.log_warnings().catalog
    circuits = read_circuits(metrics, print_warning) if metrics else None
    if name is not None:
        found = list_tool(catalog, _find_tool(catalog, name, filters.version, list_unused(snapshot, approved)))
        value = found.as_dict(catalog) | _circuit_of(found, circuits)
        print_result(value, describe_tool(catalog, found, circuits), json=json)
        return
    listed = select_tools(catalog, wanted)
    unused = select_unused(list_unused(snapshot, approved), wanted)
    if json:
        rows = [each.as_dict(catalog) | _circuit_of(each, circuits) for each in listed]
        if all:
            rows = [row | {"status": "in-force"} for row in rows] + [each._asdict() for each in unused]
        print_json(rows)
        return
    if listed:
        list_tools(listed, circuits).print()
    elif not any(wanted.values()):
        print_out(_describe_no_tools(settings, snapshot))
    else:
        print_out("No tool meets these conditions.")
    if all:
        print_unused(unused)
    else:
        _hint_at_unused(sum(each.status in _NOTABLE for each in unused))


_NOTABLE = ("held", "shadowed", "refused")
"""Of which a list without ``--all`` prints the number."""


def _watch(
    settings: Settings,
    wanted: ListConditions,
    metrics: Sequence[str],
    name: str | None,
    *,
    shows_unused: bool,
    json: bool,
) -> None:

    if name is not None:
        raise CliError("--watch follows the list of tools.", f"select the tool with --text {name}")
    needs_broker = settings.trustgraph_workspace is not None or settings.uses_announced
    broker = settings.require_pulsar_url("dispatch tools") if needs_broker else "memory://"
    dispatcher = connect(broker, list_sources(settings, watch=True), security=settings.security())
    show_logs(settings.verbose, logging.ERROR)  # its warnings are among the events that are shown
    with contextlib.ExitStack() as stack:
        if json:
            show = show_as_json(lambda: dispatcher.catalog)
        elif is_terminal(sys.stdout):
            from rich.live import Live

            live = Live(console=console(), auto_refresh=False, vertical_overflow="ellipsis")
            show = show_live(stack.enter_context(live), shows_unused=shows_unused)
        else:
            show = show_as_lines(shows_unused=shows_unused)
        watch = ToolWatch(dispatcher, wanted, settings.approvals_file, metrics, show)
        run_with_progress(watch.run(), f"Reading the sources through {broker} …", lambda: watch.is_started)


def _circuit_of(listed: ListedTool, circuits: Mapping[str, str] | None) -> dict[str, str | None]:
    return {} if circuits is None else {"circuit": circuits.get(listed.tool.name)}


def _find_tool(catalog: Catalog, name: str, version: str | None, unused: Sequence[UnusedItem]) -> ToolDescriptor:
    try:
        return catalog.tool(name, version)
    except UnknownToolError:
        for each in unused:
            if each.name == name and each.kind == "tool":
                raise CliError(f"The tool '{name}' is {each.status}: {each.origin}: {each.reason}.", each.fix) from None
        raise
    except ValueError as error:  # of the range
        raise CliError(f"--version: {error}.", "write for instance --version '^1.4'") from None


def _describe_no_tools(settings: Settings, snapshot: Snapshot) -> str:
    if [*snapshot.merged.reports] == ["announced"]:
        return (
            f"No service announces itself on {settings.broker_url}: 'dispatch serve' starts one. Or give --catalog DIR."
        )
    # A file of MCP servers may have none, and so no source.
    names = ", ".join([id.removeprefix("folder:") for id in snapshot.merged.reports] or settings.catalog_folders)
    return f"{names} contains no tools."


def _hint_at_unused(count: int) -> None:
    if count:
        is_one = count == 1
        print_err(
            f"{format_count(count, 'item')} {'is' if is_one else 'are'} not in force; 'dispatch tools --all' says why."
        )


# ``dispatch find``: the tools of all sources that fit a query.


@with_settings("broker", *SOURCES, "token_file", "trust_certs")
def find(
    settings: Settings,
    query: str,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = DEFAULT_LIMIT,
    category: str | None = None,
    tag: list[str] | None = None,
    json: bool = False,
) -> None:
    """Find the tools of the catalogue that fit a query best, by meaning and by words, and say why.

    Search by meaning needs the extra [bold]search[/bold]; without it words alone decide. If no tool matches, the first
    tools of the catalogue are shown with score 0.

    [bold]dispatch find "something funny about cats"[/bold]

    [bold]dispatch find "convert money" --catalog tools --tag finance --limit 3 --json[/bold]

    Args:
        query (QUERY): What a tool should do, in words.
        limit (N): Tools to show.
        category: Of this category.
        tag: With this tag; several: with one of them.
        json: Print the tools as one line of JSON, best first.
    """

    catalog = read_given_sources(settings, "dispatch find").require_all().log_warnings().catalog
    tools = {tool.name: tool for tool in catalog.list(category=category, tags_any=tag or ())}
    found = run_async(_search(catalog, query, tools, limit))
    if json:
        print_json(
            [
                {"name": tool.name, "score": round(score, 4), "why": why, "description": tool.description}
                for tool, score, why in found
            ]
        )
    elif found:
        rows = [
            (tool.name, f"{score:.2f}", make_printable(why), make_printable(tool.description))
            for tool, score, why in found
        ]
        print_out(align_columns([("TOOL", "SCORE", "WHY", "DESCRIPTION"), *rows]))
    else:
        print_out("No tool meets these conditions.")


async def _search(catalog: Catalog, query: str, tools: dict[str, ToolDescriptor], limit: int) -> list[RankedTool]:
    search = ToolSearch(lambda: catalog)
    try:
        await search.refresh()
        return await search.rank(query, tools, limit)
    finally:
        await search.close()


# ``dispatch tools approve``: approve changed definitions.


@with_settings("broker", *SOURCES, "approvals", "token_file", "trust_certs")
def approve(
    settings: Settings, names: list[str], yes: Annotated[bool, typer.Option("--yes", "-y")] = False, json: bool = False
) -> None:
    """Approve the present definition of tools or services of sources that hold changes (on_change="hold").

    Shows what changes: the fingerprints, and the definition as the source delivers it now. Dispatchers with this file
    (connect(approvals=FILE)) put it in force within two seconds. The former approval of the name is withdrawn. A changed
    service of a tool is approved with the tool.

    List the held definitions: [bold]dispatch tools --approvals approvals.json --all[/bold]

    [bold]dispatch tools approve tell-joke --approvals approvals.json[/bold]

    [bold]dispatch tools approve tell-joke sing --approvals approvals.json --trustgraph --yes[/bold]

    Args:
        names (NAME): Tools or services whose present definition is approved.
        yes: Approve without a question.
        json: Print what was approved as one line of JSON; needs --yes.
    """
    file = settings.approvals_file
    if file is None:
        raise CliError("No file of approved definitions.", "name that of connect(approvals=FILE) with --approvals FILE")
    approved = load_approved(file)
    snapshot = read_given_sources(settings, "dispatch tools approve").require_all()
    held = select_held(names, list(find_held(snapshot.catalog, approved)), snapshot.catalog, file)
    if not json:
        for each in held:
            _show(each)
    if not yes:
        if json or not sys.stdin.isatty():
            raise CliError("Nothing was approved: there is no terminal for the question.", "check, then give --yes")
        typer.confirm("Approve?", abort=True)
    Approvals(file).add({each.key: frozenset(each.present) for each in held})
    text = f"{make_printable(file)}: approved {', '.join(each.key for each in held)}."
    print_result({"file": file, "approved": [_as_dict(each) for each in held]}, text, json=json)


def _show(held: HeldDefinition) -> None:
    print_out(f"{held.key}{f' of {held.source}' if held.source else ''}")
    for print in sorted(held.approved.difference(held.present)):
        print_out(f"  - {print}")
    for print in held.waiting:
        print_out(f"  + {print}")
    for definition in _definitions(held):
        print_out(make_printable(json.dumps(definition, indent=2, ensure_ascii=False)))


def _definitions(held: HeldDefinition) -> list[Any]:
    return [
        msgspec.to_builtins(version)
        for version, print in zip(held.versions, held.present, strict=True)
        if print in held.waiting
    ]


def _as_dict(held: HeldDefinition) -> dict[str, Any]:
    return {
        "kind": held.kind,
        "name": held.name,
        "source": held.source,
        "old": sorted(held.approved),
        "new": list(held.present),
        "definitions": _definitions(held),
    }


# Definitions that wait for approval, as far as the file of approved ones shows.


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
        ApprovalsError: the file cannot be used.
    """
    return {} if path is None else Approvals(path).load()


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


# The rows of ``dispatch tools``: tools in force, and with ``--all`` everything that is not in force, with its reason.


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
                    yield _refused(read.item.kind, read.name or read.item.key, id, problem)


def _list_failed(snapshot: Snapshot) -> Iterator[UnusedItem]:
    for id, error in snapshot.failures.items():
        if not isinstance(error, CatalogError):
            yield UnusedItem("refused", "source", "", id, id, str(error), "check with 'dispatch doctor'")
            continue
        for problem in error.problems:
            if problem.severity == "error" and isinstance(error, ServerFailedError):
                yield _refused("source", "", id, problem)
            elif problem.severity == "error":
                yield _refused("file", "", id, problem, "; the folder is loaded as a whole or not at all")


def _refused(kind: str, name: str, source: str, problem: Problem, note: str = "") -> UnusedItem:
    where = f"{problem.key}: " if problem.key else ""
    return UnusedItem("refused", kind, name, source, problem.file, f"{where}{problem.problem}{note}", problem.fix)


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


# Which tools ``dispatch tools`` lists.


def select_tools(catalog: Catalog, wanted: ListConditions) -> list[ListedTool]:
    """Return the tools in force that meet all conditions.

    Raises:
        CliError: the version is no range.
    """
    try:
        return [list_tool(catalog, tool) for tool in catalog.list(**wanted)]
    except ValueError as error:
        raise CliError(f"--version: {error}.", "write for instance --version '^1.4'") from None


def select_unused(items: Sequence[UnusedItem], wanted: ListConditions) -> list[UnusedItem]:
    """Return the items that meet the conditions on the source and on the text in the name: the others cannot be judged,
    because the descriptor of an item that is not in force may be invalid."""
    text, source = wanted.get("text", "").casefold(), wanted.get("source")
    return [each for each in items if text in each.name.casefold() and source in (None, each.source)]


# The lists of ``dispatch tools``.


def list_tools(tools: Sequence[ListedTool], circuits: Mapping[str, str] | None = None) -> Rows:
    """Return the rows of the tools in force. A terminal shows one line for each tool: ``tools NAME`` and ``--json`` show the
    arguments and the whole description.

    Args:
        circuits: state of the circuit by the tool's name; None: no such column.
    """
    columns = {
        "Tool": [each.tool.name for each in tools],
        "Version": [each.tool.version or "-" for each in tools],
        "Service": [each.tool.service for each in tools],
        "Source": [each.source for each in tools],
        "Fingerprint": [each.short_fingerprint for each in tools],
    }
    if circuits is not None:
        columns["Circuit"] = [circuits.get(each.tool.name, "-") for each in tools]
    columns["Arguments"] = [format_arguments(each.tool) for each in tools]
    columns["Description"] = [" ".join(make_printable(each.tool.description).split()) for each in tools]
    return Rows(columns, "cyan", ("Arguments",), is_cut=True)


def list_reasons(items: Sequence[UnusedItem]) -> Rows:
    """Return the rows of everything that is not in force, with its reason and fix."""
    columns = {
        "Not in force": [each.status for each in items],
        "Name": [each.name or "-" for each in items],
        "Source": [each.source or "-" for each in items],
        "Where": [each.origin for each in items],
        "Why": [each.reason for each in items],
        "Fix": [each.fix for each in items],
    }
    printable = {
        heading: [make_printable(" ".join(text.split())) for text in texts] for heading, texts in columns.items()
    }
    return Rows(printable, "yellow")


def print_unused(items: Sequence[UnusedItem]) -> None:
    """Print everything that is not in force."""
    print_out("")
    if items:
        list_reasons(items).print()
    else:
        print_out("Everything is in force.")


# All details of one tool, for ``dispatch tools NAME``.


_DECLARED = {True: "yes", False: "no", None: "not declared"}


def describe_tool(catalog: Catalog, listed: ListedTool, circuits: Mapping[str, str] | None = None) -> str:
    """Return the details of a tool, and the command that calls it.

    Args:
        circuits: state of the circuit by the tool's name; None: it is not shown.
    """
    tool = listed.tool
    service = catalog.service_or_default(tool)
    versions = catalog.versions(tool.name)
    default = catalog.tools[tool.name]
    rows = [
        ("name", tool.name),
        ("description", make_printable(tool.description)),
        ("source", listed.source),
        ("version", tool.version or "not declared"),
        ("fingerprint", listed.fingerprint),
        ("service", f"{service.id}{f' {service.version}' if service.version else ''}"),
        ("request queue", service.request_queue),
        ("response queue", service.response_queue),
        ("read-only", _DECLARED[tool.read_only]),
        ("idempotent", _DECLARED[tool.idempotent]),
        ("destructive", _DECLARED[tool.destructive]),
    ]
    if circuits is not None:
        rows.append(("circuit", circuits.get(tool.name, "unknown")))
    others = [each.version or "without a version" for each in versions if each is not tool]
    for label, value in (
        ("other versions", ", ".join(others)),
        ("default version", "" if tool is default else default.version or "the one without a version"),
        ("rollout", ", ".join(f"{share:g} % to {version}" for version, share in tool.rollout.items())),
        ("requires", f"{service.id} {tool.requires}" if tool.requires else ""),
        ("permissions", ", ".join(catalog.permissions_of(tool))),
        ("config", tool.config),
        ("policy", tool.policy),
        ("service policy", service.policy),
        ("category", tool.category),
        ("tags", ", ".join(tool.tags)),
        ("groups", "" if tool.groups == ("default",) else ", ".join(tool.groups)),
        ("applicable states", "" if tool.applicable_states == ("*",) else ", ".join(tool.applicable_states)),
        ("state after a call", tool.state),
        ("author", tool.author),
    ):
        if value:
            rows.append(
                (label, make_printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
            )
    for argument in tool.described_arguments:
        need = {True: ", required", False: ", optional", None: ""}[argument.required]
        rows.append((f"  {argument.name}", f"{argument.type}{need}: {make_printable(argument.description)}"))
    text = align_columns(rows)
    if tool.input_schema is not None:
        text += f"\ninput-schema\n{make_printable(json.dumps(tool.input_schema, indent=2, ensure_ascii=False))}"
    words = (f"{argument.name}=…" for argument in tool.described_arguments)
    return f"{text}\n\n{' '.join(['dispatch call', tool.name, *words])}"


# States of circuits in running processes, read from their metrics endpoints.


TIMEOUT_S: Final = 5.0
"""Seconds until a metrics endpoint must answer: half of the default scrape timeout of Prometheus."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one answer: some 200,000 series."""


def read_circuits(urls: Sequence[str], warn: Callable[[str], object] = lambda _: None) -> Mapping[str, str]:
    """Return the state of each tool's circuit by the tool's label: ``open``, or ``2 of 5 open`` if the circuits of several
    dispatchers differ.

    Args:
        urls: of metrics endpoints.
        warn: receives a text for each endpoint without a circuit.

    Raises:
        CliError: one cannot be read.
    """
    from dispatch.telemetry.gauges import parse_circuit_states

    states: dict[str, Counter[str]] = {}
    for url in urls:
        text = _fetch(url)
        has_circuits = False
        try:
            for tool, state, number in parse_circuit_states(text):
                states.setdefault(tool, Counter())[state] += number
                has_circuits = True
        except ValueError as error:
            raise CliError(
                f"The answer of {url} is {error}.", "give the URL of a metrics endpoint", Exit.TRANSPORT
            ) from None
        if not has_circuits:
            warn(
                f"The metrics at {url} have no circuits: that process is no agent, or has called no tool yet. Give the "
                "endpoint of a process that calls tools, not that of a tool service."
            )
    return {tool: _describe(counts) for tool, counts in states.items()}


def _describe(counts: Counter[str]) -> str:
    total = counts.total()
    others = [(state, number) for state, number in counts.items() if number and state != "closed"]
    if not others:
        return "closed"
    return ", ".join(state if number == total else f"{number} of {total} {state}" for state, number in others)


def _fetch(url: str) -> str:
    if not url.lower().startswith(("http://", "https://")):
        raise CliError(f"'{url}' is no URL of a metrics endpoint.", "write --metrics http://HOST:PORT/metrics")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(MAX_BYTES)
    except (OSError, ValueError) as error:  # a URLError is an OSError
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or reason
        raise CliError(
            f"The metrics at {url} cannot be read: {reason}.",
            "give the URL of the metrics endpoint of a running agent (docs/how-to/observe.md)",
            Exit.TRANSPORT,
        ) from None
    return content.decode(errors="replace")


# ``dispatch tools --watch``: follow the sources, and report each change.


CIRCUITS_EVERY_S: Final = 2.0
"""Seconds between two readings of the circuits: an open circuit stays open for 5 s or longer."""
_SHOWN: Final = (CatalogChanged, SourceChanged, ItemRefused, ItemShadowed, ChangeHeld)


class WatchedState(NamedTuple):
    """The tools and sources at one moment.

    Attributes:
        tools: in force, by name, in the order of the catalogue.
        unused: what is not in force.
        sources: id and state of each source.
        circuits: state by the tool's label; None: they are not read.
    """

    tools: Mapping[str, ListedTool]
    unused: Sequence[UnusedItem]
    sources: Mapping[str, str]
    circuits: Mapping[str, str] | None

    def list_changes(self, former: WatchedState) -> list[str]:
        """Return one line for each tool that was added (``+``), changed (``~``) or removed (``-``)."""
        lines = []
        for name, each in self.tools.items():
            old = former.tools.get(name)
            if old is None or (old.tool, old.source, old.fingerprint) != (each.tool, each.source, each.fingerprint):
                version = f" {each.tool.version}" if each.tool.version else ""
                lines.append(f"{'+' if old is None else '~'} {name}{version}  {each.short_fingerprint}  {each.source}")
        lines += [f"- {name}" for name in former.tools if name not in self.tools]
        return lines


_NO_STATE: Final = WatchedState({}, (), {}, None)

ShowChange = Callable[[Event | str | None, Sequence[str], WatchedState], object]
"""Shows an event, or a note that is no event, with the lines for the tools that changed and the state after it. None: the
state at the start; an empty note: circuits became known."""


@dataclass
class ToolWatch:
    """Follows the sources of a dispatcher.

    Attributes:
        dispatcher: not started yet.
        wanted: the tools that are listed.
        approvals: file of approved definitions; None: nothing is held.
        metrics: URLs of metrics endpoints of running agents; empty: no circuits.
        show: shows the changes.
        is_started: the state at the start is shown.
    """

    dispatcher: Dispatcher
    wanted: ListConditions
    approvals: str | None
    metrics: Sequence[str]
    show: ShowChange
    is_started: bool = False
    _known_circuits: dict[str, str] = field(default_factory=dict)
    _metrics_problem: str = ""
    _state: WatchedState = _NO_STATE
    _read: tuple[Merged, tuple[SourceStatus, ...], tuple[int, ...] | None] | None = None

    async def run(self) -> None:
        """Show the state and every change, until it is cancelled.

        Raises:
            TransportError: no broker answers.
            CliError: the metrics cannot be read at the start.
        """
        circuits = await asyncio.to_thread(read_circuits, self.metrics) if self.metrics else None
        self._known_circuits.update(circuits or {})
        events = self.dispatcher.events()
        async with self.dispatcher:
            state = self._read_state(_NO_STATE._replace(circuits=circuits))
            self.is_started = True
            self.show(None, (), state)
            self._state = state
            await run_first(self._follow_events(events), self._follow_circuits())

    async def _follow_events(self, events: EventStream) -> None:
        async for event in events:
            if isinstance(event, _SHOWN):
                former, self._state = self._state, self._read_state(self._state)
                self.show(event, self._state.list_changes(former), self._state)

    def _read_state(self, former: WatchedState) -> WatchedState:
        """Return ``former`` if nothing has changed: one activation is reported by up to a thousand events."""
        registry = self.dispatcher.registry
        statuses = registry.sources()
        read = registry.merged, statuses, None if self.approvals is None else Approvals(self.approvals).modified()
        if self._read is not None and read[0] is self._read[0] and read[1:] == self._read[1:]:
            return former
        self._read = read
        failed = [
            UnusedItem("refused", "source", "", each.id, each.id, each.problem, "correct it; it is read again")
            for each in statuses
            if each.state != "ok"
        ]
        unused = [*failed, *list_unused(Snapshot(registry.merged, {}, {}), load_approved(self.approvals))]
        return WatchedState(
            {each.tool.name: each for each in select_tools(registry.catalog, self.wanted)},
            select_unused(unused, self.wanted),
            {each.id: each.state for each in statuses},
            former.circuits,
        )

    async def _follow_circuits(self) -> None:
        if not self.metrics:
            await asyncio.get_running_loop().create_future()
        while True:
            await asyncio.sleep(CIRCUITS_EVERY_S)
            found: Mapping[str, str] = {}
            problem = ""
            try:
                found = await asyncio.to_thread(read_circuits, self.metrics)
            except CliError as error:
                problem = error.message
            self._show_circuits(found, problem)

    def _show_circuits(self, circuits: Mapping[str, str], problem: str) -> None:
        """Show changed circuits; none while the metrics cannot be read, because of ``problem``."""
        state = self._state
        now = self._state = state._replace(circuits=circuits)
        if problem != self._metrics_problem:
            self._metrics_problem = problem
            self.show(problem or "The metrics are read again.", (), now)
        elif circuits != state.circuits:
            self.show("", (), now)
        for tool, circuit in circuits.items():
            former = self._known_circuits.get(tool, circuit)
            if tool in state.tools and former != circuit:
                event = CircuitChanged(time.time(), tool, None, former, circuit, "read from the metrics")
                self.show(event, [f"circuit of {tool}: {former} → {circuit}"], now)
        self._known_circuits.update(circuits)


# The displays of ``dispatch tools --watch``: JSON, lines, or a live table on a terminal.


MAX_LINES: Final = 10
"""Recent changes below the live table."""


def describe_event(event: Event | str | None, changes: Sequence[str]) -> list[str]:
    """Return the lines of an event or a note."""
    match event:
        case None | "":
            return []
        case str():
            lines = [event]
        case CatalogChanged(ok=False):
            lines = [f"reload refused: {event.problem}"]
        case SourceChanged():
            lines = [f"source {event.source}: {event.new}{f': {event.problem}' if event.problem else ''}"]
        case ItemRefused():
            where = f"{event.origin}: {event.key}" if event.key else event.origin
            lines = [f"refused {where}: {event.problem}. Fix: {event.fix}."]
        case ItemShadowed():
            lines = [f"shadowed {event.name} of {event.source}: {event.active_source} comes earlier"]
        case ChangeHeld():
            new = event.new[:FINGERPRINT_DIGITS]
            lines = [f"held {event.name} {new} of {event.source}: dispatch tools approve {event.name}"]
        case _:
            lines = []
    at = time.strftime("%H:%M:%S", time.localtime(time.time() if isinstance(event, str) else event.at))
    return [f"{at}  {make_printable(' '.join(line.split()))}" for line in (*lines, *changes)]


def show_as_json(catalog: Callable[[], Catalog]) -> ShowChange:
    """Return a display of one JSON line for the state at the start (``event``: ``tools``), and one for each event.

    Args:
        catalog: returns the catalogue in force.
    """

    def show(event: Event | str | None, _changes: Sequence[str], state: WatchedState) -> None:
        if event is None:
            tools = [each.as_dict(catalog()) for each in state.tools.values()]
            print_json({"event": "tools", "at": time.time(), "sources": dict(state.sources), "tools": tools})
        elif not isinstance(event, str):
            print_json(event.as_dict())
        elif event:
            print_json({"event": "note", "at": time.time(), "note": event})

    return show


def show_as_lines(*, shows_unused: bool) -> ShowChange:
    """Return a display of the tables at the start, and lines for each change.

    Args:
        shows_unused: also what is not in force.
    """

    def show(event: Event | str | None, changes: Sequence[str], state: WatchedState) -> None:
        if event is None:
            list_tools(list(state.tools.values()), state.circuits).print()
            if shows_unused:
                print_unused(state.unused)
            print_out("")
        for line in describe_event(event, changes):
            print_out(line)

    return show


def show_live(live: Live, *, shows_unused: bool) -> ShowChange:
    """Return a display of a table that is replaced at each change, with the recent changes below it.

    Args:
        live: the display of rich.
        shows_unused: also what is not in force.
    """
    from rich.console import Group
    from rich.text import Text

    lines: deque[str] = deque(maxlen=MAX_LINES)

    def show(event: Event | str | None, changes: Sequence[str], state: WatchedState) -> None:
        lines.extend(describe_event(event, changes))
        parts: list[RenderableType] = [list_tools(list(state.tools.values()), state.circuits).as_table()]
        if shows_unused and state.unused:
            parts += ["", list_reasons(state.unused).as_table()]
        sources = "  ".join(f"{id}: {now}" for id, now in state.sources.items())
        parts += ["", Text(make_printable(sources), style="dim"), *map(Text, lines)]
        live.update(Group(*parts), refresh=True)

    return show
