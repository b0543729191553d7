"""The services that a probe calls, in a separate process: ``python -m dispatch.devtools.lossprobe_service``.

In the probe's process they would share its interpreter lock, which would delay consumers and cause drops that a real service
does not have.

Protocol: one line of JSON on stdin specifies the services; one line on stdout reports readiness or an error. The process
ends when its stdin is closed, so it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from dispatch.devtools.lossprobe import PlainService, reply_text, reply_to
from dispatch.errors import TransportError
from dispatch.server import ToolServer
from dispatch.transports import Security


class Echo:
    """The tool of dispatch's service: replies with the requested number of bytes."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        """Return a text of ``size`` bytes."""
        return reply_text(int(arguments["size"]))


async def serve(spec: dict[str, Any]) -> None:
    """Serve both services until stdin is closed.

    Args:
        spec: ``url``, ``security`` (fields of :class:`Security`), ``plain`` and ``session`` (request and response topics).

    Raises:
        TransportError: the topics cannot be opened.
    """
    security = Security(**spec["security"])
    requests, responses = spec["session"]
    plain = PlainService(spec["url"], security, reply_to)
    try:
        await plain.open(*spec["plain"])
        async with ToolServer(
            Echo(), spec["url"], request_queue=requests, response_queue=responses, service="echo", security=security
        ):
            _write_status({"ready": True})
            await asyncio.to_thread(sys.stdin.read)
    finally:
        await plain.close()


def _write_status(status: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(status) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Read the specification and serve. Returns the exit status."""
    line = sys.stdin.readline()
    if not line:
        return 0  # the parent ended before it wrote the specification
    try:
        asyncio.run(serve(json.loads(line)))
    except TransportError as error:
        _write_status({"error": {"type": error.type, "message": error.message}})
        return 1
    except BrokenPipeError:  # the parent ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
