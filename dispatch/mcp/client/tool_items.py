"""The tools of an MCP server as items of the catalogue. No input or output."""

from __future__ import annotations

from typing import Any, Final

from mcp import types

from dispatch.calls.resolution.local_queues import local_queue, local_reply_queue
from dispatch.catalog.errors import Problem
from dispatch.catalog.readers.item import Item, Refused
from dispatch.mcp.client.configuration import ServerSettings
from dispatch.mcp.client.transports.replies import RefusedTool

TOOL_PARAM: Final = "mcp-tool-name"
"""Config param of the services: the name that the server has for the tool."""


def service_item(id: str, settings: ServerSettings) -> Item:
    """Return the service of a server."""
    raw: dict[str, Any] = {
        "id": id,
        "request-queue": local_queue(id, "extension"),
        "response-queue": local_reply_queue(id, "extension"),
        "config-params": [{"name": TOOL_PARAM, "required": True}],
    }
    if settings.policy:
        raw["policy"] = settings.policy
    if settings.permissions:
        raw["permissions"] = list(settings.permissions)
    return Item(f"{settings.name}: (server)", "tool-service", id, raw)


def tool_item(service: str, name: str, tool: types.Tool, settings: ServerSettings) -> Item:
    """Return a tool of a server.

    Args:
        service: id of its service.
        name: in the catalogue.
    """
    raw: dict[str, Any] = {
        "type": "tool-service",
        "name": name,
        "description": tool.description or tool.title or "",
        "service": service,
        "input-schema": tool.input_schema,
        TOOL_PARAM: tool.name,
    }
    if tool.output_schema is not None:
        raw["output-schema"] = tool.output_schema
    if settings.is_trusted and tool.annotations is not None:
        raw |= _annotations(tool.annotations)
    return Item(f"{settings.name}: {tool.name}", "tool", name, raw, is_foreign=True)


def refused_item(name: str, tool: RefusedTool, settings: ServerSettings) -> Item:
    """Return a tool of a server that is not usable, with the reason; ``name``: in the catalogue."""
    origin = f"{settings.name}: {tool.name or '(a tool without a name)'}"
    fix = "correct the definition at the server"
    return Item(origin, "tool", name, Refused((Problem(origin, "", tool.problem, fix),)))


def _annotations(hints: types.ToolAnnotations) -> dict[str, bool]:
    found = {}
    if hints.read_only_hint is not None:
        found["read-only"] = hints.read_only_hint
    if hints.idempotent_hint is not None:
        found["idempotent"] = hints.idempotent_hint
    if hints.destructive_hint is not None and not hints.read_only_hint:  # it has no meaning for a read-only tool
        found["destructive"] = hints.destructive_hint
    return found
