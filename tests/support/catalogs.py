"""Catalogues for tests, made from a topic's short name."""

from __future__ import annotations

import uuid
from typing import Any

from dispatch import Catalog


def unique_topic(what: str = "echo") -> str:
    """A topic that no other test uses."""
    return f"{what}-{uuid.uuid4().hex[:12]}"


def catalog_of(topic: str, tool: str = "echo", *, scheme: str = "non-persistent", **tool_keys: Any) -> Catalog:
    """One service on ``topic``, and one tool over it."""
    return Catalog.of(
        services=[
            {
                "id": f"{topic}-service",
                "request-queue": f"{scheme}://tg/request/{topic}",
                "response-queue": f"{scheme}://tg/response/{topic}",
            }
        ],
        tools=[
            {"type": "tool-service", "name": tool, "description": "Echoes.", "service": f"{topic}-service", **tool_keys}
        ],
    )
