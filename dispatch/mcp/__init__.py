"""MCP (Model Context Protocol) in both directions. Needs the extra ``mcp``: without it, importing the package says so."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from dispatch._internal import install_extra

if TYPE_CHECKING:
    from dispatch.mcp.server import McpServer
    from dispatch.mcp.sources import McpServers, TrustGraphMcpTools

if importlib.util.find_spec("mcp") is None:
    raise ImportError(
        f"MCP needs the package mcp, which is not installed. Install it: {install_extra('mcp')}", name="mcp"
    )

__all__ = ["McpServer", "McpServers", "TrustGraphMcpTools"]


def __getattr__(name: str) -> Any:
    """Import the server or the sources on their first use: each imports its part of the SDK."""
    if name == "McpServer":
        from dispatch.mcp.server import McpServer

        return McpServer
    if name in __all__:
        from dispatch.mcp import sources

        return getattr(sources, name)
    raise AttributeError(f"module 'dispatch.mcp' has no attribute '{name}'")
