"""A real round trip through a broker: an echo service of our own, called by a dispatcher of our own."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any

from dispatch.catalog import Catalog
from dispatch.dispatcher import Dispatcher
from dispatch.serving.server import ToolServer
from dispatch.transports import Security, open_transport

ROUND_TRIP_TIMEOUT_S = 10.0
"""A round trip takes a millisecond; the first one also opens its topics, on a busy broker for a second or two."""


class Echo:
    """The service: it answers with the word it was given."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return str(arguments["word"])


async def call_ourselves(broker: str, security: Security, requests: str, responses: str) -> float | None:
    """Seconds that a call through ``broker`` takes, or None when its answer did not come.

    Args:
        broker: the URL.
        security: token and TLS settings.
        requests: the namespace of the request topic.
        responses: the namespace of the response topic.

    Raises:
        TransportError: the topics cannot be opened; the message names the fix.
    """
    # Non-persistent topics whatever the catalogue uses: nothing of this look stays on the broker.
    topic = f"dispatch-doctor-{secrets.token_hex(6)}"
    request_queue, response_queue = f"non-persistent://{requests}/{topic}", f"non-persistent://{responses}/{topic}"
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(2 * ROUND_TRIP_TIMEOUT_S),
            ToolServer(Echo(), broker, request_queue=request_queue, response_queue=response_queue, security=security),
            Dispatcher(
                open_transport(broker, security=security), _catalog(request_queue, response_queue)
            ) as dispatcher,
        ):
            await dispatcher.execute("echo", {"word": "first"}, timeout=ROUND_TRIP_TIMEOUT_S)  # it opens the topics
            result = await dispatcher.execute("echo", {"word": topic}, timeout=ROUND_TRIP_TIMEOUT_S)
            if result.text == topic:
                return result.duration
    return None


def _catalog(request_queue: str, response_queue: str) -> Catalog:
    return Catalog.of(
        [{"id": "echo", "request-queue": request_queue, "response-queue": response_queue}],
        [
            {
                "type": "tool-service",
                "name": "echo",
                "description": "Answers with the word it is given.",
                "service": "echo",
                "arguments": [{"name": "word", "type": "string", "description": "Comes back."}],
            }
        ],
    )
