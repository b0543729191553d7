"""Reads a folder of descriptor files: ``tool-service/ID.json`` and ``tool/NAME.json``, as TrustGraph stores the items."""

from __future__ import annotations

import operator
import os
import stat
import threading
import time
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

from dispatch._internal.suggestions import excerpt, find_near_names
from dispatch.catalog.errors import Problem, Severity
from dispatch.catalog.readers.item import KINDS, Item, Unreadable
from dispatch.catalog.readers.parsing import DocumentError, parse_json, parse_yaml

MAX_FILE_BYTES: Final = 1024 * 1024
"""Bytes of the largest descriptor file. Real ones have one or two kilobytes; a larger one is a misplaced data file."""

MAX_FILES: Final = 10_000
"""Descriptor files in one folder."""

MAX_REMEMBERED: Final = 40_000
"""Files that are remembered while a folder has errors: those of two full folders, and as many that replace them."""

PARTIAL_WRITE_S: Final = 0.2
"""Seconds after which a file that may be partly written is read again. A program that does not replace a file atomically
truncates it and writes it within milliseconds."""

MAX_READINGS: Final = 10
"""Readings, each :data:`PARTIAL_WRITE_S` after the former one, of a folder in which every time another file is invalid."""

RACY_NS: Final = 100_000_000
"""Age in nanoseconds below which a time stamp does not prove that a file is unchanged: a second write within the resolution
of the file system's clock (4 ms on Linux before 6.13, 10 ms on some kernels) leaves the same time stamp."""

PARSERS: Final = {".json": parse_json, ".yaml": parse_yaml, ".yml": parse_yaml}
_EXAMPLE: Final = "tool-service/joke-service.json and tool/tell-joke.json"

Signature = tuple[int, int, int, int, int]


class FolderReading(NamedTuple):
    """The contents of a folder at one moment.

    Attributes:
        number: 1 for the first contents that a reader found; the next number whenever the contents differ.
        items: the descriptors; those of an unchanged file are the same objects as before.
        problems: of the folder and its files; problems inside a descriptor are found when the items are loaded.
        has_errors: the items must not be used.
        may_be_partial: a file may be partly written: read again after :data:`PARTIAL_WRITE_S`.
    """

    number: int
    items: tuple[Item, ...]
    problems: tuple[Problem, ...]
    has_errors: bool
    may_be_partial: bool

    def is_confirmed_by(self, later: FolderReading) -> bool:
        """Return whether ``later``, read :data:`PARTIAL_WRITE_S` afterwards, may be used or reported: it has no errors, or
        one in a file that had one before. A file that is invalid for the first time may be partly written."""
        return not later.has_errors or not self._files_with_errors.isdisjoint(later._files_with_errors)

    @property
    def _files_with_errors(self) -> set[str]:
        return {problem.file for problem in self.problems if problem.severity == "error"}


class _File(NamedTuple):
    """The last reading of one file. ``signature`` None: the next reading must not rely on time stamps."""

    signature: Signature | None
    digest: bytes
    item: Item
    problems: tuple[Problem, ...]
    valid: tuple[bytes, Item] | None
    """Digest and item of its last valid content: a file that is truncated and written again keeps its item."""


class FolderReader:
    """Reads a folder again and again; a file that did not change is neither read nor parsed again. Thread-safe.

    Args:
        path: the folder.
        namespace: of the items.
    """

    def __init__(self, path: str | os.PathLike[str], namespace: str = "") -> None:
        self._path = os.fspath(path)
        self._namespace = namespace
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()
        self._last = FolderReading(0, (), (), False, False)

    @property
    def last(self) -> FolderReading:
        """The last reading; its number is 0 before the first one."""
        return self._last

    def read(self) -> FolderReading:
        """Read the folder. Returns the same object as before if the contents are the same. Never raises for the contents."""
        with self._lock:
            scan = _Scan(self._path, self._namespace, self._files)
            items = tuple(scan.read_items())
            problems = tuple(scan.problems)
            has_errors = any(problem.severity == "error" for problem in problems)
            if has_errors and len(self._files) <= MAX_REMEMBERED:
                self._files = {**self._files, **scan.files}  # a file that is missing now may come back unchanged
            else:
                self._files = scan.files
            last = self._last
            if not last.number or not _is_same(last, items, problems):
                self._last = FolderReading(last.number + 1, items, problems, has_errors, has_errors or scan.is_recent)
            return self._last


def _is_same(last: FolderReading, items: tuple[Item, ...], problems: tuple[Problem, ...]) -> bool:
    if len(last.items) != len(items) or not all(map(operator.is_, last.items, items)):
        return False
    return _without_notes(last.problems) == _without_notes(problems)


def _without_notes(problems: tuple[Problem, ...]) -> list[Problem]:
    # A note says that a file is ignored: editors and deployment tools create and delete such files all the time.
    return [problem for problem in problems if problem.severity != "info"]


def show_path(path: str) -> str:
    """Return a path for messages: a file name may have any bytes, a message must be printable."""
    return excerpt(os.fsencode(path).decode("utf-8", "backslashreplace"), 4096)


class _Scan:
    """One reading. ``files``: those that were read; ``is_recent``: one may be partly written, although it is valid."""

    def __init__(self, path: str, namespace: str, former: dict[str, _File]) -> None:
        self.files: dict[str, _File] = {}
        self.problems: list[Problem] = []
        self.is_recent = False
        self._path = path
        self._namespace = namespace
        self._former = former

    def read_items(self) -> Iterator[Item]:
        path = self._path
        try:
            if not _is_folder(path):
                if os.path.exists(path):
                    self._add_error(path, "not a folder", f"use the folder with {_EXAMPLE}")
                else:
                    fix = f"create it, with {_EXAMPLE}, or use another one"
                    self._add_error(path, "there is no such folder", fix)
                return
            with os.scandir(path) as entries:
                names = sorted(entry.name for entry in islice(entries, MAX_FILES) if entry.name not in KINDS)
            kinds = [kind for kind in KINDS if _is_folder(os.path.join(path, kind))]
        except OSError as error:
            self._add_error(path, _cannot_be_read(error), "make the folder readable for this user")
            return
        missing = [kind for kind in KINDS if kind not in kinds]
        near = [(name, kind) for kind in missing for name in find_near_names(kind, names, 1)]
        fix = "; ".join(f"rename '{excerpt(name)}' to '{kind}'" for name, kind in near) or f"put {_EXAMPLE} there"
        if not kinds:
            self._add_error(path, "neither tool-service/ nor tool/ is in this folder", fix)
            return
        if missing:
            self._add(path, f"there is no {missing[0]}/ in this folder", fix, "warning")
        count = 0
        for kind in kinds:
            for item in self._read_kind(os.path.join(path, kind), kind):
                count += 1
                yield item
        if not count and not missing:
            self._add(path, "no descriptors in this folder: there are no tools", f"put {_EXAMPLE} there", "warning")

    def _read_kind(self, folder: str, kind: str) -> Iterator[Item]:
        try:
            with os.scandir(folder) as entries:
                visible = (entry.name for entry in entries if not entry.name.startswith("."))
                names = sorted(islice(visible, MAX_FILES + 1))
        except OSError as error:
            self._add_error(folder, _cannot_be_read(error), "make the folder readable for this user")
            yield self._unreadable(folder, kind)
            return
        if len(names) > MAX_FILES:
            self._add_error(folder, f"more than {MAX_FILES:,} files", "use several folders")
            yield self._unreadable(folder, kind)
            return
        for name in names:
            path = os.path.join(folder, name)
            stem, suffix = os.path.splitext(name)
            if suffix.lower() not in PARSERS:
                self._add(path, "not a .json, .yaml or .yml file: it is ignored", "move it elsewhere", "info")
                continue
            former = self._former.get(path)
            file = self._read_file(path, kind, stem, suffix.lower(), former)
            if file is not None:
                self.files[path] = file
                self.problems += file.problems
                yield file.item

    def _unreadable(self, folder: str, kind: str) -> Item:
        former = self._former.get(folder)
        item = former.item if former is not None else Item(show_path(folder), kind, "", Unreadable(), self._namespace)
        self.files[folder] = _File(None, b"", item, (), None)
        return item

    def _read_file(self, path: str, kind: str, stem: str, suffix: str, former: _File | None) -> _File | None:
        valid = former.valid if former is not None else None
        signature: Signature | None = None
        digest = b""
        problems: list[Problem]
        try:
            signature = _sign(os.stat(path))
            if former is not None and former.signature == signature:
                return former
            content, signature = _read_content(path)
            digest = blake2b(content, digest_size=16).digest()
            if suffix != ".json" and time.time_ns() - signature[3] < PARTIAL_WRITE_S * 1e9:
                self.is_recent = True  # the beginning of a YAML text is often valid YAML
            if _is_racy(signature):
                signature = None
            if former is not None and former.digest == digest:
                return former._replace(signature=signature)
            if valid is not None and valid[0] == digest:
                return _File(signature, digest, valid[1], (), valid)
            item = Item(show_path(path), kind, show_path(stem), PARSERS[suffix](_decode(content)), self._namespace)
            return _File(signature, digest, item, (), (digest, item))
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
                return None  # deleted since the folder was listed
            signature, digest = None, b""
            problem = (path, "", _cannot_be_read(error), "make the file readable for this user")
            problems = [_make_error(*problem)]
        except DocumentError as error:
            problems = [_make_error(path, at, problem, fix) for at, problem, fix in error.mistakes]
        is_former_unusable = former is not None and isinstance(former.item.raw, Unreadable)
        if former is not None and is_former_unusable:
            item = former.item
        else:
            item = Item(show_path(path), kind, show_path(stem), Unreadable(), self._namespace)
        return _File(signature, digest, item, tuple(problems), valid)

    def _add_error(self, path: str, problem: str, fix: str) -> None:
        self._add(path, problem, fix, "error")

    def _add(self, path: str, problem: str, fix: str, severity: Severity) -> None:
        self.problems.append(Problem(show_path(path), "", problem, fix, severity))


def _make_error(path: str, key: str, problem: str, fix: str) -> Problem:
    return Problem(show_path(path), key, problem, fix, "error")


def _cannot_be_read(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL character
        return False


def _sign(status: os.stat_result) -> Signature:
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would block
        raise DocumentError(("", "not a regular file", "put a file in its place"))
    return status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_racy(signature: Signature) -> bool:
    return time.time_ns() - max(signature[3:]) < RACY_NS


def _read_content(path: str) -> tuple[bytes, Signature]:
    with open(path, "rb") as file:
        signature = _sign(os.fstat(file.fileno()))
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise DocumentError(("", f"more than {MAX_FILE_BYTES:,} bytes", "keep data out of the descriptor"))
    return content, signature


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # some editors begin a UTF-8 file with a byte order mark
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
        problem = f"not UTF-8: byte {error.start:,} begins no character"
        raise DocumentError(("", problem, f"if it is {encoding}, convert it: iconv -f {encoding} -t UTF-8")) from None
