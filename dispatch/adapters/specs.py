"""Descriptions of tools for the APIs of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dispatch.adapters.dialects.fitted_schema import FittedSchema, Style, fit_schema
from dispatch.adapters.model_tool import ModelTool, list_model_tools

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher


class Specs(list[dict[str, Any]]):
    """The value of ``tools`` in a request.

    Attributes:
        widened: name of a tool → ``path: what the API cannot express``, for each place where the schema of its arguments
            accepts more than the tool's own, or offers less. A call is checked against the tool's own.
    """

    def __init__(self, values: Iterable[dict[str, Any]], widened: dict[str, tuple[str, ...]]) -> None:
        super().__init__(values)
        self.widened = widened


async def specs(dispatcher: Dispatcher, *, style: Style | str, user: str = "", **filters: Any) -> Specs:
    """Describe the tools that ``user`` may call now, and ``read_result``, with which a model reads the rest of a long
    result.

    Args:
        style: ``openai-chat``, ``openai-responses``, ``anthropic``, ``gemini`` or ``mcp``.
        filters: as of :meth:`dispatch.Dispatcher.tools`.

    Returns:
        The value of ``tools`` in a request; with ``mcp`` that of a ``tools/list`` result.

    Raises:
        ValueError: there is no such style.
        RejectedError: ``permissions-unavailable``: the permissions of ``user`` could not be resolved.
    """
    style = Style(style)
    widened: dict[str, tuple[str, ...]] = {}
    described: list[dict[str, Any]] = []
    for tool in await list_model_tools(dispatcher, user, **filters):
        fitted = fit_schema(tool.parameters, style)
        described.append(describe_tool(tool, fitted, style))
        if fitted.widened:
            widened[tool.name] = fitted.widened
    if style is Style.GEMINI and described:
        described = [{"functionDeclarations": described}]
    return Specs(described, widened)


def describe_tool(tool: ModelTool, fitted: FittedSchema, style: Style) -> dict[str, Any]:
    """Return the description of one tool."""
    described: dict[str, Any] = {"name": tool.name, "description": tool.description}
    match style:
        case Style.OPENAI_CHAT:
            described |= {"parameters": fitted.schema, "strict": fitted.is_strict}
            return {"type": "function", "function": described}
        case Style.OPENAI_RESPONSES:
            return {"type": "function", **described, "parameters": fitted.schema, "strict": fitted.is_strict}
        case Style.ANTHROPIC:
            return {**described, "input_schema": fitted.schema}
        case Style.GEMINI:
            # An object without properties is refused; without parameters a function has none.
            return {**described, "parameters": fitted.schema} if "properties" in fitted.schema else described
    annotations = {"readOnlyHint": tool.read_only, "idempotentHint": tool.idempotent}
    if tool.destructive is not None:
        annotations["destructiveHint"] = tool.destructive
    return {**described, "inputSchema": fitted.schema, "annotations": annotations}
