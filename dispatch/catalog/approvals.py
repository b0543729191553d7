"""The file of approved definitions, for sources that hold changes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dispatch._internal import cancel_and_wait, excerpt
from dispatch.catalog.activation import Activator
from dispatch.catalog.merge import Merger, on_change_of
from dispatch.catalog.sources import Source
from dispatch.documents import replace_file

Fingerprints = Mapping[str, frozenset[str]]
"""Approved fingerprints by ``tool/NAME`` and ``tool-service/ID``."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of the file: 10,000 tools with ten versions each take about half of it."""
_HEX_DIGITS: Final = 64


class ApprovalsError(ValueError):
    """The file of approved definitions cannot be used; the message says why and names the fix."""


class Approvals:
    """Approved fingerprints in a file: ``{"approved": {"tool/tell-joke": ["FINGERPRINT", …]}}``.

    Args:
        path: of the file. It is made when the first definition is approved.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self) -> Fingerprints:
        """Return what is approved.

        Raises:
            ApprovalsError: the file cannot be read, or is not such a file.
        """
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror or error}", "make it readable for this user") from None
        restore = "restore it from a backup, or remove it to approve the present definitions"
        if len(content) > MAX_BYTES:
            raise self._error(f"has more than {MAX_BYTES:,} bytes", restore)
        try:
            approved = json.loads(content)["approved"]
            return {key: frozenset(_check(print) for print in prints) for key, prints in approved.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._error(f"is not a file of approvals: {excerpt(str(error))}", restore) from None

    def add(self, approved: Fingerprints) -> Fingerprints:
        """Replace the fingerprints of the given keys, write the file and return everything that is approved. The file is
        replaced as a whole: a reader sees the former one or the new one.

        Raises:
            ApprovalsError: the file cannot be read or written.
        """
        try:
            with lock_folder(self.path.parent):  # a dispatcher and `dispatch tools approve` may write at the same time
                known = {**self.load(), **approved}
                self._write(known)
        except OSError as error:
            raise self._error(f"cannot be written: {error.strerror or error}", "make its folder writable") from None
        return known

    def _write(self, known: Fingerprints) -> None:
        text = json.dumps({"approved": {key: sorted(known[key]) for key in sorted(known)}}, indent=1) + "\n"
        replace_file(self.path, text, 0o600)

    def modified(self) -> tuple[int, int, int]:
        """Return a value that changes when the file is replaced or written; zeros if there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return 0, 0, 0
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _error(self, problem: str, fix: str) -> ApprovalsError:
        return ApprovalsError(f"The file of approved definitions {self.path} {problem}. Fix: {fix}.")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Exclude other threads and processes that lock the same folder. A lock of the folder leaves no file behind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check(print: object) -> str:
    if isinstance(print, str) and len(print) == _HEX_DIGITS and not print.strip("0123456789abcdef"):
        return print
    raise ValueError(f"{print!r:.80} is not a fingerprint")


def check_approvals(approvals: Approvals | None, source: Source) -> None:
    """Check that there are approvals if ``source`` holds changes.

    Raises:
        ApprovalsError: there are none.
    """
    if approvals is None and on_change_of(source) == "hold":
        raise ApprovalsError(
            f"The source '{source.id}' holds changed definitions, and there is no file of approved ones. "
            "Fix: give connect(approvals=FILE)."
        )


# Keeps the approved fingerprints of a merger and their file the same.


logger = logging.getLogger("dispatch.catalog")

POLL_S: Final = 1.0
"""Seconds between two checks of the file, which `dispatch tools approve` writes in another process."""


class ApprovalWatcher:
    """Writes definitions that are approved by their first appearance to the file, and reads approvals from it.

    Args:
        approvals: the file.
        activator: of the catalogue.
    """

    def __init__(self, approvals: Approvals, activator: Activator) -> None:
        self._approvals = approvals
        self._activator = activator
        self._first_seen: Mapping[str, frozenset[str]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch the file."""
        self._task = asyncio.create_task(self._watch(), name="dispatch-catalog-approvals")

    async def close(self) -> None:
        """Stop watching the file."""
        await cancel_and_wait((self._task,))

    def add_first_seen(self, fingerprints: Mapping[str, frozenset[str]]) -> None:
        """Write ``fingerprints`` to the file soon."""
        self._first_seen = {**self._first_seen, **fingerprints}

    async def _watch(self) -> None:
        problem, seen = "", None
        while True:
            unsaved, self._first_seen = self._first_seen, {}
            try:
                if unsaved:
                    await asyncio.to_thread(self._approvals.add, unsaved)
                    unsaved = {}
                modified = await asyncio.to_thread(self._approvals.modified)
                if modified != seen:
                    await self._apply(await asyncio.to_thread(self._approvals.load))
                    seen = modified
                problem = ""
            except ApprovalsError as error:
                self.add_first_seen(unsaved)
                if str(error) != problem:
                    logger.warning("%s The definitions in force stay.", error)
                problem = str(error)
            await asyncio.sleep(POLL_S)

    async def _apply(self, approved: Mapping[str, frozenset[str]]) -> None:
        def apply(merger: Merger) -> None:
            merger.approved = {**merger.approved, **approved}

        await self._activator.run(apply)
        await self._activator.activate("approvals")
