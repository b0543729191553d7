"""Catalogues for tests, made from a topic's short name."""

from __future__ import annotations

import uuid
from typing import Any

from dispatch import Catalog
from tests.helpers.dispatcher_and_service import UNGUARDED


def unique_topic(what: str = "echo") -> str:
    """A topic that no other test uses."""
    return f"{what}-{uuid.uuid4().hex[:12]}"


def queues_of(topic: str, scheme: str = "non-persistent", answers: str | None = None) -> tuple[str, str]:
    """The request topic and the response topic, which may be of another kind."""
    return f"{scheme}://tg/request/{topic}", f"{answers or scheme}://tg/response/{topic}"


def catalog_of(
    topic: str,
    tool: str = "echo",
    *,
    scheme: str = "non-persistent",
    answers: str | None = None,
    guarded: bool = False,
    **tool_keys: Any,
) -> Catalog:
    """One service on ``topic``, and one tool over it; ``guarded``: with the default guards, else every call goes, once."""
    request_queue, response_queue = queues_of(topic, scheme, answers)
    return Catalog.of(
        services=[
            {
                "id": f"{topic}-service",
                "request-queue": request_queue,
                "response-queue": response_queue,
                "policy": {} if guarded else UNGUARDED,
            }
        ],
        tools=[
            {"type": "tool-service", "name": tool, "description": "Echoes.", "service": f"{topic}-service", **tool_keys}
        ],
    )
