"""MCP (Model Context Protocol) in both directions. Needs the extra ``mcp``."""
