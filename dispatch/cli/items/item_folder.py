"""Items in a folder of descriptors: read, write and remove one, without making the folder invalid."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from dispatch._internal.suggestions import excerpt
from dispatch.catalog import Item, Problem, check_items
from dispatch.catalog.sources.folder_reader import PARSERS, FolderReader, FolderReading, show_path
from dispatch.cli.exit_codes import CliError
from dispatch.cli.items.item_document import ItemDocument
from dispatch.cli.items.item_store import NOT_STORED, StoredItem, refuse_removal, refuse_write
from dispatch.cli.items.item_target import ItemTarget

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
