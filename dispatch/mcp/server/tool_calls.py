"""Calls of MCP clients: each becomes a call of the dispatcher, and each outcome a result."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mcp.server import ServerRequestContext
from mcp_types import CallToolResult, TextContent

from dispatch.errors import DispatchError, Outcome
from dispatch.result import CallResult

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher

MAX_PROGRESS_CHARS: Final = 4_000
"""Characters of a chunk in a progress notification. The result has the whole text."""


class ToolCalls:
    """Calls tools for MCP clients.

    Args:
        dispatcher: that calls them.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def call(
        self, context: ServerRequestContext[Any], name: str, arguments: Mapping[str, Any], user: str
    ) -> CallToolResult:
        """Call a tool. Each failure is a result, because the SDK hides the exceptions of handlers from a model."""
        if has_progress_token(context):
            result = await self._stream(context, name, arguments, user)
        else:
            result = await self._dispatcher.execute(name, arguments, user=user, by_model=True)
        return format_result(result)

    async def _stream(
        self, context: ServerRequestContext[Any], name: str, arguments: Mapping[str, Any], user: str
    ) -> CallResult:
        """Call a tool and report each chunk of its reply as progress."""
        chunks: list[str] = []
        stream = self._dispatcher.stream(name, arguments, user=user, by_model=True)
        try:
            async with contextlib.aclosing(stream):
                async for chunk in stream:
                    chunks.append(chunk)
                    await context.session.report_progress(float(len(chunks)), message=chunk[:MAX_PROGRESS_CHARS])
        except DispatchError as error:
            return CallResult(name, error.outcome, error=error, chunks=len(chunks))
        return CallResult(name, Outcome.SUCCESS, "".join(chunks), chunks=len(chunks))


def has_progress_token(context: ServerRequestContext[Any]) -> bool:
    """Return whether the client asked for progress notifications."""
    return context.meta is not None and context.meta.get("progress_token") is not None


def format_result(result: CallResult) -> CallToolResult:
    """Return the result of a call in the form of MCP."""
    if result.error is not None:
        return CallToolResult(content=[TextContent(text=format_error(result.error))], is_error=True)
    return CallToolResult(content=[TextContent(text=result.text)])


def format_error(error: DispatchError) -> str:
    """Return the text of an error for a model."""
    return json.dumps(
        {
            "error": error.type,
            "message": error.message,
            "retryable": error.retryable,
            "retry_after": error.retry_after,
            "alternatives": list(error.alternatives),
        },
        ensure_ascii=False,
    )
