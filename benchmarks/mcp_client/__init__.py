"""Cost of a call of an MCP server's tool, and of idle servers."""
