"""A folder of descriptors as a source, which may be watched for changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import operator
import os
import stat
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatch._internal import (
    WATCH,
    DaemonThreads,
    excerpt,
    explain_keywords,
    find_near_names,
    install_extra,
    join_names,
    run_in_thread,
)
from dispatch.catalog.catalog import Catalog, check_items
from dispatch.catalog.descriptors import CatalogError, ItemError
from dispatch.catalog.items import KINDS, Item, OnChange, Unreadable, choose_key, require_kind
from dispatch.catalog.loader import require_valid
from dispatch.documents import (
    PARSERS,
    DocumentError,
    Problem,
    Severity,
    Signature,
    parse_document,
    read_regular_file,
    replace_file,
    sign_status,
)

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify


# Reads a folder of descriptor files: ``tool-service/ID.json`` and ``tool/NAME.json``, as TrustGraph stores the items.


MAX_FILE_BYTES: Final = 1024 * 1024
"""Bytes of the largest descriptor file. Real ones have one or two kilobytes; a larger one is a misplaced data file."""
TOO_LARGE: Final = "keep data out of the descriptor"

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

_EXAMPLE: Final = "tool-service/joke-service.json and tool/tell-joke.json"

MAX_KEY_BYTES: Final = 250
"""Bytes of the key of an item that is written: a file name has at most 255, with ``.json``."""

MAX_USERS: Final = 10
"""Users of a service that one error names."""


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
        self.last = FolderReading(0, (), (), False, False)
        """The last reading; its number is 0 before the first one."""

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
            last = self.last
            if not last.number or not _is_same(last, items, problems):
                self.last = FolderReading(last.number + 1, items, problems, has_errors, has_errors or scan.is_recent)
            return self.last


def _is_same(last: FolderReading, items: tuple[Item, ...], problems: tuple[Problem, ...]) -> bool:
    if len(last.items) != len(items) or not all(map(operator.is_, last.items, items)):
        return False
    return _without_notes(last.problems) == _without_notes(problems)


def _without_notes(problems: tuple[Problem, ...]) -> list[Problem]:
    # A note says that a file is ignored: editors and deployment tools create and delete such files all the time.
    return [problem for problem in problems if problem.severity != "info"]


def show_path(path: str) -> str:
    """Return a path for messages: a file name may have any bytes, a message must be printable."""
    try:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a surrogate pair, which no file name has
        shown = path
    return excerpt(shown, 4096)


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
                    fix = f"use the folder with {_EXAMPLE}"
                    if path.endswith(".json"):
                        fix += f"; the servers of MCP in a file are dispatch.McpServers({os.path.basename(path)!r})"
                    elif path.endswith(".py"):
                        fix += f"; the functions in a file are served by 'dispatch serve {os.path.basename(path)}'"
                    self._add(path, "not a folder", fix)
                elif path:
                    fix = f"create it, with {_EXAMPLE}, or use another one"
                    if path.endswith(".json"):
                        fix = "correct the path of the file of MCP servers, or give a folder of descriptors"
                    self._add(path, "there is no such folder", fix)
                else:
                    self._add("''", "the path is empty: is a variable unset?", f"give the folder with {_EXAMPLE}")
                return
            with os.scandir(path) as entries:
                names = sorted(entry.name for entry in islice(entries, MAX_FILES) if entry.name not in KINDS)
            kinds = [kind for kind in KINDS if _is_folder(os.path.join(path, kind))]
        except OSError as error:
            self._add(path, _cannot_be_read(error), "make the folder readable for this user")
            return
        files = [name for name in names if os.path.splitext(name)[1].lower() in PARSERS and not name.startswith(".")]
        above, own = os.path.split(os.path.abspath(path))
        if not kinds and own in KINDS:
            self._add(
                path, f"only the {own}/ of a folder of descriptors", f"give the folder above it: {show_path(above)}"
            )
            return
        for name in files:
            fix = "move a descriptor of a tool into tool/, and that of a service into tool-service/"
            self._add(os.path.join(path, name), "neither in tool/ nor in tool-service/: it is ignored", fix, "info")
        missing = [kind for kind in KINDS if kind not in kinds]
        others = [name for name in names if name not in files]
        near = [(name, kind) for kind in missing for name in find_near_names(kind, others, 1)]
        fix = "; ".join(f"rename '{excerpt(name)}' to '{kind}'" for name, kind in near) or f"put {_EXAMPLE} there"
        if not kinds:
            self._add(path, "neither tool-service/ nor tool/ is in this folder", fix)
            return
        count = 0
        is_relayed = False
        folders = {os.path.join(path, kind): kind for kind in kinds}
        before = [_identify(folder) for folder in folders]
        for folder, kind in folders.items():
            for item in self._read_kind(folder, kind):
                count += 1
                is_relayed = is_relayed or (isinstance(item.raw, dict) and "instances" in item.raw)
                yield item
        if missing and (near or not is_relayed):  # a relay needs no tools
            self._add(path, f"there is no {missing[0]}/ in this folder", fix, "warning")
        if [_identify(folder) for folder in folders] != before:
            self._add(path, "the folder was moved or replaced while it was read", "it is read again")
        if not count and not missing:
            self._add(path, "no descriptors in this folder: there are no tools", f"put {_EXAMPLE} there", "warning")

    def _read_kind(self, folder: str, kind: str) -> Iterator[Item]:
        try:
            with os.scandir(folder) as entries:
                visible = (entry.name for entry in entries if not entry.name.startswith("."))
                names = sorted(islice(visible, MAX_FILES + 1))
        except OSError as error:
            self._add(folder, _cannot_be_read(error), "make the folder readable for this user")
            yield self._unreadable(folder, kind)
            return
        if len(names) > MAX_FILES:
            self._add(folder, f"more than {MAX_FILES:,} files", "use several folders")
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
        self.files[folder] = _File(None, item, (), None)
        return item

    def _read_file(self, path: str, kind: str, stem: str, suffix: str, former: _File | None) -> _File | None:
        valid = former.valid if former is not None else None
        signature: Signature | None = None
        problems: list[Problem]
        try:
            signature = sign_status(os.stat(path))
            if former is not None and former.signature == signature:
                return former
            content, signature = read_regular_file(path, MAX_FILE_BYTES, TOO_LARGE)
            digest = blake2b(content, digest_size=16).digest()
            if suffix != ".json" and time.time_ns() - signature[3] < PARTIAL_WRITE_S * 1e9:
                self.is_recent = True  # the beginning of a YAML text is often valid YAML
            if _is_racy(signature):
                signature = None
            if valid is not None and valid[0] == digest:
                return _File(signature, valid[1], (), valid)
            item = Item(show_path(path), kind, show_path(stem), parse_document(content, path), self._namespace)
            return _File(signature, item, (), (digest, item))
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
                return None  # deleted since the folder was listed
            signature = None
            fix = "make the file readable for this user"
            if isinstance(error, FileNotFoundError):
                fix = "it is a symbolic link to nothing: correct it, or delete it"
            problems = [Problem(show_path(path), "", _cannot_be_read(error), fix)]
        except DocumentError as error:
            problems = [Problem(show_path(path), *mistake) for mistake in error.mistakes]
        if former is not None and isinstance(former.item.raw, Unreadable):
            item = former.item
        else:
            item = Item(show_path(path), kind, show_path(stem), Unreadable(), self._namespace)
        return _File(signature, item, tuple(problems), valid)

    def _add(self, path: str, problem: str, fix: str, severity: Severity = "error") -> None:
        self.problems.append(Problem(show_path(path), "", problem, fix, severity))


def _cannot_be_read(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL character
        return False


def _is_racy(signature: Signature) -> bool:
    return time.time_ns() - max(signature[3:]) < RACY_NS


# The directories whose changes may change the contents of a folder of descriptors: symbolic links are followed.


MAX_LINKS: Final = 40
"""Symbolic links on one path, as on Linux."""

EDITOR_SUFFIXES: Final = ("~", ".swp", ".swx", ".tmp")
"""Ends of the names of files that editors create beside the file that they edit."""

Identity = tuple[int, int] | None


class WatchedPaths(NamedTuple):
    """What has to be watched for changes of one folder of descriptors: the folder itself, those of its kinds, and each
    folder on the way from a symbolic link in these to its target. A change of another file in one of them costs a reading.

    Attributes:
        directories: resolved paths of the directories to watch, without those below them.
        identities: device and inode of each directory by its path with symbolic links, None for a missing one. A directory
            that was replaced together with its parents, or by another target of a link on the way to it, is recognized by
            them alone: the operating system reports nothing for it.
    """

    directories: frozenset[str]
    identities: dict[str, Identity]

    def is_current(self) -> bool:
        """Return whether each directory is still the one that was watched."""
        return all(_identify(path) == identity for path, identity in self.identities.items())


def is_editor_file(path: str) -> bool:
    """Return whether a file is a temporary one of an editor. ``..data`` is the symbolic link of a ConfigMap."""
    name = os.path.basename(path)
    return name.endswith(EDITOR_SUFFIXES) or (name.startswith(".") and not name.startswith(".."))


def find_watched_paths(folder: str) -> WatchedPaths:
    """Return what to watch for changes of ``folder``, which may be missing. Never raises for what is there."""
    root = os.path.abspath(folder)
    paths = {root}
    for kind in KINDS:
        paths.add(os.path.join(root, kind))
        for link in _list_links(os.path.join(root, kind)):
            for _ in range(MAX_LINKS):
                paths.add(os.path.dirname(link))
                try:
                    link = os.path.join(os.path.dirname(link), os.readlink(link))
                except (OSError, ValueError):  # the target, or missing; ValueError: a NUL character
                    break
    identities = {path: _identify(path) for path in paths}
    existing = (path for path, identity in identities.items() if identity is not None)
    return WatchedPaths(frozenset(map(os.path.realpath, existing)), identities)


def _list_links(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            visible = (entry for entry in entries if not entry.name.startswith("."))
            for entry in islice(visible, MAX_FILES + 1):
                if entry.is_symlink():
                    yield entry.path
    except (OSError, ValueError):
        return


def _identify(path: str) -> Identity:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


# File system notifications for a folder of descriptors, by watchfiles (the extra ``watch``).


_log = logging.getLogger("dispatch.catalog")

DEBOUNCE_MS: Final = 200
"""Milliseconds for which changes are grouped at most. The default of watchfiles, 1,600, is too long for changes that must be
in force within 1 s."""

STEP_MS: Final = 50
"""Milliseconds without a change that end a group. The default of watchfiles."""

CHECK_MS: Final = 100
"""Milliseconds between two checks whether the watched directories were replaced; a check takes some 10 µs."""

RESCAN_S: Final = 60.0
"""Seconds after which a change is reported without any notification: the operating system drops notifications when more than
16,384 wait (``fs.inotify.max_queued_events``), and a network file system reports none of other machines."""

OPEN_ATTEMPTS: Final = 10
"""Attempts to watch directories of which one is removed or moved away between finding and watching it, in microseconds."""

_threads = DaemonThreads("dispatch-folder")


async def watch_folder(folder: str) -> AsyncGenerator[None, None]:
    """Yield when the operating system watches a folder, which may be missing, and whenever it has changed since. Ends when
    another watch has to be opened before the folder is read: a watched directory was replaced, or other directories have to
    be watched.

    Raises:
        ImportError: watchfiles is not installed.
        OSError: the limit of watches or instances of inotify is reached, or a directory must not be read.
    """
    loop, changed, stop = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    has_to_reopen = False
    notify, paths = await run_in_thread(partial(_open_watch, folder))

    def report(is_outdated: bool) -> None:
        nonlocal has_to_reopen
        has_to_reopen = has_to_reopen or is_outdated
        changed.set()

    def watch() -> None:
        is_outdated = False
        reported_at = time.monotonic()
        with notify:
            while not is_outdated and not stop.is_set():
                try:
                    changes = notify.watch(DEBOUNCE_MS, STEP_MS, CHECK_MS, stop)
                except RuntimeError as error:
                    _log.warning("The watch of '%s' failed and is opened again: %s", folder, error)
                    changes, is_outdated = set(), True
                touched = set() if isinstance(changes, str) else {path for _, path in changes}
                is_outdated = is_outdated or not paths.directories.isdisjoint(touched) or not paths.is_current()
                # Not a timer of the event loop: its time may be virtual.
                is_due = time.monotonic() - reported_at >= RESCAN_S
                if is_outdated or is_due or not all(map(is_editor_file, touched)):
                    reported_at = time.monotonic()
                    try:
                        loop.call_soon_threadsafe(report, is_outdated)
                    except RuntimeError:  # the event loop was closed without closing the source
                        return

    watching = asyncio.create_task(run_in_thread(watch, _threads, WATCH), name="dispatch-folder-watch")
    try:
        yield
        while await run_in_thread(partial(find_watched_paths, folder)) == paths:
            await changed.wait()
            changed.clear()
            if has_to_reopen:
                return
            yield
    finally:
        stop.set()
        await asyncio.wait([watching])  # it ends within STEP_MS


def _open_watch(folder: str) -> tuple[RustNotify, WatchedPaths]:
    from watchfiles._rust_notify import RustNotify  # an extra; documented as "Rust backend direct usage"

    for _ in range(OPEN_ATTEMPTS):
        paths = find_watched_paths(folder)
        try:
            # Its ignore_permission_denied is False: it ignores every error, those of the limits of inotify, too.
            return RustNotify(sorted(paths.directories), False, False, 0, False, False), paths
        except FileNotFoundError:
            continue
        except RuntimeError as error:  # the limit of instances
            raise OSError(str(error)) from error
    raise FileNotFoundError("its directories are moved or replaced all the time")


def is_polling_forced() -> bool:
    """Return whether the environment variable ``WATCHFILES_FORCE_POLLING`` is set, as watchfiles reads it."""
    return os.getenv("WATCHFILES_FORCE_POLLING", "").lower() not in ("", "false", "disable", "disabled")


POLL_S: Final = 1.0
"""Seconds between two scans where the operating system does not report changes. A scan of 10,000 files takes some 50 ms."""


class Folder:
    """A folder of descriptors: ``tool-service/ID.json``, ``tool/NAME.json``, or ``tool/NAME@VERSION.json`` for each version.

    It is loaded atomically: with any error in any file, the last valid catalogue stays in force.

    Args:
        path: the folder.
        watch: follow its changes, with watchfiles (the extra ``watch``); without it, or with the environment variable
            ``WATCHFILES_FORCE_POLLING``, by a scan once per second. False: read only by ``dispatcher.registry.refresh(id)``.
        namespace: prefix of its names: ``crm`` makes ``find`` into ``crm-find``.
        on_change: ``apply``, or ``hold``: a changed definition waits for its approval.
        id: unique among the sources of a dispatcher, and the label ``source`` of its metrics; default: ``folder:PATH``.
    """

    is_atomic: Final = True

    @explain_keywords
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        watch: bool = False,
        namespace: str = "",
        on_change: OnChange = "apply",
        id: str | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.is_watched = watch
        self.namespace = namespace
        self.on_change: OnChange = on_change
        self.id = f"folder:{self.path}" if id is None else id
        self._reader = FolderReader(self.path, namespace)
        self._settled: FolderReading | None = None
        self._reported: FolderReading | None = None
        self._is_polling_reported = False
        self._writing = threading.Lock()
        """Held from the check of a change to its end: two changes may be valid alone and invalid together."""

    def __repr__(self) -> str:
        return f"<Folder {self.id}>"

    def read(self) -> FolderReading:
        """Read the folder in the calling thread. A file that may be partly written is read again."""
        reading = self._reader.read()
        for _ in range(MAX_READINGS if reading.may_be_partial else 0):
            time.sleep(PARTIAL_WRITE_S)
            former, reading = reading, self._reader.read()
            if former.is_confirmed_by(reading):
                break
        self._settled = reading
        return reading

    def load(self) -> Sequence[Item]:
        """Read the folder in the calling thread, as :meth:`discover` does.

        Raises:
            CatalogError: lists all errors in the folder, in its files and in the descriptors.
        """
        reading = self.read()
        if reading.has_errors:
            raise CatalogError([*reading.problems, *check_items(reading.items)[1]])
        return self._use(reading)

    async def discover(self) -> Sequence[Item]:
        """Read the folder in a thread. The item of an unchanged file is the same object as before.

        Raises:
            CatalogError: lists all errors in the folder and its files. Problems inside descriptors are found when the items
                are loaded.
        """
        return self._use(await self._read())

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yield whenever the contents differ from those that were read last; never if the folder is not watched."""
        seen = max(self._reader.last.number, 1)
        async with contextlib.aclosing(self._signals()) as signals:
            async for _ in signals:
                reading = await self._read()
                if reading.number != seen:
                    seen = reading.number
                    yield

    # -- items --------------------------------------------------------------------------------------------------

    async def put(
        self,
        kind: str,
        raw: Mapping[str, Any],
        *,
        key: str | None = None,
        text: str | None = None,
        suffix: str = ".json",
    ) -> tuple[Problem, ...]:
        """Write a descriptor to its file, which is replaced as a whole. Put a service before its tools.

        Args:
            kind: ``tool`` or ``tool-service``.
            raw: the descriptor.
            key: of the item, the name of its file; None: the ``name`` of a tool, the ``id`` of a service.
            text: of the descriptor, written as it is; None: ``raw`` as JSON.
            suffix: of the format of ``text``: ``.json``, ``.yaml`` or ``.yml``.

        Returns:
            The warnings of the descriptor.

        Raises:
            CatalogError: the folder would have mistakes that it does not have now. Nothing is written.
            ValueError: ``kind`` or key are unknown or no name of a file, or the item is stored in another format.
            OSError: the file cannot be written.
        """
        key = choose_key(require_kind(kind), raw, key)
        return await run_in_thread(partial(self._put, kind, key, raw, text, suffix))

    async def remove(self, kind: str, key: str, *, force: bool = False) -> bool:
        """Remove the file of an item. Return whether there was one.

        Args:
            kind, key: of the item.
            force: remove a service that tools use: the folder cannot be loaded then.

        Raises:
            ValueError: tools use the service, without ``force``; or ``kind`` is unknown.
            OSError: the file cannot be removed.
        """
        return await run_in_thread(partial(self._remove, require_kind(kind), key, force))

    async def get(self, kind: str, key: str) -> Any:
        """Return the descriptor of an item as it is stored: JSON values, or the text if it is neither JSON nor YAML. None:
        there is none.

        Raises:
            ValueError: ``kind`` is unknown.
            OSError: the file cannot be read.
        """
        return await run_in_thread(partial(self._get, require_kind(kind), key))

    async def list(self, kind: str) -> tuple[str, ...]:
        """Return the keys of all items of a kind, sorted.

        Raises:
            ValueError: ``kind`` is unknown.
        """
        require_kind(kind)
        reading = await run_in_thread(self._reader.read)
        return tuple(sorted(item.key for item in reading.items if item.kind == kind))

    def find_file(self, kind: str, key: str) -> str | None:
        """Return the path of the file of an item; None: there is none.

        Raises:
            OSError: the folder cannot be read.
        """
        folder = os.path.join(self.path, kind)
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return None
        for name in names:
            stem, suffix = os.path.splitext(name)
            if show_path(stem) == key and suffix.lower() in PARSERS:
                return os.path.join(folder, name)
        return None

    def _put(self, kind: str, key: str, raw: Any, text: str | None, suffix: str) -> tuple[Problem, ...]:
        if "/" in key or "\0" in key or key.startswith(".") or len(os.fsencode(key)) > MAX_KEY_BYTES:
            raise ItemError(
                f"'{excerpt(key)}' cannot be the name of a file.",
                f"use a key without '/', that does not begin with '.', of at most {MAX_KEY_BYTES} bytes",
            )
        with self._writing:
            former = self.find_file(kind, key)
            if former is not None and PARSERS[os.path.splitext(former)[1].lower()] is not PARSERS[suffix]:
                raise ItemError(
                    f"{kind}/{key} is stored in {show_path(former)}, and the new descriptor is {suffix[1:].upper()}.",
                    f"give it in the format of that file, or remove the item first: dispatch rm {kind}/{key}",
                )
            file = former or os.path.join(self.path, kind, f"{key}{suffix}")
            items = self._reader.read().items
            item = Item(show_path(file), kind, key, raw, self.namespace)
            changed = [*without_item(items, kind, key), item]
            if mistakes := _find_new_mistakes(items, changed):
                raise CatalogError(mistakes)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            replace_file(file, json.dumps(raw, indent=2, ensure_ascii=False) + "\n" if text is None else text)
        return tuple(
            each for each in check_items(changed)[1] if each.file == item.origin and each.severity == "warning"
        )

    def _remove(self, kind: str, key: str, force: bool) -> bool:
        with self._writing:
            file = self.find_file(kind, key)
            if file is None:
                return False
            items = self._reader.read().items
            mistakes = [] if force else _find_new_mistakes(items, without_item(items, kind, key))
            if mistakes:
                users = tuple(dict.fromkeys(each.file for each in mistakes))
                need = "needs" if len(users) == 1 else "need"
                problem = f"{kind}/{key} was not removed: {join_names(users, MAX_USERS)} {need} it."
                raise ItemError(problem, "remove these items first")
            os.unlink(file)
            return True

    def _get(self, kind: str, key: str) -> Any:
        file = self.find_file(kind, key)
        if file is None:
            return None
        with open(file, encoding="utf-8-sig", errors="replace") as stream:
            text = stream.read()
        try:
            return PARSERS[os.path.splitext(file)[1].lower()](text)
        except ValueError:
            return text

    # -- reading ------------------------------------------------------------------------------------------------

    def _use(self, reading: FolderReading) -> Sequence[Item]:
        if reading is self._reported:
            problems = [problem for problem in reading.problems if problem.severity == "error"]
        else:
            problems = list(reading.problems)
        self._reported = reading
        return require_valid(reading.items, problems)

    async def _read(self) -> FolderReading:
        reading = await run_in_thread(self._reader.read)
        for _ in range(MAX_READINGS if reading.may_be_partial and reading is not self._settled else 0):
            await asyncio.sleep(PARTIAL_WRITE_S)
            former, reading = reading, await run_in_thread(self._reader.read)
            if former.is_confirmed_by(reading):
                break
        self._settled = reading
        return reading

    async def _signals(self) -> AsyncGenerator[None, None]:
        """Yield whenever the folder should be read; first when the operating system reports its changes."""
        if not self.is_watched:
            await asyncio.get_running_loop().create_future()
        while True:
            if not is_polling_forced():
                try:
                    while True:
                        async with contextlib.aclosing(watch_folder(self.path)) as watch:
                            async for _ in watch:
                                yield
                except (ImportError, OSError) as error:
                    self._report_polling(error)
            yield
            await asyncio.sleep(POLL_S)

    def _report_polling(self, error: ImportError | OSError) -> None:
        if self._is_polling_reported:
            return
        self._is_polling_reported = True
        scan = f"'{self.path}' is scanned once in {POLL_S:g} s"
        if isinstance(error, ImportError):
            _log.info("%s, since watchfiles is missing. For faster changes: %s", scan, install_extra("watch"))
        else:
            fix = "Raise the limits fs.inotify.*"
            if isinstance(error, PermissionError):
                fix = "Make it readable"
            elif isinstance(error, FileNotFoundError):
                fix = "Replace it less often"
            _log.warning("%s, since it cannot be watched (%s). %s", scan, error, fix)


def without_item(items: Sequence[Item], kind: str, key: str) -> list[Item]:
    """Return ``items`` but the one of that kind and key."""
    return [item for item in items if (item.kind, item.key) != (kind, key)]


def _find_new_mistakes(before: Sequence[Item], after: Sequence[Item]) -> list[Problem]:
    """Return the errors of ``after`` that ``before`` does not have: one that is there already is no reason to refuse a
    change, which may correct it."""
    known = {(each.file, each.key, each.problem) for each in check_items(before)[1]}
    errors = (each for each in check_items(after)[1] if each.severity == "error")
    return [each for each in errors if (each.file, each.key, each.problem) not in known]


# Loads or checks a folder of descriptors once.


def load_directory(path: str | os.PathLike[str]) -> Catalog:
    """Load the catalogue in the folder ``path``. Warnings go to the log ``dispatch.catalog``.

    Raises:
        CatalogError: lists all errors in the descriptors, each with its file, key and fix.
    """
    return require_valid(*check_directory(path))


def check_directory(path: str | os.PathLike[str]) -> tuple[Catalog | None, list[Problem]]:
    """Return the catalogue in the folder ``path`` and all problems, always in the same order: of the folder, then of
    services, then of tools, each by file name. With any error the catalogue is None."""
    reading = FolderReader(path).read()
    catalog, found = check_items(reading.items, "directory")
    return None if reading.has_errors else catalog, [*reading.problems, *found]
