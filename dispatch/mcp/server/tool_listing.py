"""Tools of a dispatcher in the form of MCP, and their pages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, ListToolsResult, ToolAnnotations
from mcp_types import Tool as McpTool

from dispatch.catalog.frozen_json import thaw
from dispatch.dispatcher.tool import Tool

PAGE_SIZE: Final = 50
"""Tools of a page: above the 40 that are listed without a search, because many clients read the first page only."""


def describe_tool(tool: Tool) -> McpTool:
    """Return the tool as MCP lists it."""
    return McpTool(
        name=tool.name,
        description=tool.description,
        input_schema=complete_schema(tool.parameters),
        output_schema=structured_schema_of(tool),
        annotations=ToolAnnotations(
            read_only_hint=tool.read_only,
            idempotent_hint=tool.descriptor.idempotent,
            # MCP's default is the same: a tool that does not declare it may be destructive.
            destructive_hint=tool.destructive,
        ),
    )


def complete_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments with ``"type": "object"`` at its root, which MCP requires."""
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


def structured_schema_of(tool: Tool) -> dict[str, Any] | None:
    """Return the schema of the tool's structured content; None: it has none. Handshake versions of MCP allow objects only:
    other results are texts."""
    schema = tool.descriptor.output_schema
    if schema is None or schema.get("type") != "object":
        return None
    thawed: dict[str, Any] = thaw(schema)
    return thawed


def page_of(tools: Sequence[McpTool], cursor: str | None) -> ListToolsResult:
    """Return the page of ``tools`` (in the order of their names) that begins behind ``cursor``.

    A cursor is the last name of the page before it: a tool that is added or removed between two pages moves no other one.

    Raises:
        MCPError: the cursor is none of this server (-32602).
    """
    start = 0
    if cursor is not None:
        name = _decode_cursor(cursor)
        start = next((at for at, tool in enumerate(tools) if tool.name > name), len(tools))
    page = list(tools[start : start + PAGE_SIZE])
    has_more = start + PAGE_SIZE < len(tools)
    return ListToolsResult(tools=page, next_cursor=_encode_cursor(page[-1].name) if has_more else None)


def _encode_cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decode_cursor(cursor: str) -> str:
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise MCPError(INVALID_PARAMS, "The cursor is not one of this server: list the tools from the start.") from None
