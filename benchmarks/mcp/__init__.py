"""Cost of calls over MCP."""
