"""A tool of an MCP server whose schema is in draft-04, -06 or -07, or has a pattern of JavaScript, was refused."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import dispatch

SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        info = {"name": "server", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/list":
        result = {"tools": json.loads(sys.argv[1])}
    else:
        result = {"content": [{"type": "text", "text": "done"}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
D4, D6, D7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7))
TUPLE: dict[str, Any] = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False}
PATTERN = {"oneOf": [{"type": "string", "pattern": "^[^]+$"}, {"type": "integer"}]}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any], list[Any]]] = {
    # schema of the argument, further keywords of the root, arguments that are right, arguments that are wrong
    "tuple": (TUPLE, {}, [["x", 1], ["x"]], [[1, "x"], ["x", 1, 2]]),
    "tuple-of-draft-07": (TUPLE, {"$schema": D7}, [["x", 1]], [["x", 1, 2]]),
    "flag": ({"minimum": 3, "exclusiveMinimum": True}, {}, [4], [3]),
    "flag-of-draft-04": ({"maximum": 3, "exclusiveMaximum": False}, {"$schema": D4}, [3], [4]),
    "place": ({"$ref": "#P"}, {"definitions": {"p": {"$id": "#P", "type": "null"}}}, [None], [1]),
    "place-of-draft-04": (
        {"$ref": "#P"},
        {"$schema": D4, "definitions": {"p": {"id": "#P", "type": "null"}}},
        [None],
        [1],
    ),
    "beside-a-reference": (
        {"$ref": "#/definitions/p", "minLength": 5},
        {"$schema": D6, "definitions": {"p": {"type": "string"}}},
        ["x"],
        [1],
    ),
    "javascript": (PATTERN, {}, ["x", 1], [None]),
    "backreference": ({"type": "string", "pattern": r"^(?<a>\w)\k<a>$"}, {"$schema": D7}, ["aa"], [1]),
    "python": ({"type": "string", "pattern": r"(?P<a>x)\Z"}, {}, ["x"], [1]),
}


@pytest.mark.wall_clock
async def test_the_tools_are_used_and_their_arguments_are_checked() -> None:
    tools = [
        {"name": name, "inputSchema": {"type": "object", "properties": {"a": schema}, **keywords}}
        for name, (schema, keywords, _, _) in CASES.items()
    ]
    servers = {"s": {"command": sys.executable, "args": ["-c", SERVER, json.dumps(tools)]}}
    async with dispatch.connect("memory://", dispatch.McpServers({"mcpServers": servers})) as dispatcher:
        (source,) = dispatcher.registry.sources()
        assert (source.tools, source.refused) == (len(CASES), 0)
        for name, (_, _, right, wrong) in CASES.items():
            for value in right:
                result = await dispatcher.execute(name, {"a": value}, by_model=True)
                assert (result.error, result.text) == (None, "done"), (name, value)
            for value in wrong:
                error = (await dispatcher.execute(name, {"a": value}, by_model=True)).error
                assert error is not None, (name, value)
                assert error.type == "invalid-arguments"
