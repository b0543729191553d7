"""The services that a probe calls, in a separate process: ``python -m dispatch.devtools.lossprobe.echo_service``.

Separate, because in the probe's process they would share its interpreter lock, and messages would be lost for a reason that
is neither the broker's nor a real service's.

One line of JSON on stdin says what to serve, one on stdout that it is there or what
went wrong; it ends with its stdin, and so with its owner, however that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from dispatch.devtools.lossprobe.plain_client import PlainEcho, answer_text
from dispatch.errors import TransportError
from dispatch.serving.server import ToolServer
from dispatch.transports import Security


class Echo:
    """Our service's tool: as many bytes as it is asked for."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        """The tool."""
        return answer_text(int(arguments["size"]))


async def serve(spec: dict[str, Any]) -> None:
    """Serve both sides until stdin ends.

    Args:
        spec: ``url``, ``security`` (the fields of :class:`Security`), ``plain`` and ``credit`` (topics of requests and
            responses).

    Raises:
        TransportError: the topics cannot be opened.
    """
    security = Security(**spec["security"])
    requests, responses = spec["credit"]
    plain = PlainEcho(spec["url"], security)
    try:
        await plain.open(*spec["plain"])
        async with ToolServer(
            Echo(), spec["url"], request_queue=requests, response_queue=responses, id="echo", security=security
        ):
            _say({"ready": True})
            await asyncio.to_thread(sys.stdin.read)
    finally:
        await plain.close()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Read what to serve, and serve it. Returns the exit status."""
    line = sys.stdin.readline()
    if not line:
        return 0  # its owner ended before it could say
    try:
        asyncio.run(serve(json.loads(line)))
    except TransportError as error:
        _say({"error": {"type": error.type, "message": error.message}})
        return 1
    except BrokenPipeError:  # its owner ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
