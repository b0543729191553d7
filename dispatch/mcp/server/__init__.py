"""An MCP server over the tools of a dispatcher."""

from dispatch.mcp.extra import require_extra

require_extra()

from dispatch.mcp.server.mcp_server import McpServer  # noqa: E402 - without the extra its error comes first

__all__ = ["McpServer"]
