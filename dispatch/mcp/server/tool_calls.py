"""Calls of MCP clients: each becomes a call of the dispatcher, and each outcome a result."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from mcp.server import ServerRequestContext
from mcp_types import CallToolResult, TextContent

from dispatch.dispatcher.tool import Tool
from dispatch.errors import DispatchError, InvalidArgumentsError
from dispatch.mcp.server.own_tools import CALL_TOOL, FIND_TOOLS, READ_RESULT, OwnTools, write_found
from dispatch.mcp.server.tool_listing import has_structured_content
from dispatch.result import CallResult
from dispatch.results import ReadResultTool, ResultFormatter

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher

MAX_PROGRESS_CHARS: Final = 4_000
"""Characters of a chunk in a progress notification. The result has the whole text."""


class ToolCalls:
    """Calls tools for MCP clients. Each failure is a result: the SDK hides the exceptions of handlers from a model.

    Args:
        dispatcher: that calls them.
        own_tools: of the server.
    """

    def __init__(self, dispatcher: Dispatcher, own_tools: OwnTools) -> None:
        self._dispatcher = dispatcher
        self._own_tools = own_tools

    async def call(
        self, context: ServerRequestContext[Any], name: str, arguments: Mapping[str, Any], user: str
    ) -> CallToolResult:
        """Call a tool, of the catalogue or of the server, and return its result."""
        own = self._own_tools.find_own(name, self._dispatcher.catalog)
        try:
            if own == CALL_TOOL:
                self._own_tools.check(CALL_TOOL, arguments)
                return await self._call_listed(context, arguments["name"], arguments.get("arguments", {}), user)
            if own == FIND_TOOLS:
                self._own_tools.check(FIND_TOOLS, arguments)
                return _text_result(await self._find(arguments, user))
            return await self._call_listed(context, name, arguments, user)
        except DispatchError as error:
            return _error_result(error)

    async def _call_listed(
        self, context: ServerRequestContext[Any], name: str, arguments: Mapping[str, Any], user: str
    ) -> CallToolResult:
        """Call a tool of the catalogue, or ``read_result``."""
        if name == READ_RESULT:
            # A server whose tools are in the catalogue may have a tool of this name: its handles are not in the store.
            try:
                self._own_tools.check(READ_RESULT, arguments)
                return _text_result(await ReadResultTool(self._dispatcher.results, user).invoke(**arguments))
            except InvalidArgumentsError:
                if READ_RESULT not in self._dispatcher.catalog.tools:
                    raise
        if context.meta is not None and context.meta.get("progress_token") is not None:
            result = await self._stream(context, name, arguments, user)
        else:
            result = await self._dispatcher.execute(name, arguments, user=user, by_model=True)
        return self._format(result, user)

    async def _find(self, arguments: Mapping[str, Any], user: str) -> str:
        found = await self._dispatcher.find(arguments["query"], limit=arguments.get("limit", 5), user=user)
        return write_found(each.tool for each in found)

    async def _stream(
        self, context: ServerRequestContext[Any], name: str, arguments: Mapping[str, Any], user: str
    ) -> CallResult:
        """Call a tool and report each chunk of its reply as progress."""
        chunks: list[str] = []
        results: list[CallResult] = []
        stream = self._dispatcher.stream(name, arguments, user=user, by_model=True, on_result=results.append)
        try:
            async with contextlib.aclosing(stream):
                async for chunk in stream:
                    chunks.append(chunk)
                    await context.session.report_progress(float(len(chunks)), message=chunk[:MAX_PROGRESS_CHARS])
        except DispatchError as error:
            return CallResult(name, error.outcome, error=error)
        return msgspec.structs.replace(results[0], text="".join(chunks))

    def _format(self, result: CallResult, user: str) -> CallToolResult:
        descriptor = self._dispatcher.catalog.tools.get(result.tool)
        if descriptor is None:  # unknown, or removed after the call
            return _as_mcp(ResultFormatter(self._dispatcher.results).format(result, user=user))
        formatted = _as_mcp(Tool(self._dispatcher, descriptor, user).format_result(result))
        if formatted.is_error:
            return formatted
        if result.content:
            _add_parts(formatted, result)
        if result.structured_content is not None:
            formatted.structured_content = result.structured_content
        elif has_structured_content(descriptor):
            formatted.structured_content = msgspec.json.decode(result.text)
        return formatted


def _add_parts(formatted: CallToolResult, result: CallResult) -> None:
    """Replace the text by all parts of a result from an MCP server; a text that was cut stays, with the other parts."""
    (text,) = formatted.content
    parts = CallToolResult.model_validate({"content": [dict(block) for block in result.content]}).content
    if isinstance(text, TextContent) and text.text != result.text:
        parts = [text, *(each for each in parts if not isinstance(each, TextContent))]
    formatted.content = parts


def _as_mcp(formatted: Mapping[str, Any]) -> CallToolResult:
    content: list[Any] = [TextContent(text=block["text"]) for block in formatted["content"]]
    return CallToolResult(content=content, is_error=formatted.get("isError", False))


def _text_result(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)])


def _error_result(error: DispatchError) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=ResultFormatter.format_error(error))], is_error=True)
