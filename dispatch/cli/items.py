"""``dispatch put``, ``rm``, ``get``, ``export`` and ``mirror``: items of a folder, or of TrustGraph's configuration."""

from __future__ import annotations

import contextlib
import json as standard_json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer

from dispatch._internal import excerpt, find_near_names
from dispatch.announcements import DEFAULT_TOPIC
from dispatch.announcements.source import Announced
from dispatch.catalog import CatalogError, Folder, Problem
from dispatch.catalog.descriptors import ItemError
from dispatch.catalog.folder import MAX_FILE_BYTES, TOO_LARGE, show_path
from dispatch.catalog.items import KINDS
from dispatch.catalog.versions import is_version
from dispatch.cli.base import (
    DEFAULT_CATALOG,
    CliError,
    Json,
    Settings,
    divert_prints,
    make_printable,
    print_err,
    print_json,
    print_out,
    print_result,
    print_warning,
    run_async,
    run_until_sigterm,
    suggest,
    with_settings,
)
from dispatch.cli.sources import connect_sources, load_catalog, make_trustgraph_config, run_with_progress
from dispatch.cli.targets import load_target, name_target
from dispatch.documents import PARSERS, DocumentError, check_size, decode_text, find_write_fix, read_regular_file
from dispatch.functions import CONFIG_PARAM
from dispatch.relay import describe_mcp_tool
from dispatch.server import ToolServer
from dispatch.trustgraph.config import ALL_WORKSPACES, Mirror, Place, TrustGraphConfig

# The text of an item that is put: read from a file or from stdin, and parsed.


STDIN: Final = "-"


class ItemDocument(NamedTuple):
    """The text of a descriptor.

    Attributes:
        text: as it was given, with a line end.
        suffix: of its format: ``.json``, ``.yaml`` or ``.yml``.
        raw: the parsed text.
    """

    text: str
    suffix: str
    raw: Any


def read_document(name: str) -> ItemDocument:
    """Read and parse a descriptor.

    Args:
        name: of the file; ``-``: stdin, as JSON.

    Raises:
        CliError: it cannot be read, or is not JSON or YAML.
    """
    what = "stdin" if name == STDIN else name
    try:
        if name == STDIN:
            content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
            check_size(content, MAX_FILE_BYTES, TOO_LARGE)
        else:
            content, _signature = read_regular_file(name, MAX_FILE_BYTES, TOO_LARGE)
        text = decode_text(content)
    except (OSError, DocumentError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CliError(f"{what} cannot be read: {reason}.", "name a readable file, or - for stdin") from None
    if name == STDIN and not text.strip():
        raise CliError("stdin is empty. Nothing was written.", "give the descriptor as JSON on stdin")
    suffix = Path(name).suffix.lower() if name != STDIN else ".json"
    if suffix not in PARSERS:
        raise CliError(f"{what} is not a .json, .yaml or .yml file.", "rename it, or give its JSON on stdin")
    try:
        raw = PARSERS[suffix](text)
    except DocumentError as error:
        _, problem, fix = error.mistakes[0]
        raise CliError(f"{what}: {problem}. Nothing was written.", fix) from None
    return ItemDocument(text if text.endswith("\n") else f"{text}\n", suffix, raw)


# Names of items on the command line: ``tool/NAME``, ``tool-service/ID``, or TrustGraph's ``--type`` and ``--key``.


_FORM = "write tool/NAME or tool-service/ID, or --type tool --key NAME"


class ItemTarget(NamedTuple):
    """The place of an item.

    Attributes:
        kind: ``tool`` or ``tool-service``.
        key: its name or id; with a version: ``NAME@VERSION``.
    """

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}"


def parse_target(word: str | None, kind: str | None, key: str | None) -> ItemTarget:
    """Return the item that is named by one word, or by a kind and a key.

    Raises:
        CliError: neither, or both, or no such kind.
    """
    if word is not None and (kind is not None or key is not None):
        raise CliError("The item is given twice.", _FORM)
    if word is not None:
        kind, separator, key = word.partition("/")
        if not kind or not separator:
            raise CliError(f"'{excerpt(word)}' is no item.", _FORM)
    if kind is None or not key:
        raise CliError("No item is given.", _FORM)
    if kind not in KINDS:
        near = find_near_names(kind, KINDS, 1)
        raise CliError(
            f"'{excerpt(kind)}' is no kind of item.",
            f"write {near[0]}/{excerpt(key)}" if near else f"use {' or '.join(KINDS)}",
        )
    return ItemTarget(kind, key)


# The source of an item: a folder, or TrustGraph's configuration.


T = TypeVar("T")
ItemSource = Folder | TrustGraphConfig

MAX_SHOWN: Final = 10
"""Mistakes in one error."""


def open_source(settings: Settings) -> ItemSource:
    """Return the one source of items that the options name.

    Raises:
        CliError: they name none, or several, or a folder that does not exist.
    """
    workspace = settings.trustgraph_workspace
    if workspace is not None:
        if settings.catalog:
            raise CliError("An item belongs to one source.", "give --catalog DIR or --trustgraph")
        if workspace == ALL_WORKSPACES:
            raise CliError("An item belongs to one workspace.", "name it with --workspace NAME")
        return make_trustgraph_config(workspace)
    folders = settings.require_catalog_folders()
    if len(folders) > 1:
        raise CliError("An item belongs to one source.", "give one --catalog DIR")
    if not os.path.isdir(folders[0]):
        path = folders[0]
        raise CliError(f"There is no folder '{path}'.", f"mkdir {path}, or name another one with --catalog DIR")
    return Folder(folders[0])


def run_on_source(settings: Settings, source: ItemSource, command: str, function: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``function``, called while ``source`` is connected."""

    async def run() -> T:
        async with connect_sources(settings, [source], command):
            return await function()

    text = f"Waiting for TrustGraph's config service through {settings.broker_url} …"
    return run_with_progress(run(), text, lambda: isinstance(source, Folder))


async def _exists(source: ItemSource, target: ItemTarget) -> bool:
    if isinstance(source, Folder):
        return source.find_file(*target) is not None
    return await source.get(*target) is not None


def _place_of(source: ItemSource, target: ItemTarget) -> str:
    if isinstance(source, Folder):
        return show_path(source.find_file(*target) or source.path)
    return f"{source.id}:{source.workspace}/{target}"


@contextlib.contextmanager
def _explain_os_errors(verb: str, fix: str = "make its folder writable") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename is None:  # not of a file
            raise
        problem = f"{show_path(error.filename)} cannot be {verb}: {error.strerror or error}."
        raise CliError(problem, find_write_fix(error, fix)) from None


def _make_unknown_error(source: ItemSource, target: ItemTarget, keys: Sequence[str]) -> CliError:
    fix = suggest(find_near_names(target.key, keys), f"'dispatch get {target.kind}' lists what is there")
    if isinstance(source, Folder):
        label = show_path(source.path)
    else:
        label = f"TrustGraph's configuration, workspace '{source.workspace}'"
    return CliError(f"There is no {target} in {label}.", fix)


def refuse_write(target: ItemTarget, error: CatalogError) -> CliError:
    """Return the error for an item that is invalid, or would make others invalid."""
    mistakes = [problem for problem in error.problems if problem.severity == "error"]
    shown = [f"  {problem}" for problem in mistakes[:MAX_SHOWN]]
    if len(mistakes) > MAX_SHOWN:
        shown.append(f"  and {len(mistakes) - MAX_SHOWN:,} more")
    count = f"{len(mistakes)} mistake{'' if len(mistakes) == 1 else 's'}"
    return CliError("\n".join([f"{target} was not written: the catalogue would have {count}.", *shown]))


# The commands.


_as_in_trustgraph = partial(typer.Option, rich_help_panel="As in TrustGraph")

_Target = Annotated[
    str | None, typer.Argument(metavar="ITEM", help="tool/NAME or tool-service/ID; a version of it: NAME@VERSION.")
]
_Type = Annotated[
    str | None, _as_in_trustgraph("--type", metavar="TYPE", help="tool or tool-service, in place of ITEM.")
]
_Key = Annotated[str | None, _as_in_trustgraph("--key", metavar="KEY", help="Name or id, in place of ITEM.")]
_CONNECTION: Final = ("broker", "catalog", "trustgraph", "workspace", "token_file", "trust_certs")


@with_settings(*_CONNECTION)
def put(
    settings: Settings,
    item: _Target = None,
    file: Annotated[str | None, typer.Argument()] = None,
    type: _Type = None,
    key: _Key = None,
    stdin: Annotated[bool, _as_in_trustgraph()] = False,
    as_: Annotated[str | None, _as_in_trustgraph()] = None,
    json: Json = False,
) -> None:
    """Write a tool or a tool service to a folder of descriptors, or to TrustGraph's configuration.

    The descriptor is checked before, together with the others: with a mistake nothing is written, and the exit code is 2. A
    file is replaced as a whole. Dispatchers that watch the folder, or follow TrustGraph's configuration, put the change in
    force within a second. Put a service before its tools.

    [bold]dispatch put tool-service/joke-service joke-service.json --catalog tools[/bold]

    [bold]dispatch put tool/tell-joke@2.0.0 new.json --catalog tools[/bold]

    [bold]dispatch get tool/tell-joke | sed s/pun/dry/ | dispatch put tool/tell-joke -[/bold]

    [bold]dispatch put --trustgraph --type tool --key tell-joke --stdin < tell-joke.json[/bold]

    [bold]dispatch put --as mcp-tool tell-joke --catalog tools --trustgraph[/bold]

    Args:
        file (FILE): The descriptor as JSON or YAML; -: JSON on stdin.
        stdin: Read the descriptor from stdin, as FILE -.
        as_ (mcp-tool): Write the tool ITEM of --catalog as a tool of the type mcp-tool, which 'dispatch relay'
            executes.
    """
    raw: Any = None
    if as_ is not None:
        if file is not None or stdin:
            raise CliError(
                f"--as {excerpt(as_)} writes the tool of --catalog, and reads no descriptor.",
                f"leave {'--stdin' if file is None else make_printable(file)} out, or leave out --as",
            )
        name, raw = _describe_as(settings, as_, item)
        settings.catalog, item = None, f"tool/{name}"
    elif (type is not None or key is not None) and item is not None and file is None:
        item, file = None, item
    target = parse_target(item, type, key)
    name, at, version = target.key.rpartition("@")
    if at and not is_version(version):
        raise CliError(
            f"'{excerpt(version)}' is not a SemVer version.", f"write for instance {target.kind}/{name}@2.0.0"
        )
    if stdin and file not in (None, STDIN):
        raise CliError("The descriptor is given twice.", "give a FILE, or --stdin")
    if file is None and not stdin and raw is None:
        raise CliError("No descriptor is given.", f"name its file, or give it on stdin: dispatch put {target} -")
    source = open_source(settings)
    document = read_document(file or STDIN) if raw is None else ItemDocument("", ".json", raw)
    if isinstance(source, TrustGraphConfig) and not isinstance(document.raw, dict):
        raise CliError(f"{target} was not written: the descriptor is not an object.", 'write one JSON object: {"…": …}')

    async def write() -> tuple[bool, Sequence[Problem]]:
        with _explain_os_errors("read", ""):
            existed = await _exists(source, target)
        if not isinstance(source, Folder):
            await source.put(target.kind, document.raw, key=target.key)
            return existed, ()
        with _explain_os_errors("written"):
            return existed, await source.put(
                target.kind, document.raw, key=target.key, text=document.text, suffix=document.suffix
            )

    try:
        existed, warnings = run_on_source(settings, source, "dispatch put", write)
    except CatalogError as error:
        raise refuse_write(target, error) from None
    place = _place_of(source, target)
    for warning in warnings:
        print_warning(str(warning))
    value = {"item": str(target), "place": place, "replaced": existed, "warnings": list(map(str, warnings))}
    print_result(value, f"{make_printable(place)}: {'replaced' if existed else 'written'}.", json=json)


def _describe_as(settings: Settings, type: str, name: str | None) -> tuple[str, dict[str, Any]]:
    """Return name and descriptor of a tool of the catalogue as a tool of another type."""
    if type != "mcp-tool":
        raise CliError(f"--as {excerpt(type)} is no type of a tool that can be written.", "write --as mcp-tool")
    if settings.trustgraph_workspace is None:
        raise CliError("A tool of the type mcp-tool belongs to TrustGraph's configuration.", "add --trustgraph")
    if name is None:
        raise CliError("No tool is given.", "name a tool of --catalog: dispatch put --as mcp-tool NAME")
    settings.catalog = settings.catalog or [DEFAULT_CATALOG]
    tool = load_catalog(settings).tool(name.removeprefix("tool/"))
    return tool.name, describe_mcp_tool(tool)


@with_settings(*_CONNECTION)
def rm(
    settings: Settings,
    item: _Target = None,
    type: _Type = None,
    key: _Key = None,
    force: bool = False,
    json: Json = False,
) -> None:
    """Remove a tool or a tool service from a folder of descriptors, or from TrustGraph's configuration.

    A service that tools still use is not removed without --force, and the exit code is 2. Calls in flight go on. A tool
    that is put again within 60 s keeps its rate limits and the state of its circuit.

    [bold]dispatch rm tool/tell-joke --catalog tools[/bold]

    [bold]dispatch rm tool-service/joke-service --trustgraph --workspace default[/bold]

    Args:
        force: Remove a service that tools use. A folder without it is refused as a whole; TrustGraph's agents fail.
    """
    target = parse_target(item, type, key)
    source = open_source(settings)

    async def remove() -> str:
        with _explain_os_errors("read", ""):
            place = _place_of(source, target)
        with _explain_os_errors("removed"):
            if not await source.remove(*target, force=force):
                raise _make_unknown_error(source, target, await source.list(target.kind))
        return place

    try:
        place = run_on_source(settings, source, "dispatch rm", remove)
    except ItemError as error:
        raise CliError(error.problem, f"{error.fix}, or give --force") from None
    except ValueError as error:
        raise CliError(str(error), "or give --force") from None
    value = {"item": str(target), "place": place, "removed": True}
    print_result(value, f"{make_printable(place)}: removed.", json=json)


@with_settings(*_CONNECTION)
def get(
    settings: Settings,
    item: Annotated[str | None, typer.Argument()] = None,
    type: _Type = None,
    key: _Key = None,
    json: bool = False,
) -> None:
    """Print the descriptor of a tool or a tool service as it is stored, or the keys of all of them.

    [bold]dispatch get tool/tell-joke --catalog tools[/bold]

    [bold]dispatch get tool --trustgraph[/bold]

    Args:
        item (ITEM): tool/NAME or tool-service/ID; tool or tool-service: list the keys.
        json: Print one line of JSON.
    """
    source = open_source(settings)
    kind = (item or "").rstrip("/") if type is None else type if key is None and item is None else ""
    if kind in KINDS:
        keys = run_on_source(settings, source, "dispatch get", lambda: source.list(kind))
        print_json(list(keys)) if json else print_out(
            "".join(f"{each}\n" for each in map(make_printable, keys)), end=""
        )
        return
    if item is None and type is None and key is None:
        raise CliError("No item is given.", f"'dispatch get tool' lists all tools; for one {_FORM}")
    target = parse_target(item, type, key)

    async def read() -> Any:
        with _explain_os_errors("read", ""):
            found = await source.get(*target)
        if found is None and target.key not in (keys := await source.list(target.kind)):
            raise _make_unknown_error(source, target, keys)
        return found

    found = run_on_source(settings, source, "dispatch get", read)
    # A text that is no JSON is shown as it is.
    text = found if isinstance(found, str) else standard_json.dumps(found, indent=2, ensure_ascii=False)
    print_result(found, make_printable(text), json=json)


# ``dispatch export``: write the generated descriptors of functions.


@with_settings("broker", "token_file", "trust_certs", "trustgraph", "workspace")
def export(
    settings: Settings,
    targets: list[str],
    to: str | None = None,
    service: Annotated[str | None, typer.Option(envvar="DISPATCH_SERVICE")] = None,
) -> None:
    """Write the descriptors of functions that 'dispatch serve' serves.

    [bold]dispatch export shop.py --to tools[/bold]

    [bold]dispatch export shop.py --trustgraph[/bold] writes them to the configuration that TrustGraph's agents read.

    Without --to and --trustgraph they are printed, as one line of JSON for each service. A tool that is no longer among the
    functions stays, with a warning.

    Args:
        targets (TARGET): Module or file of functions, as of 'dispatch serve'.
        to (DIR): Folder of descriptors, created if missing.
        service (NAME): Name of the service, as of 'dispatch serve'. Default: the name of the file or module.
    """
    if len(targets) > 1 and service:
        raise CliError("--service names one service, and there are several targets.", "leave it out")
    if to is not None:
        settings.catalog = [to]
    exported = []
    with divert_prints():
        for target in targets:
            loaded = load_target(target)
            if not loaded.functions:
                raise CliError(f"'{target}' is a service class, whose descriptors are not generated.", "name functions")
            name = service or name_target(target)
            exported.append(ToolServer(None, "memory://", functions=loaded.functions, service=name).descriptors)
    if to is None and settings.trustgraph_workspace is None:
        for each in exported:
            print_json({"service": each.service, "tools": each.tools})
        return
    if to is not None:
        os.makedirs(to, exist_ok=True)
    source = open_source(settings)

    async def write() -> list[str]:
        lines = []
        for described in exported:
            lines += await _write_service(source, described.service, described.tools)
        return lines

    for line in run_on_source(settings, source, "dispatch export", write):
        print_out(make_printable(line))


async def _write_service(source: ItemSource, service: dict[str, Any], tools: Sequence[dict[str, Any]]) -> list[str]:
    """Write the descriptors, and return a line for each. Warn of tools of the service that are not among them."""
    await source.put("tool-service", service, key=service["id"])
    keys = {tool[CONFIG_PARAM]: tool for tool in tools}
    for key, tool in keys.items():
        await source.put("tool", tool, key=key)
    for key in await source.list("tool"):
        raw = None if key in keys else await source.get("tool", key)
        if isinstance(raw, dict) and raw.get("service") == service["id"]:
            print_warning(f"tool/{key} is not among the functions. Remove it: dispatch rm tool/{key}")
    return [f"tool-service/{service['id']}: written.", *(f"tool/{key}: written." for key in keys)]


# ``dispatch mirror``: write announced tools into TrustGraph's configuration.


@with_settings("broker", "token_file", "trust_certs", "trustgraph", "workspace", "trust")
def mirror(
    settings: Settings,
    topic: Annotated[str, typer.Option(envvar="DISPATCH_ANNOUNCEMENTS")] = DEFAULT_TOPIC,
    json: bool = False,
) -> None:
    """Write announced tools into TrustGraph's configuration, so that its agents see them, and remove them again.

    [bold]dispatch mirror --trustgraph[/bold]

    It runs until SIGTERM or Ctrl-C, and leaves what it has written. Items that others have written are neither changed nor
    removed. Of several versions of a tool TrustGraph's agents get the highest one.

    Args:
        topic (TOPIC): Topic of the announcements.
        json: Report each change as one line of JSON.
    """
    workspace = settings.trustgraph_workspace
    if workspace is None:
        raise CliError("No target is given.", "add --trustgraph, or --workspace NAME")
    if workspace == ALL_WORKSPACES:
        raise CliError("The tools are written to one workspace.", "name it with --workspace NAME")
    config = make_trustgraph_config(workspace)
    announced = Announced(settings.load_trust(), topic=topic)

    def report(written: Sequence[Place], removed: Sequence[Place]) -> None:
        if json:
            if written or removed:
                print_json({"written": [*map("/".join, written)], "removed": [*map("/".join, removed)]})
            return
        for verb, places in (("written", written), ("removed", removed)):
            for kind, key in places:
                print_out(make_printable(f"{kind}/{key}: {verb}."))

    async def run() -> None:
        async with connect_sources(settings, [config, announced], "dispatch mirror"):
            print_err(f"Mirroring {topic} into workspace '{workspace}'. Ctrl-C ends it and leaves what it has written.")
            await run_until_sigterm(Mirror(announced, config, report).follow())

    run_async(run())
