"""Items in TrustGraph's configuration: read, write and remove one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dispatch.catalog import CatalogError
from dispatch.catalog.sources.trustgraph import TrustGraphConfig
from dispatch.cli.catalog.given_sources import connect_sources, make_trustgraph_config, run_with_progress
from dispatch.cli.exit_codes import CliError
from dispatch.cli.items.item_document import ItemDocument
from dispatch.cli.items.item_store import NOT_STORED, StoredItem, refuse_write
from dispatch.cli.items.item_target import ItemTarget

if TYPE_CHECKING:
    from dispatch.cli.settings import Settings

T = TypeVar("T")

_ALL: Final = "*"


class ItemConfig:
    """TrustGraph's configuration as a store of items. Each method connects to the broker.

    Args:
        settings: the broker's, and the workspace.
        command: for messages.

    Raises:
        CliError: the workspace is reserved, or stands for all.
    """

    def __init__(self, settings: Settings, workspace: str, command: str) -> None:
        if workspace == _ALL:
            raise CliError("An item belongs to one workspace.", "name it with --workspace NAME")
        self._settings = settings
        self._workspace = workspace
        self._command = command
        self.label = f"TrustGraph's configuration, workspace '{workspace}'"

    def find(self, target: ItemTarget) -> Any:
        """See :class:`ItemStore`."""

        async def find(source: TrustGraphConfig) -> Any:
            found = await source.get(*target)
            return NOT_STORED if found is None else found

        return self._run(find)

    def list_keys(self, kind: str) -> tuple[str, ...]:
        """See :class:`ItemStore`."""
        return self._run(lambda source: source.list(kind))

    def put(self, target: ItemTarget, document: ItemDocument) -> StoredItem:
        """See :class:`ItemStore`. Together with a tool its service is written again, so that TrustGraph's agents reload."""
        raw = document.raw
        if not isinstance(raw, dict):
            raise CliError(
                f"{target} was not written: the descriptor is not an object.", 'write one JSON object: {"…": …}'
            )

        async def put(source: TrustGraphConfig) -> bool:
            existed = await source.get(*target) is not None
            await source.put(target.kind, raw, key=target.key)
            return existed

        try:
            existed = self._run(put)
        except CatalogError as error:
            mistakes = [problem for problem in error.problems if problem.severity == "error"]
            raise refuse_write(target, mistakes) from None
        return StoredItem(target, self._place_of(target), existed)

    def remove(self, target: ItemTarget, *, force: bool) -> StoredItem | None:
        """See :class:`ItemStore`."""
        try:
            is_removed = self._run(lambda source: source.remove(*target, force=force))
        except ValueError as error:
            raise CliError(str(error), "or give --force") from None
        return StoredItem(target, self._place_of(target), True) if is_removed else None

    def _place_of(self, target: ItemTarget) -> str:
        return f"trustgraph:{self._workspace}/{target}"

    def _run(self, function: Callable[[TrustGraphConfig], Awaitable[T]]) -> T:
        source = make_trustgraph_config(self._workspace)

        async def run() -> T:
            async with connect_sources(self._settings, [source], self._command):
                return await function(source)

        return run_with_progress(
            run(), f"Waiting for TrustGraph's config service through {self._settings.broker_url} …"
        )
