"""Writes items to TrustGraph's configuration so that TrustGraph's agents reload it completely.

An agent of TrustGraph fetches only the types that a notification names, and makes its set of tools of these alone: after a
notification for ``tool`` it has no services, after one for ``tool-service`` no tools. So every write here touches both.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatch._internal.suggestions import excerpt, join_names
from dispatch.catalog.errors import CatalogError
from dispatch.catalog.loader import read_items
from dispatch.catalog.readers.item import KINDS
from dispatch.catalog.sources.trustgraph.config_client import ConfigClient
from dispatch.catalog.sources.trustgraph.config_item import read_config_item
from dispatch.catalog.sources.trustgraph.config_messages import ConfigValue

SERVICE: Final = "tool-service"
TOOL: Final = "tool"


class ConfigWriter:
    """Writes tools and services of one config service.

    Args:
        client: of the service.
        source: id of the source, for messages.
    """

    def __init__(self, client: ConfigClient, source: str) -> None:
        self._client = client
        self._source = source
        # A write reads the items that it touches: two writes of this process must not restore each other's former items.
        self._lock = asyncio.Lock()

    async def put(self, workspace: str, kind: str, raw: Mapping[str, Any], key: str | None) -> None:
        """Write a descriptor, see :meth:`TrustGraphConfig.put`."""
        require_kind(kind)
        key = key if key is not None else raw.get("id" if kind == SERVICE else "name")
        if not isinstance(key, str) or not key:
            field = "id" if kind == SERVICE else "name"
            raise ValueError(f"The descriptor has no '{field}'. Give it one, or give the key of the item.")
        value = ConfigValue(kind, key, json.dumps(raw, ensure_ascii=False))
        async with self._lock:
            if kind == SERVICE:
                self._require_valid(workspace, [value])
                values = [value, *await self._find_tool(workspace, [key])]
            elif raw.get("type") == SERVICE:
                service = raw.get("service")
                text = await self._client.get_value(workspace, SERVICE, service) if isinstance(service, str) else None
                services = [ConfigValue(SERVICE, str(service), text)] if text is not None else []
                self._require_valid(workspace, [*services, value])
                values = [*services, value]
            else:
                values = [*(await self._find_services(workspace))[:1], value]
            await self._client.put_values(workspace, values)

    async def remove(self, workspace: str, kind: str, key: str, *, force: bool = False) -> bool:
        """Delete an item, see :meth:`TrustGraphConfig.remove`."""
        require_kind(kind)
        async with self._lock:
            if await self._client.get_value(workspace, kind, key) is None:
                return False
            if kind == SERVICE and not force:
                await self._require_unused(workspace, key)
            await self._client.delete_value(workspace, kind, key)
            services = await self._find_services(workspace)
            tools = await self._find_tool(workspace, [each.key for each in services])
            used = [self._service_of(workspace, each) for each in tools]
            if tools:
                touched = [each for each in services if each.key in used] or services[:1]
                await self._client.put_values(workspace, [*touched, *tools])
            return True

    async def _find_tool(self, workspace: str, services: Sequence[str]) -> list[ConfigValue]:
        """Return a tool, of one of ``services`` if they have tools; nothing if there are no tools."""
        texts, _ = await self._client.get_values(workspace, TOOL)
        tools = [ConfigValue(TOOL, key, text) for key, text in texts.items()]
        return sorted(tools, key=lambda tool: self._service_of(workspace, tool) not in services)[:1]

    async def _find_services(self, workspace: str) -> list[ConfigValue]:
        texts, _ = await self._client.get_values(workspace, SERVICE)
        return [ConfigValue(SERVICE, key, text) for key, text in texts.items()]

    def _service_of(self, workspace: str, tool: ConfigValue) -> str:
        raw = read_config_item(self._source, workspace, TOOL, tool.key, tool.value or "").raw
        service = raw.get("service") if isinstance(raw, dict) and raw.get("type") == SERVICE else None
        return service if isinstance(service, str) else ""

    def _require_valid(self, workspace: str, values: list[ConfigValue]) -> None:
        """Raise CatalogError unless dispatch and TrustGraph can read ``values``: TrustGraph's agent refuses all tools for
        one that it cannot read."""
        items = [read_config_item(self._source, workspace, each.type, each.key, each.value or "") for each in values]
        _, problems = read_items(items)
        if any(problem.severity == "error" for problem in problems):
            raise CatalogError(problems)

    async def _require_unused(self, workspace: str, service: str) -> None:
        texts, _ = await self._client.get_values(workspace, TOOL)
        tools = (ConfigValue(TOOL, key, text) for key, text in texts.items())
        users = tuple(tool.key for tool in tools if self._service_of(workspace, tool) == service)
        if users:
            raise ValueError(
                f"The service '{excerpt(service)}' was not removed: the tools {join_names(users)} use it. "
                "Remove these tools first."
            )


def require_kind(kind: str) -> str:
    """Return ``kind``.

    Raises:
        ValueError: it is not a kind of descriptor.
    """
    if kind not in KINDS:
        raise ValueError(f"'{excerpt(kind)}' is not a kind of descriptor. Use {' or '.join(KINDS)}.")
    return kind
