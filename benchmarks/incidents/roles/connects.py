"""Connects and closes again and again, with as few file descriptors as a login shell grants."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from typing import Any

import dispatch
from benchmarks.incidents.roles.caller import TOOL, dispatcher_of
from benchmarks.incidents.roles.service import Digest
from benchmarks.workers.channel import Channel

OTHERS = 2
"""Files that the process has open besides. pulsar-client aborts with four or five free descriptors, and fails with less."""
SETTLE_S = 1.2
"""pulsar-client ends the threads of a closed client after about a second."""


async def one_dispatcher(spec: dict[str, Any]) -> None:
    """A dispatcher that makes one call."""
    async with dispatcher_of(spec) as dispatcher:
        await dispatcher.call(TOOL, {"secret": "x"}, timeout=10)


async def one_service(spec: dict[str, Any]) -> None:
    """A service that starts and stops."""
    async with dispatch.ToolServer(
        Digest(0.0),
        spec["url"],
        request_queue=spec["own_request"],
        response_queue=spec["own_response"],
        service="digest",
        security=dispatch.Security(token=None),
    ):
        pass


async def main() -> None:
    """For each command, connect and close that many times."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the expected abort writes no core file
    channel = Channel()
    spec = channel.first()
    resource.setrlimit(resource.RLIMIT_NOFILE, (spec["descriptors"], spec["descriptors"]))
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(OTHERS)]
    one = one_dispatcher if spec["what"] == "dispatchers" else one_service
    channel.ready()
    async for command in channel.commands():
        done, error = 0, None
        for _ in range(command["times"]):
            try:
                await one(spec)
            except dispatch.DispatchError as failed:
                error = failed.type  # an agent goes on after an error: whether the process survives is of interest
            else:
                done += 1
        gc.collect()
        await asyncio.sleep(SETTLE_S)
        channel.say({"done": done, "error": error})
    for each in others:
        os.close(each)


if __name__ == "__main__":
    asyncio.run(main())
