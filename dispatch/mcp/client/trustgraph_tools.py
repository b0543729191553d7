"""The MCP tools in TrustGraph's configuration: ``tool`` items of the type ``mcp-tool``, and the ``mcp`` items with their
addresses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from dispatch.calls.invokers.local_executor import LocalCall, LocalResult, RefusedCallError
from dispatch.calls.resolution.local_queues import local_queue, local_reply_queue
from dispatch.catalog.readers.item import Item
from dispatch.catalog.sources.trustgraph import TrustGraphConfig
from dispatch.errors import ErrorType, RejectedError
from dispatch.mcp.client.callbacks import Callbacks
from dispatch.mcp.client.session import McpSession
from dispatch.mcp.client.session_pool import SessionPool
from dispatch.mcp.client.tool_items import TOOL_PARAM
from dispatch.mcp.client.transports.http import HttpTransport
from dispatch.policy import DEFAULT_POLICY

logger = logging.getLogger("dispatch.mcp")

MCP: Final = "mcp"
MCP_TOOL: Final = "mcp-tool"
SERVER_PARAM: Final = "mcp-server"
"""Config param: workspace and key of the ``mcp`` item."""


class Server(NamedTuple):
    """Where an MCP tool is: several tools of one server share its session."""

    url: str
    token: str


class TrustGraphMcpTools(TrustGraphConfig):
    """The MCP tools in TrustGraph's configuration, followed live over the broker. dispatch calls them itself, over one
    session for each server, in place of TrustGraph's ``mcp-tool`` service, which opens a session for every call. Give it
    beside :class:`~dispatch.TrustGraphConfig`, which has the other tools.

    Args: those of :class:`~dispatch.TrustGraphConfig`; ``id`` is the id of their service, too.
    """

    config_types: ClassVar[tuple[str, str]] = ("tool", MCP)

    def __init__(self, workspace: str = "default", *, id: str = "trustgraph-mcp", **options: Any) -> None:
        super().__init__(workspace, id=id, **options)
        self.request_queue = local_queue(id, "extension")
        self._servers: Mapping[str, Server] = {}
        self._remote_names: Mapping[str, str] = {}
        self._pools: dict[Server, SessionPool] = {}
        self._service = Item(
            f"{id}: (service)",
            "tool-service",
            id,
            {
                "id": id,
                "request-queue": self.request_queue,
                "response-queue": local_reply_queue(id, "extension"),
                "config-params": [{"name": SERVER_PARAM, "required": True}, {"name": TOOL_PARAM}],
            },
        )

    @property
    def executor(self) -> TrustGraphMcpTools:
        """Executes the tools."""
        return self

    def read_item(self, workspace: str, kind: str, key: str, text: str, namespace: str) -> Item:
        """Return the item in a value of the configuration; a tool as one of this source's service."""
        if kind == "tool":
            try:
                raw = json.loads(text)
            except (ValueError, RecursionError):
                raw = None
            if isinstance(raw, dict) and raw.get("type") == MCP_TOOL:
                own = {"type": "tool-service", "service": self.id, SERVER_PARAM: f"{workspace}/{raw.get(MCP_TOOL)}"}
                text = json.dumps({**{name: each for name, each in raw.items() if name != MCP_TOOL}, **own})
        return super().read_item(workspace, kind, key, text, namespace)

    async def discover(self) -> Sequence[Item]:
        """Return the MCP tools and their service; see :meth:`TrustGraphConfig.discover`."""
        found = await super().discover()
        tools = [item for item in found if _config_of(item, SERVER_PARAM) is not None]
        servers = {_place_of(item): item.raw for item in found if item.kind == MCP and isinstance(item.raw, dict)}
        self._servers = {
            place: Server(raw["url"], str(raw.get("auth-token") or ""))
            for place, raw in servers.items()
            if isinstance(raw.get("url"), str)
        }
        self._remote_names = {place: str(raw.get("remote-name") or "") for place, raw in servers.items()}
        for item in tools:
            if _config_of(item, SERVER_PARAM) not in self._servers:
                logger.warning("%s: there is no item '%s' with a url", item.origin, _config_of(item, SERVER_PARAM))
        places = {_config_of(item, SERVER_PARAM) or "" for item in tools}
        await self._set_servers({server for place, server in self._servers.items() if place in places})
        return [self._service, *tools]

    async def _set_servers(self, servers: set[Server]) -> None:
        gone = [self._pools.pop(server) for server in list(self._pools) if server not in servers]
        for server in servers - self._pools.keys():
            headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
            opener = partial(HttpTransport, server.url, headers)
            session = McpSession(server.url, opener, Callbacks(), lambda: None, poll=False)
            pool = self._pools[server] = SessionPool([session], DEFAULT_POLICY, Callbacks())
            pool.start()
        await asyncio.gather(*(pool.close() for pool in gone))

    async def close(self) -> None:
        """End the sessions and the subscription."""
        await self._set_servers(set())
        await super().close()

    async def execute(self, call: LocalCall) -> LocalResult:
        """Call the tool at its server, in one of its sessions."""
        place = call.config[SERVER_PARAM]
        pool = self._pools.get(self._servers.get(place, Server("", "")))
        if pool is None:
            raise RefusedCallError(
                RejectedError(
                    ErrorType.UNKNOWN_TOOL,
                    f"Tool '{call.tool}' was not executed: TrustGraph's configuration has no MCP server '{place}'. Use "
                    "another tool, or report the failure.",
                    rejected_by="catalog",
                )
            )
        await pool.wait_first()
        name = self._remote_names.get(place) or place.partition("/")[2]
        return await pool.execute(msgspec.structs.replace(call, config={**call.config, TOOL_PARAM: name}))


def _config_of(item: Item, name: str) -> str | None:
    value = item.raw.get(name) if isinstance(item.raw, Mapping) else None
    return value if item.kind == "tool" and isinstance(value, str) else None


def _place_of(item: Item) -> str:
    """Return workspace and key of an item, from its origin ``SOURCE:WORKSPACE/TYPE/KEY``."""
    workspace, _, key = item.origin.partition(":")[2].split("/", 2)
    return f"{workspace}/{key}"
