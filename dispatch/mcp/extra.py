"""The error for a missing extra ``mcp``."""

from __future__ import annotations

import importlib.util
from typing import Final

from dispatch._internal.extras import install_extra

MISSING_EXTRA: Final = f"MCP needs the package mcp, which is not installed. Install it: {install_extra('mcp')}"


def require_extra() -> None:
    """Check that MCP's SDK is installed.

    Raises:
        ImportError: it is not; the message names the extra.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ImportError(MISSING_EXTRA, name="mcp")
