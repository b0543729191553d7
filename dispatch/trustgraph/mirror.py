"""Writes announced tools into TrustGraph's configuration, so that TrustGraph's agents see them, and removes them again."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dispatch.catalog.descriptors import CatalogError
from dispatch.catalog.fields import ItemKey
from dispatch.catalog.items import Item, Source
from dispatch.catalog.versions import version_key
from dispatch.errors import TransportError
from dispatch.trustgraph.config import SERVICE, TOOL, ConfigServiceError, TrustGraphConfig

logger = logging.getLogger("dispatch.catalog")

RECORD_TYPE: Final = "dispatch-mirror"
"""Config type of the record of what a mirror has written: TrustGraph's agents do not read it."""

FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0

Place = tuple[str, str]
"""Kind and key of an item."""


class Mirror:
    """Keeps the items of a source in TrustGraph's configuration. Items that others have written are neither changed nor
    removed; a restarted mirror knows its own by a record in the configuration.

    Args:
        source: connected, such as :class:`~dispatch.Announced`.
        config: connected, of one workspace.
        on_change: called with what was written and what was removed, after each change.
    """

    def __init__(
        self,
        source: Source,
        config: TrustGraphConfig,
        on_change: Callable[[Sequence[Place], Sequence[Place]], object] = lambda written, removed: None,
    ) -> None:
        self._source = source
        self._config = config
        self._on_change = on_change
        self._own: set[Place] | None = None
        self._written: dict[Place, Mapping[str, Any]] = {}
        self._reported: set[Place] = set()

    async def follow(self) -> None:
        """Write every change, until this is cancelled. While the broker or the config service is out of reach it tries
        again."""
        wait = FIRST_RETRY_S
        while True:
            try:
                self._on_change(*await self.write(await self._source.discover()))
                async for _ in self._source.changes():
                    self._on_change(*await self.write(await self._source.discover()))
                    wait = FIRST_RETRY_S
            except (ConfigServiceError, TransportError) as error:
                logger.warning("the mirror is behind, and tries again in %g s: %s", wait, error)
            await asyncio.sleep(wait)
            wait = min(wait * 2, MAX_RETRY_S)

    async def write(self, items: Sequence[Item]) -> tuple[list[Place], list[Place]]:
        """Write ``items``, and remove what is no longer among them. Return what was written and removed.

        Raises:
            ConfigServiceError, TransportError: some may have been written.
        """
        own = await self._read_record() if self._own is None else self._own
        wanted = select_defaults(items)
        taken = {place for place in wanted if place not in own and await self._config.get(*place) is not None}
        for place in taken - self._reported:
            logger.warning("%s/%s is not mirrored: the configuration has another item of that name", *place)
        self._reported = taken
        changed = [place for place in wanted if place not in taken and self._written.get(place) != wanted[place]]
        gone = sorted(own - wanted.keys())  # tools before the services that they use
        if set(changed) - own or self._own is None:
            await self._write_record(own | set(changed))  # first: a mirror that ends in between leaves no stranger
        for kind, key in changed:
            self._written[kind, key] = wanted[kind, key]
            try:
                await self._config.put(kind, wanted[kind, key], key=key)
            except CatalogError as error:  # one invalid descriptor does not take the others with it
                logger.warning("%s/%s is not mirrored: %s", kind, key, error)
            except BaseException:
                del self._written[kind, key]
                raise
        for kind, key in gone:
            await self._config.remove(kind, key, force=True)
            self._written.pop((kind, key), None)
        if gone:
            await self._write_record((own | set(changed)) - set(gone))
        return changed, gone

    async def _read_record(self) -> set[Place]:
        text = await self._config.get_text(RECORD_TYPE, self._source.id)
        try:
            found = json.loads(text or "[]")
            return {(kind, key) for kind, key in found if kind in (TOOL, SERVICE) and isinstance(key, str)}
        except (ValueError, TypeError):
            logger.warning("the record of the mirror is unreadable: items that it has written are not removed")
            return set()

    async def _write_record(self, own: set[Place]) -> None:
        await self._config.put_text(RECORD_TYPE, self._source.id, json.dumps(sorted(own)))
        self._own = own


def select_defaults(items: Sequence[Item]) -> dict[Place, Mapping[str, Any]]:
    """Return the descriptors of the highest versions, services first, by kind and name. TrustGraph has one version of a
    name."""
    chosen: dict[Place, tuple[str | None, Mapping[str, Any]]] = {}
    for kind in (SERVICE, TOOL):
        for item in items:
            if item.kind != kind or not isinstance(item.raw, Mapping):
                continue
            name, version = ItemKey.parse(item.key)
            former = chosen.get((kind, name))
            if former is None or (version and former[0] and version_key(version) > version_key(former[0])):
                chosen[kind, name] = version, item.raw
    return {place: raw for place, (_, raw) in chosen.items()}
