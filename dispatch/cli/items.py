"""Items that commands write: their names, their texts, and their stores."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NamedTuple, Protocol, TypeVar

import typer

from dispatch._internal import excerpt, find_near_names, join_names
from dispatch.catalog import CatalogError, Item, Problem, check_items
from dispatch.catalog.fields import DocumentError
from dispatch.catalog.folder import MAX_FILE_BYTES, PARSERS, FolderReader, FolderReading, show_path
from dispatch.catalog.items import KINDS
from dispatch.cli.base import CliError, Settings, make_printable, print_json, print_out, print_warning, with_settings
from dispatch.cli.sources import connect_sources, make_trustgraph_config, run_with_progress
from dispatch.trustgraph.config import TrustGraphConfig

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


def read_document(name: str, stdin: BinaryIO | None = None) -> ItemDocument:
    """Read and parse a descriptor.

    Args:
        name: of the file; ``-``: stdin, as JSON.
        stdin: stream for ``-``; None: that of the process.

    Raises:
        CliError: it cannot be read, or is not JSON or YAML.
    """
    what = "stdin" if name == STDIN else name
    try:
        if name == STDIN:
            content = (stdin or sys.stdin.buffer).read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CliError(
            f"{what} cannot be read: {error.strerror or error}.", "name a readable file, or - for stdin"
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise CliError(f"{what} has more than {MAX_FILE_BYTES:,} bytes.", "keep data out of the descriptor")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CliError(f"{what} is not UTF-8 (byte {error.start:,}).", "convert it to UTF-8") from None
    suffix = Path(name).suffix.lower() if name != STDIN else ".json"
    parse = PARSERS.get(suffix)
    if parse is None:
        raise CliError(f"{what} is not a .json, .yaml or .yml file.", "rename it, or give its JSON on stdin")
    try:
        raw = parse(text)
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
        if not separator:
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


# The interface of a store of items, which ``put``, ``rm`` and ``get`` use.


NOT_STORED: Final = object()
"""Result of a search for an item that is not there."""
MAX_SHOWN: Final = 10
"""Mistakes in one error."""


class StoredItem(NamedTuple):
    """An item that was written or removed.

    Attributes:
        target: the item.
        place: its file, or its place in TrustGraph's configuration.
        existed: there was such an item before.
        warnings: of its descriptor.
    """

    target: ItemTarget
    place: str
    existed: bool
    warnings: tuple[Problem, ...] = ()


class ItemStore(Protocol):
    """Stores items. ``label`` names it in messages."""

    label: str

    def find(self, target: ItemTarget) -> Any:
        """Return the descriptor of an item as JSON values, or its text; :data:`NOT_STORED`: there is none."""

    def list_keys(self, kind: str) -> tuple[str, ...]:
        """Return the keys of all items of a kind, sorted."""

    def put(self, target: ItemTarget, document: ItemDocument) -> StoredItem:
        """Write an item that is valid; otherwise write nothing.

        Raises:
            CliError: it is invalid, or cannot be written.
        """

    def remove(self, target: ItemTarget, *, force: bool) -> StoredItem | None:
        """Remove an item; None: there is none.

        Raises:
            CliError: tools use the service and ``force`` is not set, or it cannot be removed.
        """


def refuse_write(target: ItemTarget, mistakes: Sequence[Problem]) -> CliError:
    """Return the error for an item that is invalid, or would make others invalid."""
    shown = [f"  {problem}" for problem in mistakes[:MAX_SHOWN]]
    if len(mistakes) > MAX_SHOWN:
        shown.append(f"  and {len(mistakes) - MAX_SHOWN:,} more")
    count = f"{len(mistakes)} mistake{'' if len(mistakes) == 1 else 's'}"
    return CliError("\n".join([f"{target} was not written: the catalogue would have {count}.", *shown]))


def refuse_removal(target: ItemTarget, users: Sequence[str]) -> CliError:
    """Return the error for a service that items need.

    Args:
        users: files or keys of these items.
    """
    return CliError(
        f"{target} was not removed: {join_names(users, MAX_SHOWN)} {'needs' if len(users) == 1 else 'need'} it.",
        "remove these items first, or give --force",
    )


# Items in a folder of descriptors: read, write and remove one, without making the folder invalid.


_MAX_FILE_NAME_BYTES = 255


class ItemFolder:
    """A folder of descriptors as a store of items.

    Args:
        path: the folder.

    Raises:
        CliError: there is no such folder.
    """

    def __init__(self, path: str) -> None:
        if not os.path.isdir(path):
            raise CliError(f"There is no folder '{path}'.", f"mkdir {path}, or name another one with --catalog DIR")
        self._path = path
        self.label = show_path(path)

    def find(self, target: ItemTarget) -> Any:
        """Return the descriptor of an item: JSON values, or its text if that is neither JSON nor YAML.
        :data:`NOT_STORED`: there is none."""
        file = self._find_file(target)
        if file is None:
            return NOT_STORED
        try:
            with open(file, encoding="utf-8-sig", errors="replace") as stream:
                text = stream.read()
        except OSError as error:
            raise CliError(f"{show_path(file)} cannot be read: {error.strerror or error}.") from None
        try:
            return PARSERS[os.path.splitext(file)[1].lower()](text)
        except ValueError:
            return text

    def list_keys(self, kind: str) -> tuple[str, ...]:
        """Return the keys of all items of a kind, sorted."""
        return tuple(sorted(item.key for item in self._read().items if item.kind == kind))

    def put(self, target: ItemTarget, document: ItemDocument) -> StoredItem:
        """Write an item: replaced as a whole, so that a reader sees the former file or the new one.

        Raises:
            CliError: the folder would have mistakes that it does not have now. Nothing is written.
        """
        self._check_key(target)
        former = self._find_file(target)
        suffix = document.suffix if former is None else os.path.splitext(former)[1]
        if suffix.lower() not in _same_format(document.suffix):
            raise CliError(
                f"{target} is stored in {show_path(former or '')}, and the new descriptor is {document.suffix[1:].upper()}.",
                f"give it in the format of that file, or remove the item first: dispatch rm {target}",
            )
        file = former or os.path.join(self._path, target.kind, f"{target.key}{suffix}")
        reading = self._read()
        item = Item(show_path(file), target.kind, target.key, document.raw)
        items = [*_without(reading, target), item]
        mistakes = _find_new_mistakes(reading, items)
        if mistakes:
            raise refuse_write(target, mistakes)
        self._write(file, document.text)
        return StoredItem(target, show_path(file), former is not None, _find_warnings(items, item.origin))

    def remove(self, target: ItemTarget, *, force: bool) -> StoredItem | None:
        """Remove an item; None: there is none.

        Args:
            force: also if tools use the service. The folder cannot be loaded then.

        Raises:
            CliError: the folder would have mistakes that it does not have now. Nothing is removed.
        """
        file = self._find_file(target)
        if file is None:
            return None
        reading = self._read()
        mistakes = [] if force else _find_new_mistakes(reading, _without(reading, target))
        if mistakes:
            raise refuse_removal(target, tuple(dict.fromkeys(each.file for each in mistakes)))
        try:
            os.unlink(file)
        except OSError as error:
            raise CliError(
                f"{show_path(file)} cannot be removed: {error.strerror or error}.", "make its folder writable"
            ) from None
        return StoredItem(target, show_path(file), True)

    def _read(self) -> FolderReading:
        return FolderReader(self._path).read()

    def _find_file(self, target: ItemTarget) -> str | None:
        folder = os.path.join(self._path, target.kind)
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CliError(f"{show_path(folder)} cannot be read: {error.strerror or error}.") from None
        for name in names:
            stem, suffix = os.path.splitext(name)
            if show_path(stem) == target.key and suffix.lower() in PARSERS:
                return os.path.join(folder, name)
        return None

    def _check_key(self, target: ItemTarget) -> None:
        is_too_long = len(os.fsencode(target.key)) > _MAX_FILE_NAME_BYTES - len(".json")
        if "/" in target.key or "\0" in target.key or target.key.startswith(".") or is_too_long:
            raise CliError(
                f"'{excerpt(target.key)}' cannot be the name of a file.",
                "use a key without '/', that does not begin with '.', of at most 250 bytes",
            )

    def _write(self, file: str, text: str) -> None:
        folder = os.path.dirname(file)
        try:
            os.makedirs(folder, exist_ok=True)
            mode = _mode_of(file)
            descriptor, temporary = tempfile.mkstemp(
                prefix=f".{os.path.basename(file)[:100]}.", suffix=".tmp", dir=folder
            )
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.chmod(temporary, mode)
                os.replace(temporary, file)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise CliError(
                f"{show_path(file)} cannot be written: {error.strerror or error}.", "make its folder writable"
            ) from None


def format_descriptor(raw: Any) -> str:
    """Return a descriptor as JSON for people; a text that is no JSON as it is."""
    return raw if isinstance(raw, str) else json.dumps(raw, indent=2, ensure_ascii=False)


def _without(reading: FolderReading, target: ItemTarget) -> list[Item]:
    return [item for item in reading.items if (item.kind, item.key) != (target.kind, target.key)]


def _find_new_mistakes(reading: FolderReading, items: Sequence[Item]) -> list[Problem]:
    """Return the errors of ``items`` that those of ``reading`` do not have: one that is there already is no reason to refuse
    a change, which may correct it."""
    before = {(each.file, each.key, each.problem) for each in check_items(reading.items)[1]}
    return [
        each
        for each in check_items(items)[1]
        if each.severity == "error" and (each.file, each.key, each.problem) not in before
    ]


def _find_warnings(items: Sequence[Item], origin: str) -> tuple[Problem, ...]:
    return tuple(each for each in check_items(items)[1] if each.file == origin and each.severity == "warning")


def _same_format(suffix: str) -> tuple[str, ...]:
    return (".json",) if suffix == ".json" else (".yaml", ".yml")


def _mode_of(file: str) -> int:
    try:
        return os.stat(file).st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


# Items in TrustGraph's configuration: read, write and remove one.


T = TypeVar("T")

_ALL: Final = "*"


class ItemConfig:
    """TrustGraph's configuration as a store of items. Each method connects to the broker.

    Args:
        settings: the broker's, and the workspace.
        command: for messages.

    Raises:
        CliError: the workspace is reserved, or stands for all.
    """

    def __init__(self, settings: Settings, workspace: str, command: str) -> None:
        if workspace == _ALL:
            raise CliError("An item belongs to one workspace.", "name it with --workspace NAME")
        self._settings = settings
        self._workspace = workspace
        self._command = command
        self.label = f"TrustGraph's configuration, workspace '{workspace}'"

    def find(self, target: ItemTarget) -> Any:
        """See :class:`ItemStore`."""

        async def find(source: TrustGraphConfig) -> Any:
            found = await source.get(*target)
            return NOT_STORED if found is None else found

        return self._run(find)

    def list_keys(self, kind: str) -> tuple[str, ...]:
        """See :class:`ItemStore`."""
        return self._run(lambda source: source.list(kind))

    def put(self, target: ItemTarget, document: ItemDocument) -> StoredItem:
        """See :class:`ItemStore`. Together with a tool its service is written again, so that TrustGraph's agents reload."""
        raw = document.raw
        if not isinstance(raw, dict):
            raise CliError(
                f"{target} was not written: the descriptor is not an object.", 'write one JSON object: {"…": …}'
            )

        async def put(source: TrustGraphConfig) -> bool:
            existed = await source.get(*target) is not None
            await source.put(target.kind, raw, key=target.key)
            return existed

        try:
            existed = self._run(put)
        except CatalogError as error:
            mistakes = [problem for problem in error.problems if problem.severity == "error"]
            raise refuse_write(target, mistakes) from None
        return StoredItem(target, self._place_of(target), existed)

    def remove(self, target: ItemTarget, *, force: bool) -> StoredItem | None:
        """See :class:`ItemStore`."""
        try:
            is_removed = self._run(lambda source: source.remove(*target, force=force))
        except ValueError as error:
            raise CliError(str(error), "or give --force") from None
        return StoredItem(target, self._place_of(target), True) if is_removed else None

    def _place_of(self, target: ItemTarget) -> str:
        return f"trustgraph:{self._workspace}/{target}"

    def _run(self, function: Callable[[TrustGraphConfig], Awaitable[T]]) -> T:
        source = make_trustgraph_config(self._workspace)

        async def run() -> T:
            async with connect_sources(self._settings, [source], self._command):
                return await function(source)

        return run_with_progress(
            run(), f"Waiting for TrustGraph's config service through {self._settings.broker_url} …"
        )


# ``dispatch put``, ``rm`` and ``get``: write, remove and show items of a folder or of TrustGraph's configuration.


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
    from dispatch.cli.base import CliError

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
    from dispatch.catalog.items import KINDS

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

    return parse_target(item, type, key)


def _open_store(settings: Settings, command: str) -> ItemStore:
    from dispatch.cli.base import CliError

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
    from dispatch._internal import find_near_names, join_alternatives
    from dispatch.cli.base import CliError

    near = find_near_names(target.key, store.list_keys(target.kind))
    fix = f"did you mean {join_alternatives(near)}?" if near else f"'dispatch get {target.kind}' lists what is there"
    return CliError(f"There is no {target} in {store.label}.", fix)
