"""TrustGraph's config service on the embedded broker: its operations and notifications, written with plain JSON.

tests/integration/interop/test_trustgraph_config.py shows the same with the published service.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from dispatch.transports import Message, Mode, Publisher, Subscription
from dispatch.transports.memory import MemoryTransport
from dispatch.trustgraph.config import ConfigBroker

REQUEST = "non-persistent://tg/request/config"
RESPONSE = "non-persistent://tg/response/config"
NOTIFICATION = "non-persistent://tg/notify/config"


@dataclass
class ConfigStore:
    """Texts by workspace, type and key; ``version`` counts the writes."""

    texts: dict[tuple[str, str, str], str] = field(default_factory=dict)
    version: int = 0

    def write(self, kind: str, key: str, raw: object, workspace: str = "default") -> None:
        """Write an item without a notification."""
        self.texts[workspace, kind, key] = raw if isinstance(raw, str) else json.dumps(raw)
        self.version += 1


class ConfigService:
    """A running service.

    Attributes:
        requests: every request, as it arrived.
        ids: of these requests; a repeated request has the same one.
        is_silent: it receives requests and does nothing, as a process that is stopped.
        ignores: an operation to which it does not respond; empty: none.
        copies: responses to each request.
        refusal: the error of each response; None: none.
    """

    def __init__(self, store: ConfigStore, transport: MemoryTransport) -> None:
        self.store = store
        self.requests: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.is_silent = False
        self.ignores = ""
        self.copies = 1
        self.refusal: dict[str, str] | None = None
        self._transport = transport
        self._subscription: Subscription | None = None
        self._responses: Publisher | None = None
        self._pushes: Publisher | None = None

    @property
    def operations(self) -> list[tuple[str, str]]:
        """The operation of each request, with its types, joined."""
        return [
            (each["operation"], each["type"] or ",".join(item["type"] for item in (*each["keys"], *each["values"])))
            for each in self.requests
        ]

    async def start(self) -> None:
        self._responses = await self._transport.publisher(RESPONSE)
        self._pushes = await self._transport.publisher(NOTIFICATION)
        self.push({})
        self._subscription = await self._transport.subscribe(
            REQUEST, self._on_request, mode=Mode.SHARED, name="config-svc"
        )

    async def stop(self) -> None:
        await self._subscription.close()

    def push(self, changes: dict[str, list[str]]) -> None:
        """Send a notification with the version of the store."""
        self.send_notification({"version": self.store.version, "changes": changes, "workspace_changes": None})

    def send_notification(self, content: object) -> None:
        assert self._pushes is not None
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._pushes.publish(payload, {}, flow="", on_failure=print)

    def _on_request(self, message: Message) -> None:
        request = json.loads(message.data())
        self.requests.append(request)
        self.ids.append(message.properties()["id"])
        if self.is_silent or request["operation"] == self.ignores:
            return
        response = {"version": 0, "values": [], "directory": [], "config": {}, "error": self.refusal}
        if self.refusal is None:
            response |= self._perform(**request)
        assert self._responses is not None
        for _ in range(self.copies):
            properties = {"id": message.properties()["id"]}
            self._responses.publish(json.dumps(response).encode(), properties, flow="", on_failure=print)

    def _perform(self, operation: str, workspace: str, keys: Any, type: str, values: Any) -> dict[str, Any]:
        store = self.store
        found = {key: text for (space, kind, key), text in store.texts.items() if (space, kind) == (workspace, type)}
        match operation:
            case "get":
                result = [self._value(workspace, each["type"], each["key"]) for each in keys]
                return {"version": store.version, "values": result}
            case "list":
                return {"version": store.version, "directory": list(found)}
            case "getvalues":
                return {"version": store.version, "values": [self._value(workspace, type, key) for key in found]}
            case "getkeys-all-ws":
                result = [
                    {"type": type, "key": key, "value": "", "workspace": space}
                    for space, kind, key in store.texts
                    if kind == type
                ]
                return {"version": store.version, "values": result}
            case "put":
                for each in values:
                    store.texts[workspace, each["type"], each["key"]] = each["value"]
                return self._written(workspace, values)
            case "delete":
                for each in keys:
                    store.texts.pop((workspace, each["type"], each["key"]), None)
                return self._written(workspace, keys)
        return {"error": {"type": "bad-operation", "message": "Bad operation"}}

    def _value(self, workspace: str, kind: str, key: str) -> dict[str, Any]:
        return {"type": kind, "key": key, "value": self.store.texts.get((workspace, kind, key)), "workspace": ""}

    def _written(self, workspace: str, items: Any) -> dict[str, Any]:
        self.store.version += 1
        self.push({} if workspace.startswith("_") else {each["type"]: [workspace] for each in items})
        return {}


@contextlib.asynccontextmanager
async def config_service(url: str, store: ConfigStore) -> AsyncIterator[ConfigService]:
    """A service on the embedded broker ``url``."""
    transport = MemoryTransport(url)
    await transport.start()
    service = ConfigService(store, transport)
    await service.start()
    try:
        yield service
    finally:
        await transport.close()


@contextlib.asynccontextmanager
async def config_broker(url: str, client_id: str = "cli") -> AsyncIterator[ConfigBroker]:
    """What a client of the service has of the embedded broker ``url``, with a connection of its own."""
    transport = MemoryTransport(url)
    await transport.start()
    broker = ConfigBroker(transport, client_id)
    try:
        yield broker
    finally:
        await broker.close()
        await transport.close()
