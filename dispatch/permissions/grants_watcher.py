"""Watches a file with grants: a valid change comes into force, an invalid one is reported once and changes nothing."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from dispatch.permissions.grants import Grants, parse_grants, read_grants_file
from dispatch.permissions.grants_errors import GrantsError

logger = logging.getLogger("dispatch.permissions")

POLL_S: Final = 1.0
"""Seconds between two checks of the file."""
SETTLE_S: Final = 0.2
"""Seconds after which an invalid file is read again before it is reported: it may have been written in part."""
RACY_S: Final = 2.0
"""Seconds for which the content of a changed file is compared on each check: a second change within the granularity of the
file system's clock (2 s on FAT) does not change the file's time."""

Signature = tuple[int, int, int, int, int]


class GrantsWatcher:
    """Keeps the grants of a file up to date, in a daemon thread. Polling follows what notifications miss: an atomic rename,
    the swap of the ``..data`` link of a Kubernetes ConfigMap, network file systems.

    Args:
        grants: from :meth:`Grants.load`.
        on_change: receives the new grants, in the thread.
        wait: waits for that many seconds; True: the watcher is closed. Tests set it.
    """

    def __init__(
        self, grants: Grants, on_change: Callable[[Grants], object], wait: Callable[[float], bool] | None = None
    ) -> None:
        assert grants.path is not None
        self._path = grants.path
        self._on_change = on_change
        self._closed = threading.Event()
        self._wait = self._closed.wait if wait is None else wait
        self._thread: threading.Thread | None = None
        self._signature: Signature | None = (
            None  # the first check reads the file, which may have changed since it was loaded
        )
        self._content: bytes | None = None
        self._problem = ""

    def start(self) -> None:
        """Begin to watch. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dispatch-grants", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop watching. Does not wait for the thread, which may be reading from a file system that hangs."""
        self._closed.set()

    def _run(self) -> None:
        while not self._wait(POLL_S):
            self.check()

    def check(self) -> None:
        """Read the file if it has changed."""
        try:
            self._check()
        except GrantsError as error:
            self._report(str(error))
        except Exception as error:  # a bug must not end the watch
            self._report(f"{type(error).__name__}: {error}")

    def _check(self) -> None:
        signature = self._sign()
        if signature is not None and signature == self._signature:
            return
        try:
            content = read_grants_file(self._path)
            if content != self._content:
                self._apply(content)
        except GrantsError:
            if self._problem:
                raise
            self._wait(SETTLE_S)
            self._apply(read_grants_file(self._path))
        is_racy = signature is None or time.time() - signature[3] / 1e9 < RACY_S
        self._signature = None if is_racy else signature
        if self._problem:
            self._problem = ""
            logger.info("the grants in '%s' are valid again", self._path)

    def _apply(self, content: bytes) -> None:
        grants = parse_grants(content, self._path)
        is_first = self._content is None
        self._on_change(grants)
        self._content = content
        if not is_first:
            logger.info("grants loaded from '%s': %d users", self._path, grants.users)

    def _sign(self) -> Signature | None:
        """Return what changes with every change of the file; None: it cannot be read."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _report(self, problem: str) -> None:
        """Log a problem once; the grants in force stay."""
        if problem != self._problem:
            self._problem = problem
            logger.warning("the grants in force stay, because the file is invalid: %s", problem)
