"""Many concurrent calls of a healthy tool, with the default policy."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import dispatch
from benchmarks.incidents.roles.caller import TOOL, dispatcher_of
from benchmarks.incidents.roles.load import Load
from benchmarks.workers.channel import Channel


async def execute(dispatcher: dispatch.Dispatcher, secret: str) -> dispatch.CallResult:
    """One call with the policy's own limits."""
    return await dispatcher.execute(TOOL, {"secret": secret})


async def main() -> None:
    """For each command, begin that many calls at once with a new dispatcher."""
    channel = Channel()
    spec = channel.read()
    if spec is None:
        return
    channel.ready()
    while (command := await asyncio.to_thread(channel.read)) is not None:
        async with dispatcher_of(spec) as dispatcher:
            load = Load(partial(execute, dispatcher), "burst-")
            for _ in range(20):
                await load.call()
            load.take()
            began = time.monotonic()
            await asyncio.gather(*(load.call() for _ in range(command["calls"])))
            wall = time.monotonic() - began
        channel.say({"calls": load.take(), "wall": wall})


if __name__ == "__main__":
    asyncio.run(main())
