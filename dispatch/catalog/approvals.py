"""The file of approved definitions, for sources that hold changes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from dispatch import documents
from dispatch._internal import cancel_and_wait
from dispatch.catalog.activation import Activator
from dispatch.catalog.items import Source
from dispatch.catalog.merge import Merger, on_change_of

Fingerprints = Mapping[str, frozenset[str]]
"""Approved fingerprints by ``tool/NAME`` and ``tool-service/ID``."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of the file: 10,000 tools with ten versions each take about half of it."""
_RESTORE: Final = "restore it from a backup, or remove it to approve the present definitions"


class _Document(msgspec.Struct):
    approved: dict[str, frozenset[Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]]]


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
        return self.parse(self.read())

    def read(self) -> bytes:
        """Return the content of the file; without one that of a file without approvals.

        Raises:
            ApprovalsError: it cannot be read.
        """
        try:
            return documents.read_regular_file(self.path, MAX_BYTES, _RESTORE)[0]
        except FileNotFoundError:
            return b'{"approved": {}}'
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror or error}", "make it readable for this user") from None
        except documents.DocumentError as error:
            raise self._error(f"cannot be read: {error}", _RESTORE) from None

    def parse(self, content: bytes) -> Fingerprints:
        """Return what is approved in the content of the file.

        Raises:
            ApprovalsError: it is not such a file.
        """
        try:
            return documents.parse_typed(content, "", _Document).approved
        except documents.DocumentError as error:
            raise self._error(f"is not a file of approvals: {error}", _RESTORE) from None

    def add(self, approved: Fingerprints) -> Fingerprints:
        """Replace the fingerprints of the given keys, write the file and return everything that is approved. The file is
        replaced as a whole: a reader sees the former one or the new one.

        Raises:
            ApprovalsError: the file cannot be read or written.
        """
        try:
            # A dispatcher and `dispatch tools approve` may write at the same time.
            with documents.lock_folder(self.path.parent):
                known = {**self.load(), **approved}
                self._write(known)
        except OSError as error:
            fix = documents.find_write_fix(error, "make its folder writable")
            raise self._error(f"cannot be written: {error.strerror or error}", fix) from None
        return known

    def _write(self, known: Fingerprints) -> None:
        text = json.dumps({"approved": {key: sorted(known[key]) for key in sorted(known)}}, indent=1) + "\n"
        documents.replace_file(self.path, text, 0o600)

    def modified(self) -> tuple[int, ...]:
        """Return a value that changes when the file is replaced or written; zeros if there is none."""
        return documents.sign_file(self.path) or (0, 0, 0)

    def _error(self, problem: str, fix: str) -> ApprovalsError:
        return ApprovalsError(f"The file of approved definitions {self.path} {problem}. Fix: {fix}.")


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


class ApprovalWatcher:
    """Writes definitions that are approved by their first appearance to the file, and reads approvals from it.

    Args:
        approvals: the file.
        activator: of the catalogue.
    """

    def __init__(self, approvals: Approvals, activator: Activator) -> None:
        self._approvals = approvals
        self._activator = activator
        self._file = documents.FileWatch(
            approvals.path, lambda _path: approvals.read(), approvals.parse, lambda _: None, "approvals", logger
        )
        self._first_seen: Fingerprints = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch the file."""
        self._task = asyncio.create_task(self._watch(), name="dispatch-catalog-approvals")

    async def close(self) -> None:
        """Stop watching the file, and write what was approved since it was written."""
        await cancel_and_wait((self._task,))
        if self._first_seen:
            try:
                await asyncio.to_thread(self._approvals.add, self._first_seen)
            except ApprovalsError as error:
                logger.warning("%s The next start approves the definitions that it finds.", error)

    def add_first_seen(self, fingerprints: Mapping[str, frozenset[str]]) -> None:
        """Write ``fingerprints`` to the file soon."""
        self._first_seen = {**self._first_seen, **fingerprints}

    async def _watch(self) -> None:
        problem = ""
        while True:
            unsaved, self._first_seen = self._first_seen, {}
            try:
                if unsaved:
                    await asyncio.to_thread(self._approvals.add, unsaved)
                    unsaved = {}
                approved = await asyncio.to_thread(self._file.poll)  # `dispatch tools approve` is another process
                if approved:
                    await self._apply(approved)
                problem = ""
            except ApprovalsError as error:
                self.add_first_seen(unsaved)
                if str(error) != problem:
                    logger.warning("%s The definitions in force stay.", error)
                problem = str(error)
            await asyncio.sleep(documents.POLL_S)

    async def _apply(self, approved: Mapping[str, frozenset[str]]) -> None:
        def apply(merger: Merger) -> None:
            merger.approved = {**merger.approved, **approved}

        await self._activator.run(apply)
        await self._activator.activate("approvals")
