"""MCP (Model Context Protocol) in both directions. Needs the extra ``mcp``: without it, importing the package says so."""

from __future__ import annotations

import importlib.util

from dispatch._internal import install_extra

if importlib.util.find_spec("mcp") is None:
    raise ImportError(
        f"MCP needs the package mcp, which is not installed. Install it: {install_extra('mcp')}", name="mcp"
    )
