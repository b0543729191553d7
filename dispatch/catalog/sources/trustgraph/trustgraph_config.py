"""The tools in TrustGraph's configuration as a live source."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from dispatch.catalog.readers.item import Item
from dispatch.catalog.sources.base import OnChange
from dispatch.catalog.sources.broker import Broker, BrokerSubscription
from dispatch.catalog.sources.trustgraph.config_client import ConfigClient
from dispatch.catalog.sources.trustgraph.config_item import read_config_item
from dispatch.catalog.sources.trustgraph.config_messages import MalformedConfigMessageError, decode_push
from dispatch.catalog.sources.trustgraph.config_topics import ConfigTopics
from dispatch.catalog.sources.trustgraph.config_writer import SERVICE, TOOL, ConfigWriter, require_kind

T = TypeVar("T")

DEFAULT_WORKSPACE: Final = "default"
POLL_S: Final = 30.0
"""Seconds between two polls: a notification may be lost."""
POLL_JITTER: Final = 0.2
"""Share of :data:`POLL_S` by which a poll is earlier or later, so that dispatchers do not poll at the same time."""
CHECK_S: Final = 1.0
"""Seconds between two checks whether the connection was lost, and notifications with it."""
MAX_FETCHES: Final = 3
"""Fetches in a row until both types have the same version; after that the next notification corrects the difference."""
MAX_CONCURRENT: Final = 8
"""Workspaces that are fetched at the same time."""
ALL_WORKSPACES: Final = "*"

_Values = dict[tuple[str, str], dict[str, str]]
"""Texts by key, by workspace and type."""
_Items = dict[tuple[str, str, str], tuple[str, Item]]
"""Each item with its text, by workspace, type and key."""


class TrustGraphConfig:
    """The tools in TrustGraph's configuration (types ``tool`` and ``tool-service``), followed live over the broker.

    It fetches both types after each notification of the config service, and every 30 s ± 20 %. Invalid items are refused
    one by one; while the service is out of reach, the last valid ones stay in force.

    Args:
        workspace: of the tools. ``"*"``: all, each under its own namespace: the tool ``find`` of the workspace ``crm`` is
            ``crm-find``. Workspaces that begin with ``_`` are TrustGraph's storage and are left out.
        id: unique in a dispatcher; the label ``source`` of its metrics.
        topics: of the config service.
        namespace: prefix of the names; with ``"*"`` it precedes the workspace.
        on_change: ``hold``: a changed definition waits for its approval.
        randomness: for the jitter of polls; tests set it.

    Raises:
        ValueError: ``workspace`` is empty or reserved.
        TopicError: one of ``topics`` is not a topic name.
    """

    is_atomic = False
    config_types: ClassVar[tuple[str, str]] = (TOOL, SERVICE)
    """What is read of the configuration. An item of the second type is written before those of the first that need it."""

    def __init__(
        self,
        workspace: str = DEFAULT_WORKSPACE,
        *,
        id: str = "trustgraph",
        topics: ConfigTopics | None = None,
        namespace: str = "",
        on_change: OnChange = "apply",
        randomness: Callable[[], float] = random.random,
    ) -> None:
        if not workspace or workspace.startswith("_"):
            raise ValueError(
                f"'{workspace}' is not a workspace with tools: names that begin with '_' are TrustGraph's storage. "
                "Use the name of a workspace, or '*' for all."
            )
        self.workspace = workspace
        self.id = id
        self.namespace = namespace
        self.on_change: OnChange = on_change
        self.topics = (topics or ConfigTopics()).expand()
        self._randomness = randomness
        self._broker: Broker | None = None
        self._client: ConfigClient | None = None
        self._writer: ConfigWriter | None = None
        self._subscription: BrokerSubscription | None = None
        self._subscribing = asyncio.Lock()
        self._is_changed = asyncio.Event()
        self._version: int | None = None
        self._is_in_reach = False
        self._items: _Items = {}

    def connect(self, broker: Broker) -> None:
        """Use ``broker`` from now on. The dispatcher calls this before the first :meth:`discover`."""
        if broker is self._broker:
            return
        self._broker = broker
        self._client = ConfigClient(broker, self.topics)
        self._writer = ConfigWriter(self._client, self.id)
        self._subscription = None
        self._subscribing = asyncio.Lock()  # the former ones may belong to another event loop
        self._is_changed = asyncio.Event()
        self._version = None

    async def close(self) -> None:
        """End the subscription to notifications."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    async def discover(self) -> Sequence[Item]:
        """Return all items. An item whose text did not change is the same object as before.

        Raises:
            ConfigServiceError: the config service does not answer, or with an error.
            TransportError: the broker is out of reach.
            RuntimeError: not connected: the source belongs to no started dispatcher.
        """
        client = self._connected(self._client)
        self._is_in_reach = False
        await self._subscribe()
        for _ in range(MAX_FETCHES):
            values, versions = await self._fetch(client)
            self._version = max(versions)
            if len(versions) == 1:
                break
        self._is_in_reach = True
        # Thousands of texts take tens of milliseconds.
        self._items = await asyncio.to_thread(self._read, values, self._items)
        return [item for _, item in self._items.values()]

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each notification that may concern the tools, when the connection to the broker has returned, and when
        a poll is due. No poll is due after a failure: the registry tries again in intervals of its own.

        Raises:
            RuntimeError: not connected.
        """
        broker, loop = self._connected(self._broker), asyncio.get_running_loop()
        in_reach_at = loop.time()
        while True:
            due_at = loop.time() + POLL_S * (1 + POLL_JITTER * (2 * self._randomness() - 1))
            is_lost = False
            while not (self._is_changed.is_set() or is_lost) and (now := loop.time()) < due_at:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(CHECK_S, due_at - now)):
                        await self._is_changed.wait()
                if broker.is_connected:
                    is_lost = broker.was_disconnected_since(in_reach_at)
                    in_reach_at = loop.time()
            if self._is_changed.is_set() or is_lost or self._is_in_reach:
                self._is_changed.clear()
                yield

    # -- writing ------------------------------------------------------------------------------------------------

    async def put(
        self, kind: str, raw: Mapping[str, Any], *, key: str | None = None, workspace: str | None = None
    ) -> None:
        """Write a descriptor to TrustGraph's configuration. TrustGraph's agents reload all tools: a tool is written
        together with its service, and a service together with a tool.

        Args:
            kind: ``tool`` or ``tool-service``; put a service before its tools.
            raw: the descriptor.
            key: of the item; None: the ``name`` of a tool, the ``id`` of a service.
            workspace: None: that of the source.

        Raises:
            CatalogError: the descriptor is invalid, or the service of the tool is not there.
            ValueError: ``kind``, key or workspace are missing or unknown.
            ConfigServiceError, TransportError: as :meth:`discover`; the item may have been written.
        """
        await self._connected(self._writer).put(self._one_workspace(workspace), kind, raw, key)

    async def remove(self, kind: str, key: str, *, workspace: str | None = None, force: bool = False) -> bool:
        """Delete an item from TrustGraph's configuration, and write one of the remaining tools with its service again, so
        that TrustGraph's agents reload all tools. Return whether there was such an item.

        Args:
            kind, key: of the item.
            workspace: None: that of the source.
            force: remove a service that tools use; TrustGraph's agents have no tools until these are removed or it is back.

        Raises:
            ValueError: tools use the service, without ``force``; or as :meth:`put`.
            ConfigServiceError, TransportError: as :meth:`put`.
        """
        return await self._connected(self._writer).remove(self._one_workspace(workspace), kind, key, force=force)

    async def get(self, kind: str, key: str, *, workspace: str | None = None) -> Any:
        """Return the descriptor of an item as it is stored: JSON values, or the text if it is not JSON. None: there is none.

        Raises:
            ValueError, ConfigServiceError, TransportError: as :meth:`put`.
        """
        text = await self._connected(self._client).get_value(self._one_workspace(workspace), require_kind(kind), key)
        if text is None:
            return None
        try:
            return json.loads(text)
        except ValueError:
            return text

    async def list(self, kind: str, *, workspace: str | None = None) -> tuple[str, ...]:
        """Return the keys of all items of a kind, sorted.

        Raises:
            ValueError, ConfigServiceError, TransportError: as :meth:`put`.
        """
        return await self._connected(self._client).list_keys(self._one_workspace(workspace), require_kind(kind))

    def _one_workspace(self, workspace: str | None) -> str:
        workspace = self.workspace if workspace is None else workspace
        if workspace == ALL_WORKSPACES or not workspace:
            raise ValueError("An item belongs to one workspace. Give the argument 'workspace'.")
        return workspace

    # -- reading ------------------------------------------------------------------------------------------------

    def _connected(self, part: T | None) -> T:
        if part is None:
            raise RuntimeError(
                "This source is not connected. Pass it to dispatch.connect(catalog=…) and start the dispatcher."
            )
        return part

    async def _subscribe(self) -> None:
        async with self._subscribing:
            if self._subscription is None:
                broker = self._connected(self._broker)
                self._subscription = await broker.subscribe(self.topics.notification, self._on_notification)

    def _on_notification(self, payload: bytes) -> None:
        try:
            push = decode_push(payload)
        except MalformedConfigMessageError:
            self._is_changed.set()  # an unknown change
            return
        changes = push.changes or {}
        # A version that is lower than the known one belongs to a new store.
        if not changes or any(kind in changes for kind in self.config_types) or push.version != self._version:
            self._is_changed.set()

    async def _fetch(self, client: ConfigClient) -> tuple[_Values, set[int]]:
        versions: set[int] = set()
        if self.workspace == ALL_WORKSPACES:
            names: set[str] = set()
            for kind in self.config_types:
                found, version = await client.get_workspaces(kind)
                names |= found
                versions.add(version)
            workspaces = sorted(name for name in names if name and not name.startswith("_"))
        else:
            workspaces = [self.workspace]
        values: _Values = {}
        limit = asyncio.Semaphore(MAX_CONCURRENT)

        async def fetch_workspace(workspace: str) -> None:
            async with limit:
                # A service is written before its tools: a tool that is fetched first has its service in the second fetch.
                for kind in self.config_types:
                    texts, version = await client.get_values(workspace, kind)
                    versions.add(version)
                    values[workspace, kind] = texts

        try:
            async with asyncio.TaskGroup() as group:
                for workspace in workspaces:
                    group.create_task(fetch_workspace(workspace))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return values, versions

    def _read(self, values: _Values, former: _Items) -> _Items:
        items: _Items = {}
        for workspace, kind in sorted(values, key=lambda place: (place[0], place[1] == TOOL)):
            namespace = self._namespace_of(workspace)
            found: _Items = {}
            for key, text in values[workspace, kind].items():
                known = former.get((workspace, kind, key))
                if known is None or known[0] != text:
                    known = text, self.read_item(workspace, kind, key, text, namespace)
                found[workspace, kind, key] = known
            items |= _order_by_precedence(found)
        return items

    def read_item(self, workspace: str, kind: str, key: str, text: str, namespace: str) -> Item:
        """Return the item in a value of the configuration."""
        return read_config_item(self.id, workspace, kind, key, text, namespace)

    def _namespace_of(self, workspace: str) -> str:
        if self.workspace != ALL_WORKSPACES:
            return self.namespace
        return f"{self.namespace}-{workspace}" if self.namespace else workspace


def _order_by_precedence(found: _Items) -> _Items:
    """Return the items of one type, sorted by their keys. Of several with one name TrustGraph's agent uses the last one:
    it comes before the others, which are refused, as in any source."""
    last: dict[str, tuple[str, str, str]] = {}
    for place, (_, item) in found.items():
        name = item.raw.get("name") if isinstance(item.raw, dict) else None
        last[name if isinstance(name, str) else item.key] = place
    chosen = set(last.values())
    return {place: found[place] for place in sorted(found, key=lambda place: (place not in chosen, place))}
