"""A folder of descriptors: ``tool-service/ID.json`` and ``tool/NAME.json``, the items as TrustGraph stores them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from dispatch._internal.suggestions import excerpt, find_near_names
from dispatch.catalog.catalog import Catalog, check_items
from dispatch.catalog.errors import Problem, Severity
from dispatch.catalog.loader import require_valid
from dispatch.catalog.parsing import DocumentError, parse_json, parse_yaml
from dispatch.catalog.readers.item import KINDS, Item, Unreadable

MAX_FILE_BYTES: Final = 1024 * 1024
"""Bytes of the largest descriptor file. Real ones have one or two kilobytes; a larger one is a misplaced data file."""

MAX_FILES: Final = 10_000
"""Descriptor files in one folder."""

_PARSERS: Final = {".json": parse_json, ".yaml": parse_yaml, ".yml": parse_yaml}
_EXAMPLE: Final = "tool-service/joke-service.json and tool/tell-joke.json"


def load_directory(path: str | os.PathLike[str]) -> Catalog:
    """Load the catalogue in the folder ``path``. Warnings go to the log ``dispatch.catalog``.

    Raises:
        CatalogError: lists all errors in the descriptors, each with its file, key and fix.
    """
    return require_valid(*check_directory(path))


def check_directory(path: str | os.PathLike[str]) -> tuple[Catalog | None, list[Problem]]:
    """Return the catalogue in the folder ``path`` and all problems, always in the same order: of the folder, then of
    services, then of tools, each by file name. With any error the catalogue is None."""
    folder = Path(path)
    problems = _Problems()
    catalog, found = check_items(_read(folder, problems), "directory")
    if any(problem.severity == "error" for problem in problems.found):
        catalog = None
    return catalog, [*problems.found, *found]


class _Problems:
    def __init__(self) -> None:
        self.found: list[Problem] = []

    def error(self, path: Path, problem: str, fix: str, key: str = "") -> None:
        self.add(path, problem, fix, "error", key)

    def add(self, path: Path, problem: str, fix: str, severity: Severity, key: str = "") -> None:
        self.found.append(Problem(_shown(path), key, problem, fix, severity))


def _shown(path: Path) -> str:
    # A file name may have any bytes; a message must be printable.
    return excerpt(os.fsencode(path).decode("utf-8", "backslashreplace"), 4096)


def _read(folder: Path, problems: _Problems) -> Iterator[Item]:
    try:
        if not folder.is_dir():
            if folder.exists():
                problems.error(folder, "not a folder", f"use the folder with {_EXAMPLE}")
            else:
                problems.error(folder, "there is no such folder", f"create it, with {_EXAMPLE}, or use another one")
            return
        names = sorted(entry.name for entry in islice(folder.iterdir(), MAX_FILES) if entry.name not in KINDS)
        kinds = [kind for kind in KINDS if (folder / kind).is_dir()]
    except OSError as error:
        problems.error(folder, f"cannot be read: {error.strerror or error}", "make the folder readable for this user")
        return
    missing = [kind for kind in KINDS if kind not in kinds]
    near = [(name, kind) for kind in missing for name in find_near_names(kind, names, 1)]
    fix = "; ".join(f"rename '{excerpt(name)}' to '{kind}'" for name, kind in near) or f"put {_EXAMPLE} there"
    if not kinds:
        problems.error(folder, "neither tool-service/ nor tool/ is in this folder", fix)
        return
    if missing:
        problems.add(folder, f"there is no {missing[0]}/ in this folder", fix, "warning")
    count = 0
    for kind in kinds:
        for item in _read_kind(folder / kind, kind, problems):
            count += 1
            yield item
    if not count and not missing:
        problems.add(folder, "no descriptors in this folder: there are no tools", f"put {_EXAMPLE} there", "warning")


def _read_kind(folder: Path, kind: str, problems: _Problems) -> Iterator[Item]:
    try:
        visible = (path for path in folder.iterdir() if not path.name.startswith("."))
        paths = sorted(islice(visible, MAX_FILES + 1))
    except OSError as error:
        problems.error(folder, f"cannot be read: {error.strerror or error}", "make the folder readable for this user")
        yield Item(_shown(folder), kind, "", Unreadable())
        return
    if len(paths) > MAX_FILES:
        problems.error(folder, f"more than {MAX_FILES:,} files", "use several folders")
        yield Item(_shown(folder), kind, "", Unreadable())
        return
    for path in paths:
        parser = _PARSERS.get(path.suffix.lower())
        if parser is None:
            problems.add(path, "not a .json, .yaml or .yml file: it is ignored", "move it elsewhere", "info")
            continue
        key = _shown(Path(path.stem))
        raw: object = Unreadable()
        try:
            raw = parser(_text(path))
        except OSError as error:
            problems.error(path, f"cannot be read: {error.strerror or error}", "make the file readable for this user")
        except DocumentError as error:
            for at, problem, fix in error.mistakes:
                problems.error(path, problem, fix, at)
        yield Item(_shown(path), kind, key, raw)


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise DocumentError(("", "not a regular file", "put a file in its place"))
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise DocumentError(("", f"more than {MAX_FILE_BYTES:,} bytes", "keep data out of the descriptor"))
    try:
        return content.decode("utf-8-sig")  # some editors begin a UTF-8 file with a byte order mark
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
        problem = f"not UTF-8: byte {error.start:,} begins no character"
        raise DocumentError(("", problem, f"if it is {encoding}, convert it: iconv -f {encoding} -t UTF-8")) from None
