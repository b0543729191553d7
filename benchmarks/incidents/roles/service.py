"""A service instance with one healthy tool."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.helpers import wall_clock  # isort: skip - before what keeps time.time

import dispatch
from benchmarks.incidents.roles.load import answer_to
from benchmarks.workers.channel import Channel


class Digest(dispatch.ToolService):
    """Answers a digest of the argument ``secret``, so that a forged answer can be told from a right one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        """The tool."""
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return answer_to(arguments["secret"])


async def main() -> None:
    """Serve until the driver ends this process or closes its stdin."""
    channel = Channel()
    spec = channel.first()
    if spec.get("clock_behind"):
        wall_clock.step(-spec["clock_behind"])
    async with dispatch.ToolServer(
        Digest(spec.get("tool_seconds", 0.0)),
        spec["url"],
        request_queue=spec["request"],
        response_queue=spec["response"],
        service="digest",
        instance=spec.get("instance"),
        security=dispatch.Security(token=spec.get("token")),
    ):
        channel.ready()
        async for _ in channel.commands():
            channel.say({})


if __name__ == "__main__":
    asyncio.run(main())
