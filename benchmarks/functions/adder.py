"""One tool in two forms, for ``dispatch serve``: a function, and a hand-written tool service."""

from __future__ import annotations

from typing import Any

import dispatch


@dispatch.tool(read_only=True)
async def add(a: int, b: int = 0) -> str:
    """Add two whole numbers."""
    return str(a + b)


class Adder(dispatch.ToolService):
    """Adds two whole numbers, without any check."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        match config["tool"]:
            case "add":
                return str(arguments["a"] + arguments.get("b", 0))
        raise dispatch.ToolError("unknown-tool", "There is no such tool.")
