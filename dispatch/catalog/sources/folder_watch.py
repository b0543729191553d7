"""File system notifications for a folder of descriptors, by watchfiles (the extra ``watch``)."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final

from dispatch._internal.daemon_executor import DaemonThreads
from dispatch.catalog.sources.background import run_in_thread
from dispatch.catalog.sources.watched_paths import WatchedPaths, find_watched_paths

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

_log = logging.getLogger("dispatch.catalog")

DEBOUNCE_MS: Final = 200
"""Milliseconds for which changes are grouped at most. The default of watchfiles, 1,600, is too long for changes that must be
in force within 1 s."""

STEP_MS: Final = 50
"""Milliseconds without a change that end a group. The default of watchfiles."""

CHECK_MS: Final = 250
"""Milliseconds between two checks whether the watched directories were replaced; a check takes some 10 µs."""

RESCAN_S: Final = 60.0
"""Seconds after which a change is reported without any notification: the operating system drops notifications when more than
16,384 wait (``fs.inotify.max_queued_events``), and a network file system reports none of other machines."""

_threads = DaemonThreads("dispatch-folder")


class FolderWatch:
    """Notifications of changes of one folder, from ``async with`` on; it waits until the operating system watches.

    Args:
        folder: the folder, which may be missing.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._changed = asyncio.Event()
        self._stop = threading.Event()
        self._is_outdated = False
        self._loop = asyncio.get_running_loop()
        self._paths: WatchedPaths | None = None
        self._watching: asyncio.Future[None] | None = None

    async def __aenter__(self) -> FolderWatch:
        """Start to watch.

        Raises:
            ImportError: watchfiles is not installed.
            OSError: the limit of watches or instances of inotify is reached.
        """
        notify, paths = await run_in_thread(self._open)
        self._paths = paths
        self._watching = self._loop.run_in_executor(_threads, self._watch, notify, paths)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._watching is not None:
            await asyncio.wait([self._watching])  # it ends within STEP_MS

    async def wait(self) -> bool:
        """Wait for a change of the folder. Returns False when another watch has to be opened before the folder is read: a
        watched directory was replaced, or other directories have to be watched."""
        if await run_in_thread(lambda: find_watched_paths(self._folder)) != self._paths:
            return False
        await self._changed.wait()
        self._changed.clear()
        return not self._is_outdated

    def _open(self) -> tuple[RustNotify, WatchedPaths]:
        from watchfiles._rust_notify import RustNotify  # an extra; documented as "Rust backend direct usage"

        paths = find_watched_paths(self._folder)
        return RustNotify(sorted(paths.directories), False, False, 0, False, True), paths

    def _watch(self, notify: RustNotify, paths: WatchedPaths) -> None:
        is_outdated = False
        reported_at = time.monotonic()
        with notify:
            while not is_outdated and not self._stop.is_set():
                try:
                    changes = notify.watch(DEBOUNCE_MS, STEP_MS, CHECK_MS, self._stop)
                except RuntimeError as error:
                    _log.warning("The watch of '%s' failed and is opened again: %s", self._folder, error)
                    changes, is_outdated = set(), True
                changed = set() if isinstance(changes, str) else {path for _, path in changes}
                is_outdated = is_outdated or not paths.directories.isdisjoint(changed) or not paths.is_current()
                is_due = (
                    time.monotonic() - reported_at >= RESCAN_S
                )  # not a timer of the event loop: its time may be virtual
                if is_outdated or is_due or any(map(paths.is_relevant, changed)):
                    reported_at = time.monotonic()
                    try:
                        self._loop.call_soon_threadsafe(self._report, is_outdated)
                    except RuntimeError:  # the event loop was closed without closing the source
                        return

    def _report(self, is_outdated: bool) -> None:
        self._is_outdated = self._is_outdated or is_outdated
        self._changed.set()


def is_polling_forced() -> bool:
    """Return whether the environment variable ``WATCHFILES_FORCE_POLLING`` is set, as watchfiles reads it."""
    return os.getenv("WATCHFILES_FORCE_POLLING", "").lower() not in ("", "false", "disable", "disabled")
