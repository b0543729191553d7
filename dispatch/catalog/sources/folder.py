"""A folder of descriptors as a source, which may be watched for changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from dispatch._internal.arguments import explain_keywords
from dispatch._internal.extras import install_extra
from dispatch.catalog.catalog import check_items
from dispatch.catalog.errors import CatalogError
from dispatch.catalog.loader import require_valid
from dispatch.catalog.readers.item import Item
from dispatch.catalog.sources.background import run_in_thread
from dispatch.catalog.sources.base import OnChange
from dispatch.catalog.sources.folder_reader import MAX_READINGS, PARTIAL_WRITE_S, FolderReader, FolderReading
from dispatch.catalog.sources.folder_watch import FolderWatch, is_polling_forced

POLL_S: Final = 1.0
"""Seconds between two scans where the operating system does not report changes. A scan of 10,000 files takes some 50 ms."""

_log = logging.getLogger("dispatch.catalog")


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

    def __repr__(self) -> str:
        return f"<Folder {self.id}>"

    def load(self) -> Sequence[Item]:
        """Read the folder in the calling thread, as :meth:`discover` does.

        Raises:
            CatalogError: lists all errors in the folder, in its files and in the descriptors.
        """
        reading = self._reader.read()
        for _ in range(MAX_READINGS if reading.may_be_partial else 0):
            time.sleep(PARTIAL_WRITE_S)
            former, reading = reading, self._reader.read()
            if former.is_confirmed_by(reading):
                break
        self._settled = reading
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
        if not is_polling_forced():
            try:
                while True:
                    async with FolderWatch(self.path) as watch:
                        yield
                        while await watch.wait():
                            yield
            except (ImportError, OSError) as error:
                self._report_polling(error)
        while True:
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
            _log.warning("%s, since it cannot be watched (%s). Raise the limits fs.inotify.*", scan, error)
