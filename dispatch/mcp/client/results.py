"""Results and errors of MCP as those of dispatch. No input or output."""

from __future__ import annotations

import math
from typing import Final

from mcp import MCPError, types
from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND

from dispatch._internal.permit import Rejection
from dispatch._internal.suggestions import excerpt, first_sentence
from dispatch.calls.error_messages import error_from_rejection
from dispatch.calls.invokers.local_executor import FailedCallError, LocalResult, RefusedCallError
from dispatch.errors import (
    DispatchError,
    ErrorType,
    InvalidArgumentsError,
    Origin,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
)
from dispatch.mcp.client.transports.replies import TransportFailure, compact_json, describe_invalid, find_retry_after
from dispatch.result import ResultContent

MAX_REASON_CHARS: Final = 300
_LOSSES: Final = ("Connection closed", "SSE stream ")
"""Beginnings of the SDK's texts about the end of a connection. Servers use the same code for errors of their own."""
INPUT_REQUIRED: Final = "input-required"
"""Type of the error of a tool that asks for input, where no callback answers."""


def read_result(result: types.CallToolResult, instance: str) -> LocalResult:
    """Return the result of a call.

    Raises:
        ToolError: it is an error of the tool.
    """
    text = text_of(result)
    if result.is_error:
        raise ToolError(ErrorType.TOOL_ERROR, text)
    blocks, structured = result.content, result.structured_content
    if structured is None and len(blocks) == 1 and _is_plain_text(blocks[0]):
        return LocalResult(text, None, instance)
    content = tuple(block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks)
    return LocalResult(text, ResultContent(content, structured), instance)


def _is_plain_text(block: types.ContentBlock) -> bool:
    return isinstance(block, types.TextContent) and block.annotations is None and block.meta is None


def text_of(result: types.CallToolResult) -> str:
    """Return what a model reads: the texts, and a line for each part of another kind; without a text the structured content
    as compact JSON."""
    parts = [_describe(block) for block in result.content]
    if result.structured_content is not None and not any(map(_has_text, result.content)):
        parts = [*filter(None, parts), compact_json(result.structured_content)]
    return "\n".join(parts)


def _has_text(block: types.ContentBlock) -> bool:
    if isinstance(block, types.EmbeddedResource):
        return isinstance(block.resource, types.TextResourceContents) and bool(block.resource.text)
    return isinstance(block, types.TextContent) and bool(block.text)


def _describe(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, (types.ImageContent, types.AudioContent)):
        size = len(block.data) * 3 // 4 - block.data[-2:].count("=")
        return f"[{block.type}: {excerpt(block.mime_type)}, {size:,} bytes]"
    if isinstance(block, types.ResourceLink):
        about = f", {excerpt(block.description, 200)}" if block.description else ""
        return f"[link: {excerpt(str(block.uri), 500)}, {excerpt(block.title or block.name)}{about}]"
    resource = block.resource
    if isinstance(resource, types.TextResourceContents):
        return resource.text
    return f"[resource: {excerpt(str(resource.uri), 500)}]"


def error_from_input_required(tool: str, result: types.InputRequiredResult) -> ToolError:
    """Return the error of a tool that asks for input, which is rejected by name."""
    asked = sorted({request.method for request in (result.input_requests or {}).values()})
    return ToolError(
        INPUT_REQUIRED,
        f"Tool '{tool}' asks for input ({', '.join(asked) or 'its state'}), which this program does not give. Use another "
        "tool, or report that McpServers needs a callback for it.",
    )


def error_from_mcp_error(error: MCPError, tool: str, server: str) -> RefusedCallError | FailedCallError:
    """Return what the executor raises for an error of the protocol, of the server or of the transport."""
    reason = excerpt(first_sentence(" ".join(error.message.split())), MAX_REASON_CHARS)
    refusal = _refusal_of(error, reason, tool, f"its MCP server '{excerpt(server)}'")
    if refusal is not None:
        return RefusedCallError(refusal)
    if error.code == TransportFailure.MALFORMED:
        return error_from_unreadable_result(tool, server, error)
    if error.code == TransportFailure.REPLY_LOST or (
        error.code == CONNECTION_CLOSED and error.message.startswith(_LOSSES)
    ):
        return error_from_loss(tool, server)
    what = reason if error.code == TransportFailure.HTTP_STATUS else f"error {error.code} ({reason})"
    return FailedCallError(
        TransportError(
            ErrorType.SERVER_FAILED,
            f"The MCP server '{excerpt(server)}' answered with {what}; tool '{tool}' may have been executed. Check its "
            "effect before you call it again, or report the failure.",
            origin=Origin.TOOL,
        )
    )


def _refusal_of(error: MCPError, reason: str, tool: str, server: str) -> DispatchError | None:
    """Return the error of a call that was certainly not executed; None: it may have been."""
    refused = f"Tool '{tool}' was not executed: {server}"
    if error.code == INVALID_PARAMS:
        return InvalidArgumentsError(
            ErrorType.INVALID_ARGUMENTS,
            f"Tool '{tool}' was not executed: its MCP server refused the arguments ({reason}). Correct the arguments.",
        )
    if error.code == METHOD_NOT_FOUND:
        return RejectedError(
            ErrorType.UNKNOWN_TOOL,
            f"{refused} does not have it ({reason}). Use another tool, or report the failure.",
            rejected_by="service",
        )
    if error.code in (TransportFailure.UNAUTHORIZED, TransportFailure.FORBIDDEN):
        is_unknown = error.code == TransportFailure.UNAUTHORIZED
        what = "does not accept the credentials" if is_unknown else "does not permit it with these credentials"
        return RejectedError(
            ErrorType.UNAUTHORIZED,
            f"{refused} {what} ({reason}). Use another tool, or report that the server's 'headers' have to be corrected.",
            rejected_by="service",
        )
    if error.code == TransportFailure.THROTTLED:
        after = find_retry_after(error)
        when = "later" if after is None else f"in {math.ceil(after)} s or later"
        return ThrottledError(
            ErrorType.OVERLOADED,
            f"{refused} asks for a pause ({reason}). Use another tool, or call it again {when}.",
            retryable=True,
            retry_after=after,
            rejected_by="service",
        )
    return None


def error_from_invalid_result(tool: str, server: str, error: MCPError) -> ToolError:
    """Return the error of a tool whose result is not valid JSON."""
    return ToolError(
        ErrorType.INVALID_RESULT,
        f"Tool '{tool}' was executed, but the result of the MCP server '{excerpt(server)}' is not valid: {error.message}. "
        "Report the failure, or use another tool.",
    )


def error_from_loss(tool: str, server: str) -> FailedCallError:
    """Return the error of a call in flight whose server has ended."""
    return FailedCallError(
        TransportError(
            ErrorType.INSTANCE_LOST,
            f"The MCP server '{excerpt(server)}' ended during the call; tool '{tool}' may have been executed. Check its "
            "effect before you call it again, or report the failure.",
            origin=Origin.TOOL,
        )
    )


def error_from_unreadable_result(tool: str, server: str, problem: Exception) -> FailedCallError:
    """Return the error of a result that does not conform to the protocol, or to the tool's own output schema."""
    reason = excerpt(first_sentence(" ".join(_describe_problem(problem).split())), MAX_REASON_CHARS)
    return FailedCallError(
        TransportError(
            ErrorType.MALFORMED_REPLY,
            f"The MCP server '{excerpt(server)}' sent no valid result ({reason}); tool '{tool}' may have been executed. "
            "Check its effect before you call it again, or report the failure.",
            origin=Origin.TOOL,
        )
    )


def _describe_problem(problem: Exception) -> str:
    """Return what is wrong with a result, without any value of it."""
    path = getattr(problem.__cause__, "json_path", None)  # of jsonschema's error: the SDK's text has the value
    return describe_invalid(problem) if path is None else f"{path} does not match the output schema"


def error_from_missing_session(tool: str, retry_after: float) -> RefusedCallError:
    """Return the error of a call while its server is not connected."""
    return RefusedCallError(error_from_rejection(Rejection("balancer", "no-instance", retry_after), tool))
