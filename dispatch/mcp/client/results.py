"""Results and errors of MCP as those of dispatch. No input or output."""

from __future__ import annotations

from typing import Final

from mcp import MCPError, types
from mcp.types import INVALID_PARAMS, METHOD_NOT_FOUND

from dispatch._internal.permit import Rejection
from dispatch._internal.suggestions import excerpt, first_sentence
from dispatch.calls.error_messages import error_from_rejection
from dispatch.calls.invokers.local_executor import FailedCallError, LocalResult, RefusedCallError
from dispatch.errors import ErrorType, InvalidArgumentsError, Origin, RejectedError, ToolError, TransportError
from dispatch.result import ResultContent

MAX_REASON_CHARS: Final = 300
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
    """Return what a model reads: the texts, and a line for each part of another kind."""
    return "\n".join(_describe(block) for block in result.content)


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
    """Return what the executor raises for an error of the protocol."""
    reason = excerpt(first_sentence(" ".join(error.message.split())), MAX_REASON_CHARS)
    if error.code == INVALID_PARAMS:
        return RefusedCallError(
            InvalidArgumentsError(
                ErrorType.INVALID_ARGUMENTS,
                f"Tool '{tool}' was not executed: its MCP server refused the arguments ({reason}). Correct the arguments.",
            )
        )
    if error.code == METHOD_NOT_FOUND:
        return RefusedCallError(
            RejectedError(
                ErrorType.UNKNOWN_TOOL,
                f"Tool '{tool}' was not executed: its MCP server '{excerpt(server)}' does not have it ({reason}). Use "
                "another tool, or report the failure.",
                rejected_by="service",
            )
        )
    return FailedCallError(
        TransportError(
            ErrorType.SERVER_FAILED,
            f"The MCP server '{excerpt(server)}' answered with error {error.code} ({reason}); tool '{tool}' may have "
            "been executed. Check its effect before you call it again, or report the failure.",
            origin=Origin.TOOL,
        )
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
    reason = excerpt(first_sentence(" ".join(str(problem).split())), MAX_REASON_CHARS)
    return FailedCallError(
        TransportError(
            ErrorType.MALFORMED_REPLY,
            f"The MCP server '{excerpt(server)}' sent no valid result ({reason}); tool '{tool}' may have been executed. "
            "Check its effect before you call it again, or report the failure.",
            origin=Origin.TOOL,
        )
    )


def error_from_missing_session(tool: str, retry_after: float) -> RefusedCallError:
    """Return the error of a call while its server is not connected."""
    return RefusedCallError(error_from_rejection(Rejection("balancer", "no-instance", retry_after), tool))
