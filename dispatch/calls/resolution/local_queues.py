"""Names of request topics whose tools this process executes itself. They are never opened at a broker.

The namespace is the type of the tools, as OpenTelemetry names it in ``gen_ai.tool.type``.
"""

from __future__ import annotations

from typing import Final, Literal

ToolType = Literal["function", "extension"]
"""``function``: a function of this process; ``extension``: an interface to another system, such as an MCP server."""

_PREFIX: Final = "non-persistent://dispatch-local/"


def local_queue(id: str, tool_type: ToolType) -> str:
    """Return the request topic of the local tool service ``id``."""
    return f"{_PREFIX}{tool_type}/{id}"


def local_reply_queue(id: str, tool_type: ToolType) -> str:
    """Return the response topic of the local tool service ``id``, which its descriptor must have."""
    return f"{_PREFIX}{tool_type}/{id}-reply"


def is_local_queue(request_queue: str) -> bool:
    """Return whether the tools of a service with that request topic are executed in this process."""
    return request_queue.startswith(_PREFIX)


def tool_type_of(request_queue: str) -> str:
    """Return the type of the tools of a service: an ``extension``, unless they are functions of this process."""
    return "function" if request_queue.startswith(f"{_PREFIX}function/") else "extension"
