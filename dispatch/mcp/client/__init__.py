"""MCP servers as sources of the catalogue (:class:`dispatch.McpServers`)."""
