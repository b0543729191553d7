"""``dispatch put``, ``rm`` and ``get``: write, remove and show items of a folder or of TrustGraph's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dispatch.cli.output import make_printable, print_json, print_out, print_warning
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.cli.items.item_store import ItemStore
    from dispatch.cli.items.item_target import ItemTarget

_TRUSTGRAPH: Final = "As in TrustGraph"

_Target = Annotated[
    str | None,
    typer.Argument(
        metavar="ITEM", help="tool/NAME or tool-service/ID; a version of it: NAME@VERSION.", show_default=False
    ),
]
_Type = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="tool or tool-service, in place of ITEM.",
        show_default=False,
        rich_help_panel=_TRUSTGRAPH,
    ),
]
_Key = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", help="Name or id, in place of ITEM.", show_default=False, rich_help_panel=_TRUSTGRAPH
    ),
]
_CONNECTION: Final = ("broker", "catalog", "trustgraph", "workspace", "token_file", "trust_certs")


@with_settings(*_CONNECTION)
def put(
    settings: Settings,
    item: _Target = None,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="The descriptor as JSON or YAML; -: JSON on stdin.", show_default=False),
    ] = None,
    type: _Type = None,
    key: _Key = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the descriptor from stdin, as FILE -.", rich_help_panel=_TRUSTGRAPH)
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")] = False,
) -> None:
    """Write a tool or a tool service to a folder of descriptors, or to TrustGraph's configuration.

    The descriptor is checked before, together with the others: with a mistake nothing is written, and the exit code is 2. A
    file is replaced as a whole. Dispatchers that watch the folder, or follow TrustGraph's configuration, put the change in
    force within a second. Put a service before its tools.

    [bold]dispatch put tool-service/joke-service joke-service.json --catalog tools[/bold]

    [bold]dispatch put tool/tell-joke@2.0.0 new.json --catalog tools[/bold]

    [bold]dispatch get tool/tell-joke | sed s/pun/dry/ | dispatch put tool/tell-joke -[/bold]

    [bold]dispatch put --trustgraph --type tool --key tell-joke --stdin < tell-joke.json[/bold]
    """
    from dispatch.cli.exit_codes import CliError
    from dispatch.cli.items.item_document import STDIN, read_document

    if (type is not None or key is not None) and item is not None and file is None:
        item, file = None, item
    target = _parse_target(item, type, key)
    if stdin and file not in (None, STDIN):
        raise CliError("The descriptor is given twice.", "give a FILE, or --stdin")
    if file is None and not stdin:
        raise CliError("No descriptor is given.", f"name its file, or give it on stdin: dispatch put {target} -")
    store = _open_store(settings, "dispatch put")
    stored = store.put(target, read_document(file or STDIN))
    for warning in stored.warnings:
        print_warning(str(warning))
    if json:
        print_json(
            {
                "item": str(target),
                "place": stored.place,
                "replaced": stored.existed,
                "warnings": [str(warning) for warning in stored.warnings],
            }
        )
    else:
        print_out(f"{make_printable(stored.place)}: {'replaced' if stored.existed else 'written'}.")


@with_settings(*_CONNECTION)
def rm(
    settings: Settings,
    item: _Target = None,
    type: _Type = None,
    key: _Key = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Remove a service that tools use. A folder without it is refused as a whole; TrustGraph's agents fail.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")] = False,
) -> None:
    """Remove a tool or a tool service from a folder of descriptors, or from TrustGraph's configuration.

    A service that tools still use is not removed without --force, and the exit code is 2. Calls in flight go on. A tool
    that is put again within 60 s keeps its rate limits and the state of its circuit.

    [bold]dispatch rm tool/tell-joke --catalog tools[/bold]

    [bold]dispatch rm tool-service/joke-service --trustgraph --workspace default[/bold]
    """
    target = _parse_target(item, type, key)
    store = _open_store(settings, "dispatch rm")
    removed = store.remove(target, force=force)
    if removed is None:
        raise _make_unknown_error(store, target)
    if json:
        print_json({"item": str(target), "place": removed.place, "removed": True})
    else:
        print_out(f"{make_printable(removed.place)}: removed.")


@with_settings(*_CONNECTION)
def get(
    settings: Settings,
    item: Annotated[
        str | None,
        typer.Argument(
            metavar="ITEM",
            help="tool/NAME or tool-service/ID; tool or tool-service: list the keys.",
            show_default=False,
        ),
    ] = None,
    type: _Type = None,
    key: _Key = None,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Print the descriptor of a tool or a tool service as it is stored, or the keys of all of them.

    [bold]dispatch get tool/tell-joke --catalog tools[/bold]

    [bold]dispatch get tool --trustgraph[/bold]
    """
    from dispatch.catalog.readers.item import KINDS
    from dispatch.cli.items.item_folder import format_descriptor
    from dispatch.cli.items.item_store import NOT_STORED

    store = _open_store(settings, "dispatch get")
    kind = (item or "").rstrip("/") if type is None else type if key is None and item is None else ""
    if kind in KINDS:
        keys = store.list_keys(kind)
        print_json(list(keys)) if json else print_out(
            "".join(f"{each}\n" for each in map(make_printable, keys)), end=""
        )
        return
    target = _parse_target(item, type, key)
    found = store.find(target)
    if found is NOT_STORED:
        raise _make_unknown_error(store, target)
    if json:
        print_json(found)
    else:
        print_out(make_printable(format_descriptor(found)))


def _parse_target(item: str | None, type: str | None, key: str | None) -> ItemTarget:
    from dispatch.cli.items.item_target import parse_target

    return parse_target(item, type, key)


def _open_store(settings: Settings, command: str) -> ItemStore:
    from dispatch.cli.exit_codes import CliError
    from dispatch.cli.items.item_config import ItemConfig
    from dispatch.cli.items.item_folder import ItemFolder

    workspace = settings.trustgraph_workspace
    if workspace is not None:
        if settings.catalog:
            raise CliError("An item belongs to one source.", "give --catalog DIR or --trustgraph")
        return ItemConfig(settings, workspace, command)
    folders = settings.require_catalog_folders()
    if len(folders) > 1:
        raise CliError("An item belongs to one source.", "give one --catalog DIR")
    return ItemFolder(folders[0])


def _make_unknown_error(store: ItemStore, target: ItemTarget) -> Any:
    from dispatch._internal.suggestions import find_near_names, join_alternatives
    from dispatch.cli.exit_codes import CliError

    near = find_near_names(target.key, store.list_keys(target.kind))
    fix = f"did you mean {join_alternatives(near)}?" if near else f"'dispatch get {target.kind}' lists what is there"
    return CliError(f"There is no {target} in {store.label}.", fix)
