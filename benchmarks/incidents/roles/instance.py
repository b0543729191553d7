"""A process with one service instance, which the driver starts, blocks and stops; it journals every execution.

The journal is a file of the process: one line for each execution, written before the tool does anything, so that a killed
process has recorded what it began.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import dispatch
from benchmarks.incidents.roles.load import answer_to
from benchmarks.workers.channel import Channel

FOREVER_S = 3_600.0


class Tool(dispatch.ToolService):
    """Does what its arguments say, and answers a digest of the call's number.

    Args:
        journal: path of the journal.
        slowness: factor of the durations.
    """

    def __init__(self, journal: str, slowness: float) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._slowness = slowness
        self._block_s = 0.0

    def block(self, seconds: float) -> None:
        """Let the next execution block the event loop."""
        self._block_s = seconds

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        """Execute one call.

        ``call``: its number; ``seconds``: duration; ``hang``: never returns; ``bytes``: characters of the reply beside the
        digest, or of each chunk; ``chunks``: a stream of so many, ``pause`` seconds apart.
        """
        os.write(self._journal, f"{arguments['call']}\n".encode())
        if self._block_s:
            seconds, self._block_s = self._block_s, 0.0
            time.sleep(seconds)  # noqa: ASYNC251 - a common mistake of authors of tools
        if arguments.get("hang"):
            await asyncio.sleep(FOREVER_S)
        if "chunks" in arguments:
            return self._stream(arguments["chunks"], arguments.get("pause", 0.0), arguments.get("bytes", 0))
        await asyncio.sleep(arguments.get("seconds", 0.0) * self._slowness)
        return answer_to(str(arguments["call"])) + "x" * arguments.get("bytes", 0)

    async def _stream(self, chunks: int, pause: float, size: int) -> AsyncIterator[str]:
        for number in range(chunks):
            yield f"{number}\n".rjust(size)
            if pause:
                await asyncio.sleep(pause)

    def close(self) -> None:
        """Close the journal."""
        os.close(self._journal)


async def main() -> None:
    """Execute the driver's commands; every answer has the moment, on the machine's monotonic clock."""
    channel = Channel()
    spec = channel.first()
    tool: Tool | None = None
    server: dispatch.ToolServer | None = None
    channel.ready()
    async for command in channel.commands():
        match command["do"]:
            case "serve":
                tool = Tool(command["journal"], command.get("slowness", 1.0))
                server = dispatch.ToolServer(
                    tool,
                    spec["url"],
                    request_queue=command["request"],
                    response_queue=command["response"],
                    service="digest",
                    instance=command["instance"],
                    security=dispatch.Security(token=None),
                    **command.get("options", {}),
                )
                await server.start()
            case "block" if tool is not None:
                tool.block(command["seconds"])
            case "drain" if server is not None:
                await server.drain()
        if command["do"] in ("drain", "close") and server is not None and tool is not None:
            await server.close()
            tool.close()
            server = tool = None
        channel.say({"at": time.monotonic()})


if __name__ == "__main__":
    asyncio.run(main())
