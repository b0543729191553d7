"""MCP (Model Context Protocol) in both directions. Needs the extra ``mcp``: without it, importing the package says so."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from dispatch._internal import install_extra

if TYPE_CHECKING:
    from dispatch.mcp.server import McpServer

if importlib.util.find_spec("mcp") is None:
    raise ImportError(
        f"MCP needs the package mcp, which is not installed. Install it: {install_extra('mcp')}", name="mcp"
    )

__all__ = ["McpServer"]


def __getattr__(name: str) -> Any:
    """Import the server on its first use: sources do not need it."""
    if name == "McpServer":
        from dispatch.mcp.server import McpServer

        return McpServer
    raise AttributeError(f"module 'dispatch.mcp' has no attribute '{name}'")
