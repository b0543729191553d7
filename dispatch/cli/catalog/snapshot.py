"""One reading of several sources, merged as a dispatcher merges them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dispatch.catalog import Catalog, CatalogError, Folder, Item, Problem, check_items, load_directory
from dispatch.catalog.live.merge import Merged, Merger
from dispatch.catalog.sources.base import Source
from dispatch.catalog.sources.folder_reader import PARTIAL_WRITE_S, FolderReader
from dispatch.catalog.sources.trustgraph import ConfigServiceError
from dispatch.cli.exit_codes import CliError, Exit
from dispatch.errors import DispatchError

_log = logging.getLogger("dispatch.catalog")

ReadError = CatalogError | ConfigServiceError | DispatchError


class Snapshot(NamedTuple):
    """The items of several sources at one moment.

    Attributes:
        merged: the catalogue, with a report for each source.
        problems: all problems by the source's id.
        failures: of sources that deliver nothing, by their id.
    """

    merged: Merged
    problems: Mapping[str, Sequence[Problem]]
    failures: Mapping[str, ReadError]

    @property
    def catalog(self) -> Catalog:
        """The services and tools in force."""
        return self.merged.catalog

    def require_all(self) -> Snapshot:
        """Return this snapshot if every source could be read.

        Raises:
            CatalogError: a folder is invalid.
            CliError, DispatchError: TrustGraph's configuration is out of reach.
        """
        for error in self.failures.values():
            raise error_of_config_service(error) if isinstance(error, ConfigServiceError) else error
        return self

    def log_warnings(self) -> Snapshot:
        """Write the warnings of all sources to the log, and return this snapshot."""
        for problems in self.problems.values():
            for problem in problems:
                if problem.severity == "warning":
                    _log.warning("%s", problem)
        return self


class SnapshotReader:
    """Reads several sources once, the folders first, as a dispatcher does.

    Args:
        sources: the highest precedence first.

    Raises:
        CliError: one is given twice.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._merger = Merger()
        self._failures: dict[str, ReadError] = {}
        self._folder_problems: dict[str, Sequence[Problem]] = {}
        require_distinct(sources)
        for source in sources:
            self._merger.add_source(source.id, is_atomic=bool(getattr(source, "is_atomic", False)))
        found = {source.id: items for source in sources if (items := self._read_folder(source)) is not None}
        waiting: Sequence[str] = tuple(found)
        while waiting:  # a folder may use services of another one
            refused = [id for id in waiting if not self._set_items(id, found[id])]
            waiting = refused if len(refused) < len(waiting) else ()

    async def read_remote(self) -> None:
        """Read the sources that need the broker; they are connected."""
        for source in self._sources:
            if not isinstance(source, Folder):
                try:
                    self._set_items(source.id, await source.discover())
                except (CatalogError, ConfigServiceError, DispatchError) as error:
                    self._failures[source.id] = error

    def add_failure(self, error: DispatchError) -> None:
        """Record that the broker of the remaining sources is out of reach."""
        for source in self._sources:
            if not isinstance(source, Folder):
                self._failures.setdefault(source.id, error)

    def merge(self) -> Snapshot:
        """Return the snapshot."""
        merged = self._merger.merge()
        problems: dict[str, list[Problem]] = {}
        sources = {item.origin: id for id in self._merger.order for item in self._merger.items(id)}
        for id in self._merger.order:
            error = self._failures.get(id)
            if isinstance(error, CatalogError):
                problems[id] = list(error.problems)
            elif error is not None:
                problems[id] = [Problem(id, "", str(error), "check the connection with 'dispatch doctor'")]
            else:
                problems[id] = list(self._folder_problems.get(id, ()))
        for problem in merged.problems:
            problems[sources[problem.file]].append(problem)
        return Snapshot(merged, problems, self._failures)

    def _read_folder(self, source: Source) -> Sequence[Item] | None:
        if not isinstance(source, Folder):
            return None
        reader = FolderReader(source.path, source.namespace)
        reading = reader.read()
        if reading.may_be_partial:
            time.sleep(PARTIAL_WRITE_S)
            reading = reader.read()
        self._folder_problems[source.id] = reading.problems
        if reading.has_errors:
            self._failures[source.id] = CatalogError([*reading.problems, *check_items(reading.items)[1]])
            return None
        return reading.items

    def _set_items(self, id: str, items: Sequence[Item]) -> bool:
        problems = self._merger.set_items(id, items)
        if problems:
            self._failures[id] = CatalogError([*self._folder_problems.get(id, ()), *problems])
            return False
        self._failures.pop(id, None)
        return True


def read_folders(folders: Sequence[str]) -> Snapshot:
    """Read folders once.

    Raises:
        CliError: one is given twice.
    """
    return SnapshotReader([Folder(folder) for folder in folders]).merge()


def load_folders(folders: Sequence[str]) -> Catalog:
    """Load the catalogue of several folders; warnings go to the log.

    Raises:
        CliError: one is given twice.
        CatalogError: one is invalid.
    """
    if len(folders) == 1:
        return load_directory(folders[0])
    return read_folders(folders).require_all().log_warnings().catalog


def require_distinct(sources: Sequence[Source]) -> None:
    """Check that no source is given twice.

    Raises:
        CliError: one is.
    """
    ids = [source.id for source in sources]
    for id in ids:
        if ids.count(id) > 1:
            raise CliError(f"'{id}' is given twice.", "give each source once")


def error_of_config_service(error: ConfigServiceError) -> CliError:
    """Return the error of a command for an error of TrustGraph's config service."""
    return CliError(
        str(error),
        "check with 'dispatch doctor' that the broker is in reach, and that TrustGraph's config service runs there",
        Exit.TRANSPORT,
    )
