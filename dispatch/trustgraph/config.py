"""The tools in TrustGraph's configuration as a live source: its items, the messages of the config service, writing; and the
mirror of announced tools in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import Any, Final, TypeVar

import msgspec

from dispatch._internal import check_instance, excerpt, explain_keywords, join_names, run_in_thread
from dispatch.catalog.catalog import check_items
from dispatch.catalog.descriptors import ARGUMENT_TYPES, OTHER_NAMES_OF_TYPES, CatalogError
from dispatch.catalog.items import (
    Broker,
    BrokerSubscription,
    Item,
    ItemKey,
    OnChange,
    OnMessage,
    Source,
    choose_key,
    require_kind,
)
from dispatch.catalog.versions import version_key
from dispatch.errors import TransportError
from dispatch.messaging.plain import read_properties
from dispatch.messaging.wire import SECRET_BYTES, ErrorInfo, Identity, Property, TopicName, hello_topic, reply_topic
from dispatch.transports import Message, Mode, Publisher, Subscription, Transport
from dispatch.transports.errors import closed

_log = logging.getLogger("dispatch.catalog")


def read_config_item(source: str, workspace: str, kind: str, key: str, text: str, namespace: str = "") -> Item:
    """Return the item in a config value. The text never raises an exception: one that is not JSON is the item's content,
    which the reader of descriptors refuses.

    TrustGraph's agent is more lenient than the reader of descriptors. Therefore:

    - the id of a service is its key, to which tools refer, whatever ``id`` is inside. The key ``NAME@VERSION`` is a version
      of the service ``NAME``, which a tool that refers to the key requires;
    - a config param may be a plain text, and may be repeated;
    - the description of a tool, and the type and the description of an argument, may be missing (``""``, ``string``);
    - a type of an argument that is not one of JSON Schema is read as the one that it means, otherwise as ``string``, with
      a warning in the log: it is a hint for the model only.

    Args:
        source: id of the source, for messages.
        workspace, kind, key: place of the value; ``kind`` is its config type.
        text: the value.
        namespace: see :class:`~dispatch.catalog.items.Item`.
    """
    origin = f"{source}:{workspace}/{kind}/{key}"
    raw: object = text
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return Item(origin, kind, key, text, namespace)
    if isinstance(raw, dict):
        if kind == "tool-service":
            raw = _normalize_service(raw, key)
        elif raw.get("type") == "tool-service":
            raw = normalize_tool(raw, origin)
    return Item(origin, kind, key, raw, namespace)


def _normalize_service(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    service = {**raw, "id": ItemKey.parse(key).name}
    params = raw.get("config-params")
    if isinstance(params, list):
        service["config-params"] = _normalize_params(params)
    return service


def _normalize_params(params: list[Any]) -> list[Any]:
    named: dict[str, dict[str, Any]] = {}
    others = []
    for param in params:
        entry = {"name": param} if isinstance(param, str) else param
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            others.append(param)  # the reader reports it
            continue
        first = named.setdefault(name, {**entry, "required": False})
        first["required"] = first["required"] or bool(entry.get("required"))
    return [*named.values(), *others]


def normalize_tool(raw: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the descriptor of a tool with what TrustGraph's agent does not require; see :func:`read_config_item`."""
    tool = {**raw}
    if tool.get("description") is None:
        tool["description"] = ""
    service = raw.get("service")
    if isinstance(service, str):
        name, version = ItemKey.parse(service)
        if version is not None:
            tool["service"] = name
            tool.setdefault("requires", version)
    arguments = raw.get("arguments")
    if isinstance(arguments, list):
        tool["arguments"] = [
            _normalize_argument(entry, f"{origin}: arguments[{index}]") if isinstance(entry, dict) else entry
            for index, entry in enumerate(arguments)
        ]
    return tool


def _normalize_argument(entry: Mapping[str, Any], place: str) -> dict[str, Any]:
    argument = {**entry}
    if argument.get("description") is None:
        argument["description"] = ""
    given = argument.get("type")
    if given in (None, ""):
        argument["type"] = "string"
    elif isinstance(given, str) and given not in ARGUMENT_TYPES:
        argument["type"] = OTHER_NAMES_OF_TYPES.get(given.strip().casefold(), "string")
        _log.warning(
            "%s.type: the argument type '%s' is unknown: it is read as '%s'. Fix: write one of %s.",
            place,
            excerpt(given),
            argument["type"],
            ", ".join(ARGUMENT_TYPES),
        )
    return argument


# The topics of TrustGraph's config service.


class ConfigTopics(msgspec.Struct, frozen=True):
    """The topics of a config service: whole names, or TrustGraph's short form ``class:topicspace:topic``.

    Attributes:
        request: topic of its requests.
        response: topic of its responses.
        notification: topic on which it announces changes.
    """

    request: str = "request:tg:config"
    response: str = "response:tg:config"
    notification: str = "notify:tg:config"

    @classmethod
    def of_workspace(cls, workspace: str) -> ConfigTopics:
        """Return the topics for one workspace, which the service opens for each workspace that is registered with it. A
        client with rights to these alone reads and writes no other workspace."""
        default = cls()
        return cls(f"{default.request}:{workspace}", f"{default.response}:{workspace}", default.notification)

    def expand(self) -> ConfigTopics:
        """Return the same topics with whole names.

        Raises:
            TopicError: one of them is not a topic name.
        """
        return ConfigTopics(*(str(TopicName.parse(topic)) for topic in msgspec.structs.astuple(self)))


# Messages of TrustGraph's config service: its dataclasses (``trustgraph.schema.config``, 2.11.1) as JSON, with all fields.
# Unknown fields are ignored, and missing ones have their defaults.


T = TypeVar("T")


class MalformedConfigMessageError(ValueError):
    """A response or a notification cannot be decoded; ``str()`` says why."""


class ConfigKey(msgspec.Struct, frozen=True):
    """The place of an item: ``type`` (``tool``, ``tool-service`` …) and ``key``."""

    type: str = ""
    key: str = ""


class ConfigValue(msgspec.Struct, frozen=True):
    """An item.

    Attributes:
        type, key: its place.
        value: its text, mostly JSON; None in a response to ``get``: there is no such item.
        workspace: in responses about all workspaces, otherwise empty.
    """

    type: str = ""
    key: str = ""
    value: str | None = ""
    workspace: str = ""


class ConfigRequest(msgspec.Struct, frozen=True):
    """A request.

    Attributes:
        operation: ``get``, ``put``, ``delete`` (several items), ``list``, ``getvalues`` (of a type), ``getkeys-all-ws``.
        workspace: needed by all but ``getkeys-all-ws``.
        keys: for ``get`` and ``delete``.
        type: for ``list``, ``getvalues`` and ``getkeys-all-ws``.
        values: for ``put``.
    """

    operation: str = ""
    workspace: str = ""
    keys: tuple[ConfigKey, ...] = ()
    type: str = ""
    values: tuple[ConfigValue, ...] = ()


class ConfigResponse(msgspec.Struct, frozen=True):
    """A response.

    Attributes:
        version: of the configuration; counts the writes, and starts at 0 in a new store, where it may be missing (None).
        values: of ``get``, ``getvalues`` and ``getkeys-all-ws``.
        directory: the keys of ``list``.
        config: of the operation ``config``, which dispatch does not use.
        error: None: none.
    """

    version: int | None = 0
    values: tuple[ConfigValue, ...] | None = ()
    directory: tuple[str, ...] | None = ()
    config: Mapping[str, Mapping[str, str | None]] | None = {}
    error: ErrorInfo | None = None


class WorkspaceChanges(msgspec.Struct, frozen=True):
    """Workspaces that were created or deleted."""

    created: tuple[str, ...] | None = ()
    deleted: tuple[str, ...] | None = ()


class ConfigPush(msgspec.Struct, frozen=True):
    """A notification.

    Attributes:
        version: of the configuration.
        changes: types that changed, each with its workspaces. Empty: the service has started, or only workspaces that are
            reserved have changed.
        workspace_changes: None: none.
    """

    version: int | None = 0
    changes: Mapping[str, tuple[str, ...]] | None = {}
    workspace_changes: WorkspaceChanges | None = None


def decode_message(payload: bytes, type: type[T]) -> T:
    """Return the response or the notification in ``payload``.

    Raises:
        MalformedConfigMessageError: it has none.
    """
    try:
        return msgspec.json.decode(payload, type=type)
    except msgspec.DecodeError as error:
        try:
            # The service encodes with json.dumps, which lets half a surrogate pair pass: one such item must not hide all
            # others.
            return msgspec.convert(json.loads(payload), type)
        except (ValueError, RecursionError):
            raise MalformedConfigMessageError(str(error)) from None


# Requests to TrustGraph's config service.


TIMEOUT_S: Final = 5.0
"""Seconds until a response must be there. The service answers within milliseconds."""
RESEND_S: Final = 1.0
"""Seconds without a response after which a read is sent again: the topics may drop a message."""
LARGE_BYTES: Final = 256 * 1024
"""Bytes of a response from which it is decoded in a thread: 4 MiB take 10 ms."""
NO_RESPONSE: Final = "no-response"
BAD_RESPONSE: Final = "bad-response"


class ConfigServiceError(RuntimeError):
    """A request to the config service failed.

    Attributes:
        type: the ``type`` of the service's own error; ``no-response``; ``bad-response``.
        operation: of the request.
    """

    def __init__(self, type: str, operation: str, message: str) -> None:
        super().__init__(message)
        self.type = type
        self.operation = operation

    def __reduce__(self) -> tuple[type[ConfigServiceError], tuple[str, str, str]]:
        return ConfigServiceError, (self.type, self.operation, str(self))


class ConfigClient:
    """A client of TrustGraph's config service.

    Args:
        broker: carries the messages; also an attribute.
        topics: of the service, with whole names.
    """

    def __init__(self, broker: Broker, topics: ConfigTopics) -> None:
        self.broker = broker
        self._topics = topics

    async def get_values(self, workspace: str, type: str) -> tuple[dict[str, str], int]:
        """Return the items of one type by key, and the version of the configuration.

        Raises:
            ConfigServiceError: the service does not answer, or with an error. Likewise all methods.
            TransportError: the broker is out of reach. Likewise all methods.
        """
        response = await self._read(ConfigRequest("getvalues", workspace, type=type))
        values = {each.key: each.value for each in response.values or () if each.value is not None}
        return values, response.version or 0

    async def get_workspaces(self, type: str) -> tuple[set[str], int]:
        """Return the workspaces that have items of one type, and the version of the configuration."""
        response = await self._read(ConfigRequest("getkeys-all-ws", type=type))
        return {each.workspace for each in response.values or ()}, response.version or 0

    async def get_value(self, workspace: str, type: str, key: str) -> str | None:
        """Return the text of an item; None: there is none."""
        response = await self._read(ConfigRequest("get", workspace, (ConfigKey(type, key),)))
        return next((each.value for each in response.values or () if (each.type, each.key) == (type, key)), None)

    async def list_keys(self, workspace: str, type: str) -> tuple[str, ...]:
        """Return the keys of one type, sorted."""
        response = await self._read(ConfigRequest("list", workspace, type=type))
        return tuple(sorted(response.directory or ()))

    async def put_values(self, workspace: str, values: Iterable[ConfigValue]) -> None:
        """Write items; the service sends one notification with all their types."""
        await self._write(ConfigRequest("put", workspace, values=tuple(values)))

    async def delete_value(self, workspace: str, type: str, key: str) -> None:
        """Delete an item. It need not exist."""
        await self._write(ConfigRequest("delete", workspace, (ConfigKey(type, key),)))

    async def _read(self, request: ConfigRequest) -> ConfigResponse:
        return await self._request(request, RESEND_S, "Check that the service runs and uses this topic")

    async def _write(self, request: ConfigRequest) -> None:
        # Sent once: a copy that arrives late would undo the write of another client.
        await self._request(request, None, "It may have been executed: read the item before you write it again")

    async def _request(self, request: ConfigRequest, resend_after: float | None, advice: str) -> ConfigResponse:
        operation, topics = request.operation, self._topics
        failure = f"TrustGraph's config service on {topics.request}"
        try:
            payload = await self.broker.request(
                topics.request,
                topics.response,
                msgspec.json.encode(request),
                timeout=TIMEOUT_S,
                resend_after=resend_after,
            )
        except TimeoutError:
            message = f"{failure} did not answer '{operation}' within {TIMEOUT_S:g} s. {advice}."
            raise ConfigServiceError(NO_RESPONSE, operation, message) from None
        try:
            if len(payload) > LARGE_BYTES:
                response = await asyncio.to_thread(decode_message, payload, ConfigResponse)
            else:
                response = decode_message(payload, ConfigResponse)
        except MalformedConfigMessageError as error:
            message = f"{failure} answered '{operation}' with an unreadable response ({error}). {advice}."
            raise ConfigServiceError(BAD_RESPONSE, operation, message) from None
        if response.error is not None:
            kind, reason = excerpt(response.error.type), excerpt(response.error.message, 200)
            message = f"{failure} refused '{operation}' ({kind}: {reason}). Check the workspace and the service's log."
            raise ConfigServiceError(response.error.type, operation, message)
        return response


# The tools in TrustGraph's configuration as a live source.
#
# An agent of TrustGraph fetches only the types that a notification names, and makes its set of tools of these alone: after
# a notification for ``tool`` it has no services, after one for ``tool-service`` no tools. So every write here touches both.


SERVICE: Final = "tool-service"
TOOL: Final = "tool"
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
    config_types: tuple[str, ...] = (TOOL, SERVICE)
    """What is read of the configuration. An item of the second type is written before those of the first that need it."""

    @explain_keywords
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
        check_instance("topics", topics, (ConfigTopics, NoneType), "a ConfigTopics, or None")
        self.topics = (topics or ConfigTopics()).expand()
        self._randomness = randomness
        self._client: ConfigClient | None = None
        # A write reads the items that it touches: two writes of this process must not restore each other's former items.
        self._writing = asyncio.Lock()
        self._subscription: BrokerSubscription | None = None
        self._subscribing = asyncio.Lock()
        self._is_changed = asyncio.Event()
        self._version: int | None = None
        self._is_in_reach = False
        self._items: _Items = {}

    def connect(self, broker: Broker) -> None:
        """Use ``broker`` from now on. The dispatcher calls this before the first :meth:`discover`."""
        if self._client is not None and broker is self._client.broker:
            return
        self._client = ConfigClient(broker, self.topics)
        self._subscription = None
        self._subscribing, self._writing = (
            asyncio.Lock(),
            asyncio.Lock(),
        )  # the former ones may be of another event loop
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
        client = self._connected()
        self._is_in_reach = False
        await self._subscribe()
        for _ in range(MAX_FETCHES):
            values, versions = await self._fetch(client)
            self._version = max(versions)
            if len(versions) == 1:
                break
        self._is_in_reach = True
        # Thousands of texts take tens of milliseconds.
        self._items = await run_in_thread(partial(self._read, values, self._items))
        return [item for _, item in self._items.values()]

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each notification that may concern the tools, when the connection to the broker has returned, and when
        a poll is due. No poll is due after a failure: the registry tries again in intervals of its own.

        Raises:
            RuntimeError: not connected.
        """
        broker, loop = self._connected().broker, asyncio.get_running_loop()
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
        client, workspace = self._connected(), self._one_workspace(workspace)
        key = choose_key(require_kind(kind), raw, key)
        value = ConfigValue(kind, key, json.dumps(raw, ensure_ascii=False))
        async with self._writing:
            if kind == SERVICE:
                self._require_valid(workspace, [value])
                values = [value, *await self._find_tool(workspace, [key])]
            elif raw.get("type") == SERVICE:
                service = raw.get("service")
                text = await client.get_value(workspace, SERVICE, service) if isinstance(service, str) else None
                services = [ConfigValue(SERVICE, str(service), text)] if text is not None else []
                self._require_valid(workspace, [*services, value])
                values = [*services, value]
            else:
                values = [*(await self._find(workspace, SERVICE))[:1], value]
            await client.put_values(workspace, values)

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
        client, workspace = self._connected(), self._one_workspace(workspace)
        require_kind(kind)
        async with self._writing:
            if await client.get_value(workspace, kind, key) is None:
                return False
            if kind == SERVICE and not force:
                await self._require_unused(workspace, key)
            await client.delete_value(workspace, kind, key)
            services = await self._find(workspace, SERVICE)
            tools = await self._find_tool(workspace, [each.key for each in services])
            used = [self._service_of(workspace, each) for each in tools]
            if tools:
                touched = [each for each in services if each.key in used] or services[:1]
                await client.put_values(workspace, [*touched, *tools])
            return True

    async def _find(self, workspace: str, kind: str) -> list[ConfigValue]:
        texts, _ = await self._connected().get_values(workspace, kind)
        return [ConfigValue(kind, key, text) for key, text in texts.items()]

    async def _find_tool(self, workspace: str, services: Sequence[str]) -> list[ConfigValue]:
        """Return a tool, of one of ``services`` if they have tools; nothing if there are no tools."""
        tools = await self._find(workspace, TOOL)
        return sorted(tools, key=lambda tool: self._service_of(workspace, tool) not in services)[:1]

    def _item_of(self, workspace: str, value: ConfigValue) -> Item:
        return read_config_item(self.id, workspace, value.type, value.key, value.value or "")

    def _service_of(self, workspace: str, tool: ConfigValue) -> str:
        raw = self._item_of(workspace, tool).raw
        service = raw.get("service") if isinstance(raw, dict) and raw.get("type") == SERVICE else None
        return service if isinstance(service, str) else ""

    def _require_valid(self, workspace: str, values: list[ConfigValue]) -> None:
        """Raise CatalogError unless dispatch and TrustGraph can read ``values``: TrustGraph's agent refuses all tools for
        one that it cannot read."""
        _, problems = check_items([self._item_of(workspace, each) for each in values])
        if any(problem.severity == "error" for problem in problems):
            raise CatalogError(problems)

    async def _require_unused(self, workspace: str, service: str) -> None:
        tools = await self._find(workspace, TOOL)
        users = tuple(tool.key for tool in tools if self._service_of(workspace, tool) == service)
        if users:
            raise ValueError(
                f"The service '{excerpt(service)}' was not removed: the tools {join_names(users)} use it. "
                "Remove these tools first."
            )

    async def get(self, kind: str, key: str, *, workspace: str | None = None) -> Any:
        """Return the descriptor of an item as it is stored: JSON values, or the text if it is not JSON. None: there is none.

        Raises:
            ValueError, ConfigServiceError, TransportError: as :meth:`put`.
        """
        text = await self._connected().get_value(self._one_workspace(workspace), require_kind(kind), key)
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
        return await self._connected().list_keys(self._one_workspace(workspace), require_kind(kind))

    async def get_text(self, type: str, key: str) -> str | None:
        """Return the text of a config value of any type; None: there is none.

        Raises:
            ValueError, ConfigServiceError, TransportError: as :meth:`put`.
        """
        return await self._connected().get_value(self._one_workspace(None), type, key)

    async def put_text(self, type: str, key: str, text: str) -> None:
        """Write a config value of any type that TrustGraph's agents do not read.

        Raises:
            ValueError, ConfigServiceError, TransportError: as :meth:`put`.
        """
        value = ConfigValue(type, key, text)
        await self._connected().put_values(self._one_workspace(None), [value])

    def _one_workspace(self, workspace: str | None) -> str:
        workspace = self.workspace if workspace is None else workspace
        if workspace == ALL_WORKSPACES or not workspace:
            raise ValueError("An item belongs to one workspace. Give the argument 'workspace'.")
        return workspace

    # -- reading ------------------------------------------------------------------------------------------------

    def _connected(self) -> ConfigClient:
        if self._client is None:
            raise RuntimeError(
                "This source is not connected. Pass it to dispatch.connect(catalog=…) and start the dispatcher."
            )
        return self._client

    async def _subscribe(self) -> None:
        async with self._subscribing:
            if self._subscription is None:
                broker = self._connected().broker
                self._subscription = await broker.subscribe(self.topics.notification, self._on_notification)

    def _on_notification(self, payload: bytes) -> None:
        try:
            push = decode_message(payload, ConfigPush)
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


# The broker as sources see it, over the connection of a dispatcher.


class ConfigBroker:
    """Implements :class:`dispatch.catalog.items.Broker`. Topics are opened on first use.

    Args:
        transport: a started connection.
        name: of the dispatcher; part of the names of its subscriptions.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = f"dispatch-config-{name}"
        self._identity = Identity(os.urandom(SECRET_BYTES).hex())
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._opening = asyncio.Lock()
        self._publishers: dict[str, Publisher] = {}
        self._responses: dict[str, Subscription] = {}
        # Weak: the connection has those that are open.
        self._notifications: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """See :attr:`dispatch.catalog.items.Broker.is_connected`."""
        return self._transport.connected

    def was_disconnected_since(self, instant: float) -> bool:
        """See :meth:`dispatch.catalog.items.Broker.was_disconnected_since`."""
        return self._transport.was_disconnected_since(instant)

    async def request(
        self, topic: str, response_topic: str, payload: bytes, *, timeout: float, resend_after: float | None = None
    ) -> bytes:
        """See :meth:`dispatch.catalog.items.Broker.request`."""
        async with asyncio.timeout(timeout):
            await self._subscribe_responses(response_topic)  # first: it must be open when the response arrives
            publisher = await self._open_publisher(topic)
            return await self._exchange(publisher, payload, {}, resend_after)

    async def ask_instance(
        self, request_queue: str, response_queue: str, payload: bytes, *, timeout: float, resend_after: float
    ) -> bytes:
        """See :meth:`dispatch.catalog.items.Broker.ask_instance`."""
        answers = TopicName.parse(response_queue)
        inbox = reply_topic(
            str(TopicName(False, answers.tenant, answers.namespace, answers.name)), f"{self._identity.key}-{self._name}"
        )
        properties = {Property.HELLO: request_queue, Property.REPLY_TO: inbox, Property.SECRET: self._identity.secret}
        async with asyncio.timeout(timeout):
            await self._subscribe_responses(inbox)
            # Closed again: there may be a thousand services, and each is asked once.
            publisher = await self._transport.publisher(hello_topic(request_queue))
            try:
                return await self._exchange(publisher, payload, properties, resend_after)
            finally:
                await publisher.close()

    async def publish(self, topic: str, payload: bytes) -> None:
        """See :meth:`dispatch.catalog.items.Broker.publish`."""
        publisher = await self._open_publisher(topic)
        publisher.publish(payload, {}, flow=topic, on_failure=_ignore_failure)

    async def _exchange(
        self, publisher: Publisher, payload: bytes, properties: Mapping[str, str], resend_after: float | None
    ) -> bytes:
        """Send a message until it is answered, and return the answer."""
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # Clients of all processes share the response topic, and each sees the ids of the others' responses.
        id = os.urandom(16).hex()
        properties = {**properties, Property.ID: id}

        def on_failure(error: TransportError) -> None:
            if not response.done():
                response.set_exception(error)

        self._waiting[id] = response
        try:
            while True:
                publisher.publish(payload, properties, flow=publisher.topic, on_failure=on_failure)
                answered, _ = await asyncio.wait([response], timeout=resend_after)
                if answered:
                    return response.result()
                if resend_after is not None:
                    resend_after *= 2
        finally:
            del self._waiting[id]
            if not response.cancel() and not response.cancelled():
                response.exception()  # of a failure that came together with the timeout

    async def _subscribe_responses(self, topic: str) -> None:
        async with self._opening:
            if self._is_closed:
                raise closed()
            if topic not in self._responses:
                self._responses[topic] = await self._transport.subscribe(
                    topic, self._on_response, mode=Mode.FANOUT, name=self._unique_name()
                )

    async def _open_publisher(self, topic: str) -> Publisher:
        async with self._opening:
            if self._is_closed:
                raise closed()
            if topic not in self._publishers:
                self._publishers[topic] = await self._transport.publisher(topic)
            return self._publishers[topic]

    def _unique_name(self) -> str:
        return f"{self._name}-{os.urandom(4).hex()}"

    def _on_response(self, message: Message) -> None:
        response = self._waiting.get(read_properties(message).get(Property.ID, ""))
        # A response to another client, or a late or a duplicate one.
        if response is not None and not response.done():
            response.set_result(message.data())

    async def subscribe(self, topic: str, on_message: OnMessage, *, is_polled: bool = False) -> BrokerSubscription:
        """See :meth:`dispatch.catalog.items.Broker.subscribe`."""
        if self._is_closed:
            raise closed()

        def handle(message: Message) -> None:
            on_message(message.data())

        mode = Mode.POLLED if is_polled else Mode.FANOUT
        subscription = await self._transport.subscribe(topic, handle, mode=mode, name=self._unique_name())
        self._notifications.add(subscription)
        return subscription

    async def close(self) -> None:
        """Close all topics. Requests that wait fail. Idempotent."""
        self._is_closed = True
        for response in self._waiting.values():
            if not response.done():
                response.set_exception(closed())
        async with self._opening:
            for subscription in list(self._notifications):
                await subscription.close()
            while self._responses:
                await self._responses.popitem()[1].close()
            while self._publishers:
                await self._publishers.popitem()[1].close()


def _ignore_failure(_error: TransportError) -> None:
    """Ignore a message that could not be sent: it is best effort."""


# Writes announced tools into TrustGraph's configuration, so that TrustGraph's agents see them, and removes them again.


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
                _log.warning("the mirror is behind, and tries again in %g s: %s", wait, error)
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
            _log.warning("%s/%s is not mirrored: the configuration has another item of that name", *place)
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
                _log.warning("%s/%s is not mirrored: %s", kind, key, error)
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
            _log.warning("the record of the mirror is unreadable: items that it has written are not removed")
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
