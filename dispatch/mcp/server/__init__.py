"""An MCP server over the tools of a dispatcher."""

from dispatch.mcp.server.mcp_server import McpServer

__all__ = ["McpServer"]
