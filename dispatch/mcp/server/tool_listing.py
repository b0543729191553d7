"""Tools of a dispatcher in the form of MCP, and their pages."""

from __future__ import annotations

import base64
import binascii
import bisect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, ListToolsResult, ToolAnnotations
from mcp_types import Tool as McpTool

from dispatch.catalog import ToolDescriptor
from dispatch.catalog.frozen_json import thaw
from dispatch.dispatcher.tool import Tool
from dispatch.errors import DispatchError
from dispatch.mcp.server.own_tools import OwnTools

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher

MAX_LISTED: Final = 40
"""Tools that are listed without a search: with more of them, models choose worse and their contexts fill up."""
PAGE_SIZE: Final = 50
"""Tools of a page: more than :data:`MAX_LISTED`, because many clients read the first page only."""


class ToolListing:
    """Lists the tools that a user may call, or the search in their place.

    Args:
        dispatcher: that has the tools.
        own_tools: of the server.
        search: see :class:`dispatch.mcp.server.McpServer`.
        always: names of tools that are listed also beside a search.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        own_tools: OwnTools,
        search: Literal["auto", "always", "never"],
        always: frozenset[str],
    ) -> None:
        self._dispatcher = dispatcher
        self._own_tools = own_tools
        self._search = search
        self._always = always

    async def list_page(self, user: str, cursor: str | None) -> ListToolsResult:
        """Return a page of the list for ``user``.

        Raises:
            MCPError: the cursor is none of this server, or the permissions of the user could not be resolved.
        """
        try:
            visible = await self._dispatcher.tools(user=user)
        except DispatchError as error:  # of any other class of exception a client sees no text
            raise MCPError(INTERNAL_ERROR, error.message, error.as_dict()) from None
        catalog = self._dispatcher.catalog
        own: list[McpTool] = [self._own_tools.describe_read_result()]
        if self._search == "always" or (self._search == "auto" and len(visible) > MAX_LISTED):
            own += self._own_tools.describe_search(catalog, len(visible))
            visible = tuple(tool for tool in visible if tool.name in self._always)
        listed: dict[str, Tool | McpTool] = {each.name: each for each in own} | {each.name: each for each in visible}
        names, next_cursor = cut_page(listed, cursor)
        page = [listed[name] for name in names]
        return ListToolsResult(
            tools=[describe_tool(each) if isinstance(each, Tool) else each for each in page], next_cursor=next_cursor
        )


def describe_tool(tool: Tool) -> McpTool:
    """Return the tool as MCP lists it."""
    return McpTool(
        name=tool.name,
        description=tool.description,
        input_schema=complete_schema(tool.parameters),
        output_schema=thaw(tool.descriptor.output_schema) if has_structured_content(tool.descriptor) else None,
        annotations=ToolAnnotations(
            read_only_hint=tool.read_only,
            idempotent_hint=tool.descriptor.idempotent,
            # It has no meaning for a tool that only reads. A tool that does not declare it may be destructive, also in MCP.
            destructive_hint=None if tool.read_only else tool.destructive,
        ),
    )


def complete_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments with ``"type": "object"`` at its root, which MCP requires."""
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


def has_structured_content(descriptor: ToolDescriptor) -> bool:
    """Return whether the tool has structured content. Handshake versions of MCP allow objects only; the rest are texts."""
    return descriptor.output_schema is not None and descriptor.output_schema.get("type") == "object"


def cut_page(names: Iterable[str], cursor: str | None) -> tuple[list[str], str | None]:
    """Return the names of a page, in their order, and the cursor of the next page (None: there is none).

    A cursor is the last name of the page before it: a tool that is added or removed between two pages moves no other one.

    Args:
        cursor: of the page; None: the first one.

    Raises:
        MCPError: the cursor is none of this server (-32602).
    """
    ordered = sorted(names)
    start = 0 if cursor is None else bisect.bisect_right(ordered, _decode_cursor(cursor))
    page = ordered[start : start + PAGE_SIZE]
    return page, _encode_cursor(page[-1]) if start + PAGE_SIZE < len(ordered) else None


def _encode_cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decode_cursor(cursor: str) -> str:
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise MCPError(INVALID_PARAMS, "The cursor is not one of this server: list the tools from the start.") from None
