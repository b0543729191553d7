"""MCP servers for tests, each a program."""
