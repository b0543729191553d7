"""The sources that the options of a command name, and the connection of those that need the broker."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dispatch.catalog import Folder
from dispatch.catalog.sources.base import Source
from dispatch.catalog.sources.trustgraph import ConfigServiceError, TrustGraphConfig
from dispatch.cli.catalog.snapshot import Snapshot, SnapshotReader, error_of_config_service, require_distinct
from dispatch.cli.exit_codes import CliError
from dispatch.cli.output import colorize, print_err
from dispatch.cli.run_async import run_async
from dispatch.errors import DispatchError
from dispatch.transports import open_transport
from dispatch.trustgraph.config_broker import ConfigBroker

if TYPE_CHECKING:
    from dispatch.cli.settings import Settings

T = TypeVar("T")

PROGRESS_AFTER_S: Final = 2.0
"""Seconds after which a command says what it waits for."""


def list_sources(settings: Settings, *, watch: bool = False) -> list[Source]:
    """Return the sources, the highest precedence first. TrustGraph's configuration is not connected yet.

    Raises:
        CliError: there is none, or one is given twice, or the workspace is reserved.
    """
    workspace = settings.trustgraph_workspace
    folders = settings.require_catalog_folders() if workspace is None else settings.catalog_folders
    sources: list[Source] = [Folder(path, watch=watch) for path in folders]
    require_distinct(sources)
    if workspace is not None:
        sources.append(make_trustgraph_config(workspace))
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
async def connect_sources(settings: Settings, sources: Sequence[Source], command: str) -> AsyncIterator[None]:
    """Connect the sources that need the broker, and close them afterwards.

    Raises:
        CliError: the broker is the embedded one.
        TransportError: no broker answers.
    """
    remote = [source for source in sources if isinstance(source, TrustGraphConfig)]
    if not remote:
        yield
        return
    async with contextlib.AsyncExitStack() as stack:
        transport = open_transport(settings.require_pulsar_url(command), security=settings.security())
        stack.push_async_callback(transport.close)
        await transport.start()
        broker = ConfigBroker(transport, f"cli-{secrets.token_hex(4)}")
        stack.push_async_callback(broker.close)
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
    reader = SnapshotReader(sources)

    async def read_remote() -> None:
        try:
            async with connect_sources(settings, sources, command):
                await reader.read_remote()
        except DispatchError as error:
            reader.add_failure(error)

    if any(isinstance(source, TrustGraphConfig) for source in sources):
        run_with_progress(read_remote(), f"Reading TrustGraph's configuration through {settings.broker_url} …")
    return reader.merge()


def run_with_progress(main: Coroutine[Any, Any, T], text: str, has_started: Callable[[], bool] | None = None) -> T:
    """Run ``main``. If it takes longer than :data:`PROGRESS_AFTER_S`, print ``text`` to stderr.

    Args:
        main: to run.
        text: for people.
        has_started: whether the text would be late, although ``main`` has not ended.

    Raises:
        CliError: TrustGraph's config service does not answer, or with an error.
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

    try:
        return run_async(run())
    except ConfigServiceError as error:
        raise error_of_config_service(error) from None
