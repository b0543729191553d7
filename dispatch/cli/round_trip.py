"""A round trip through a broker: an echo service, called by a dispatcher in the same process."""

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
"""Timeout in seconds: a round trip takes a millisecond, but the first one opens topics, 1 to 2 s on a busy broker."""


class Echo:
    """The service: it replies with the given word."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return str(arguments["word"])


async def measure_round_trip(broker: str, security: Security, requests: str, responses: str) -> float | None:
    """Return the seconds that a call through ``broker`` takes; None if no reply arrived.

    Args:
        broker: the URL.
        security: token and TLS settings.
        requests: the namespace of the request topic.
        responses: the namespace of the response topic.

    Raises:
        TransportError: the topics cannot be opened; the message names the fix.
    """
    # Non-persistent topics whatever the catalogue uses: they vanish after the check.
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
            await dispatcher.execute("echo", {"word": "first"}, timeout=ROUND_TRIP_TIMEOUT_S)  # opens the topics
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
                "description": "Replies with the given word.",
                "service": "echo",
                "arguments": [{"name": "word", "type": "string", "description": "The word.", "required": True}],
            }
        ],
    )
