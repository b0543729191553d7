"""Tools of the server itself: ``find_tools`` and ``call_tool`` in place of a long list, and ``read_result``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from mcp_types import Tool as McpTool
from mcp_types import ToolAnnotations

from dispatch.catalog import Catalog
from dispatch.dispatcher.tool import Tool
from dispatch.errors import ErrorType, InvalidArgumentsError
from dispatch.results import ReadResultTool, ResultStore
from dispatch.schemas import SchemaValidator
from dispatch.schemas.mistake import join_mistakes

FIND_TOOLS: Final = "find_tools"
CALL_TOOL: Final = "call_tool"
READ_RESULT: Final = ReadResultTool.name
MAX_FOUND: Final = 20
"""Tools that one search shows, at most: their schemas fill the context of a model."""

_OTHER_NAMES: Final = {FIND_TOOLS: "find_all_tools", CALL_TOOL: "call_any_tool"}
_READ_ONLY: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True)
_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    FIND_TOOLS: {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "description": "What the tool should do, in a few words"},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_FOUND,
                "default": 5,
                "description": "Tools to show, at most",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    CALL_TOOL: {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": f"Name of the tool, as {FIND_TOOLS} shows it"},
            "arguments": {"type": "object", "default": {}, "description": "Its arguments, by its parameters"},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    READ_RESULT: ReadResultTool(ResultStore()).parameters,
}


class OwnTools:
    """The server's own tools: their names, definitions and arguments.

    A tool of the catalogue keeps its name: beside it ``find_tools`` is ``find_all_tools``. ``read_result`` keeps its
    name, because cut results name it: a handle decides whose result is read.
    """

    def __init__(self) -> None:
        self._validators = {name: SchemaValidator(schema) for name, schema in _SCHEMAS.items()}

    def name_of(self, own: str, catalog: Catalog) -> str:
        """Return the name under which a tool of the server is listed."""
        name = own if own not in catalog.tools else _OTHER_NAMES[own]
        while name in catalog.tools:
            name += "_"
        return name

    def find_own(self, name: str, catalog: Catalog) -> str | None:
        """Return the tool of the server that is listed as ``name``; None: it has none."""
        if name in catalog.tools:
            return None
        return next((own for own in (FIND_TOOLS, CALL_TOOL) if name == self.name_of(own, catalog)), None)

    def describe_search(self, catalog: Catalog, number: int) -> list[McpTool]:
        """Return ``find_tools`` and ``call_tool``.

        Args:
            number: of tools that can be found.
        """
        find, call = self.name_of(FIND_TOOLS, catalog), self.name_of(CALL_TOOL, catalog)
        return [
            _describe(
                FIND_TOOLS,
                find,
                f"Find tools for a task among {number:,}: names, descriptions and parameters. Call one with {call}.",
                annotations=_READ_ONLY,
            ),
            _describe(CALL_TOOL, call, f"Call a tool that {find} has shown."),
        ]

    def describe_read_result(self) -> McpTool:
        """Return ``read_result``."""
        return _describe(READ_RESULT, READ_RESULT, ReadResultTool.description, annotations=_READ_ONLY)

    def check(self, own: str, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of a tool of the server.

        Raises:
            InvalidArgumentsError: they do not match its schema; the message has every mistake.
        """
        mistakes = self._validators[own].find_mistakes(arguments)
        if mistakes:
            raise InvalidArgumentsError(
                ErrorType.INVALID_ARGUMENTS,
                f"Tool '{own}' was not executed: {join_mistakes(mistakes)}. Correct the arguments.",
            )


def _describe(own: str, name: str, description: str, *, annotations: ToolAnnotations | None = None) -> McpTool:
    return McpTool(name=name, description=description, input_schema=_SCHEMAS[own], annotations=annotations)


def write_found(tools: Iterable[Tool]) -> str:
    """Return what ``find_tools`` shows of tools, as JSON."""
    shown = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "read_only": tool.read_only,
            "destructive": tool.destructive,
        }
        for tool in tools
    ]
    return msgspec.json.encode({"tools": shown}).decode()
