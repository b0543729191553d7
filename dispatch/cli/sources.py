"""One reading of several sources, merged as a dispatcher merges them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from dispatch.announcements import DEFAULT_TOPIC
from dispatch.announcements.source import Announced
from dispatch.catalog import Catalog, CatalogError, Folder, Item, Problem, check_items
from dispatch.catalog.activation import describe_error
from dispatch.catalog.items import Source
from dispatch.catalog.merge import Merged, Merger
from dispatch.cli.base import CliError, Settings, colorize, is_servers_file, print_err, run_async
from dispatch.errors import DispatchError
from dispatch.messaging.wire import TopicError
from dispatch.transports import open_transport
from dispatch.trustgraph.config import ConfigBroker, ConfigServiceError, TrustGraphConfig

_log = logging.getLogger("dispatch.catalog")


class ServerFailedError(CatalogError):
    """One MCP server whose tools cannot be read; those of the others can."""


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
        """Return this snapshot if every source could be read; of several sources, MCP servers may have failed, which a
        dispatcher reports and leaves out.

        Raises:
            CatalogError: a folder is invalid, or no source could be read.
            ConfigServiceError, DispatchError: TrustGraph's configuration is out of reach.
        """
        for error in self.failures.values():
            if not isinstance(error, ServerFailedError) or len(self.failures) == len(self.merged.reports):
                raise error
        return self

    def log_warnings(self) -> Snapshot:
        """Write the warnings of all sources to the log, and return this snapshot."""
        for problems in self.problems.values():
            for problem in problems:
                if problem.severity == "warning":
                    _log.warning("%s", problem)
        return self


def read_sources(
    sources: Sequence[Source], remote: Mapping[str, Sequence[Item] | ReadError] = MappingProxyType({})
) -> Snapshot:
    """Read the folders among ``sources``, and merge all of them.

    Args:
        sources: the highest precedence first.
        remote: what the others delivered, by their id.

    Raises:
        CliError: one is given twice.
    """
    require_distinct(sources)
    merger = Merger()
    problems: dict[str, list[Problem]] = {source.id: [] for source in sources}
    failures: dict[str, ReadError] = {}
    local: dict[str, Sequence[Item]] = {}
    for source in sources:
        merger.add_source(source.id, is_atomic=bool(getattr(source, "is_atomic", False)))
        if isinstance(source, Folder):
            reading = source.read()
            problems[source.id] += reading.problems
            if reading.has_errors:
                failures[source.id] = CatalogError([*reading.problems, *check_items(reading.items)[1]])
            else:
                local[source.id] = reading.items
    failures |= {id: found for id, found in remote.items() if isinstance(found, Exception)}
    # The folders first, as a dispatcher does.
    for found in (local, {id: items for id, items in remote.items() if not isinstance(items, Exception)}):
        for id, refused in merger.set_all_items(found).items():
            failures[id] = CatalogError([*problems[id], *refused])
    for id, error in failures.items():
        if isinstance(error, CatalogError):
            problems[id] = list(error.problems)
        else:
            problems[id] = [Problem(id, "", str(error), "check the connection with 'dispatch doctor'")]
    merged = merger.merge()
    origins = {item.origin: id for id in merger.order for item in merger.items(id)}
    for problem in merged.problems:
        problems[origins[problem.file]].append(problem)
    return Snapshot(merged, problems, failures)


def _open_catalog(path: str, *, watch: bool) -> Sequence[Source]:
    if not is_servers_file(path):
        return [Folder(path, watch=watch)]
    try:
        from dispatch import McpServers
    except ImportError as error:  # of the extra
        raise CliError(f"{path}: {error}") from None
    return McpServers(path).sources


def load_catalog(settings: Settings) -> Catalog:
    """Load the catalogue of all folders, without MCP servers, which have no topics; warnings go to the log. Where two
    folders have a tool of the same name, that of the first one is used.

    Raises:
        CliError: no folder is given, or one is given twice.
        CatalogError: one is invalid.
    """
    folders = [Folder(path) for path in settings.require_catalog_folders() if not is_servers_file(path)]
    return read_sources(folders).require_all().log_warnings().catalog


def require_distinct(sources: Sequence[Source]) -> None:
    """Check that no source is given twice.

    Raises:
        CliError: one is.
    """
    ids = [source.id for source in sources]
    for id in ids:
        if ids.count(id) > 1:
            raise CliError(f"'{id}' is given twice.", "give each source once")


# The sources that the options of a command name, and the connection of those that need the broker.


T = TypeVar("T")

PROGRESS_AFTER_S: Final = 2.0
"""Seconds after which a command says what it waits for."""


def list_sources(settings: Settings, *, watch: bool = False, until: str = "") -> list[Source]:
    """Return the sources, the highest precedence first. Those on the broker are not connected yet.

    Args:
        watch: follow folders.
        until: of announced services: see :class:`~dispatch.announcements.source.Announced`.

    Raises:
        CliError: there is none, or one is given twice, or the workspace is reserved.
    """
    workspace = settings.trustgraph_workspace
    is_alone = workspace is None and not settings.uses_announced
    folders = settings.require_catalog_folders() if is_alone else settings.catalog_folders
    sources = [source for path in folders for source in _open_catalog(path, watch=watch)]
    require_distinct(sources)
    if workspace is not None:
        sources.append(make_trustgraph_config(workspace))
    if settings.uses_announced:
        try:
            sources.append(Announced(settings.load_trust(), topic=settings.announcements, until=until))
        except TopicError as error:
            fix = f"write a whole name such as {DEFAULT_TOPIC}"
            raise CliError(f"DISPATCH_ANNOUNCEMENTS: {error.problem}.", fix) from None
    return sources


def make_trustgraph_config(workspace: str) -> TrustGraphConfig:
    """Return TrustGraph's configuration as a source.

    Raises:
        CliError: the workspace is reserved.
    """
    try:
        return TrustGraphConfig(workspace)
    except ValueError as error:
        raise CliError(str(error)) from None


@contextlib.asynccontextmanager
async def connect_broker(settings: Settings, command: str) -> AsyncIterator[ConfigBroker]:
    """Connect ``command`` to the broker, inside the context.

    Raises:
        TransportError: it is out of reach.
    """
    async with contextlib.AsyncExitStack() as stack:
        transport = open_transport(settings.require_pulsar_url(command), security=settings.security())
        stack.push_async_callback(transport.close)
        await transport.start()
        broker = ConfigBroker(transport, f"cli-{secrets.token_hex(4)}")
        stack.push_async_callback(broker.close)
        yield broker


@contextlib.asynccontextmanager
async def connect_sources(settings: Settings, sources: Sequence[Source], command: str) -> AsyncIterator[None]:
    """Connect the sources that need the broker, and close them afterwards.

    Raises:
        CliError: the broker is the embedded one.
        TransportError: no broker answers.
    """
    remote = [source for source in sources if isinstance(source, TrustGraphConfig | Announced)]
    if not remote:
        yield
        return
    async with connect_broker(settings, command) as broker, contextlib.AsyncExitStack() as stack:
        for source in remote:
            source.connect(broker)
            stack.push_async_callback(source.close)
        yield


def read_given_sources(settings: Settings, command: str) -> Snapshot:
    """Read all given sources once. The snapshot has the failures of sources.

    Raises:
        CliError: there is none, or one is given twice, or the broker is the embedded one.
    """
    sources = list_sources(settings)
    remote: dict[str, Sequence[Item] | ReadError] = {}

    async def read_remote(source: Source) -> None:
        try:
            async with connect_sources(settings, [source], command):
                remote[source.id] = await source.discover()
        except (CatalogError, ConfigServiceError, DispatchError) as error:
            remote[source.id] = error

    async def read_servers() -> None:
        async def read(source: Source) -> None:
            try:
                remote[source.id] = await source.discover()
            except Exception as error:  # of a server
                problem, _, fix = describe_error(error).rstrip(".").partition(". Fix: ")
                unknown = Problem(source.id, "", problem, fix or "correct its entry, or start it")
                remote[source.id] = ServerFailedError(getattr(source, "problems", (unknown,)))

        try:
            for _ in range(2):  # the names of each one's tools depend on those of the others
                await asyncio.gather(*map(read, servers))
        finally:
            await asyncio.gather(*(each.close() for each in servers if hasattr(each, "close")))

    servers = [each for each in sources if not isinstance(each, Folder | TrustGraphConfig | Announced)]
    if servers:
        run_with_progress(read_servers(), "Starting the MCP servers …")
    for source in sources:
        if isinstance(source, TrustGraphConfig | Announced):
            what = (
                "Looking for announced services"
                if isinstance(source, Announced)
                else "Reading TrustGraph's configuration"
            )
            run_with_progress(read_remote(source), f"{what} through {settings.broker_url} …")
    return read_sources(sources, remote)


def run_with_progress(main: Coroutine[Any, Any, T], text: str, has_started: Callable[[], bool] | None = None) -> T:
    """Run ``main``. If it takes longer than :data:`PROGRESS_AFTER_S`, print ``text`` to stderr.

    Args:
        main: to run.
        text: for people.
        has_started: whether the text would be late, although ``main`` has not ended.
    """

    def announce() -> None:
        if has_started is None or not has_started():
            print_err(colorize(text, "dim", sys.stderr))

    async def run() -> T:
        timer = asyncio.get_running_loop().call_later(PROGRESS_AFTER_S, announce)
        try:
            return await main
        finally:
            timer.cancel()

    return run_async(run())
