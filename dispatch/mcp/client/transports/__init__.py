"""Transports of MCP sessions: a process of its own on stdin and stdout, and streamable HTTP."""
