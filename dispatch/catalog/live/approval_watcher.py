"""Keeps the approved fingerprints of a merger and their file the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.catalog.live.activation import Activator
from dispatch.catalog.live.approvals import Approvals, ApprovalsError
from dispatch.catalog.live.merge import Merger

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
