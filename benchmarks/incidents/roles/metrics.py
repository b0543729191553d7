"""A dispatcher with many tools, each called once, whose metrics are scraped on its event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.incidents.roles.caller import dispatcher_of
from benchmarks.workers.channel import Channel

TICK_S = 0.001
SCOPE = {
    "type": "http",
    "method": "GET",
    "path": "/metrics",
    "query_string": b"",
    "headers": [(b"accept", b"application/openmetrics-text; version=1.0.0")],
}


class Ticker:
    """Measures the longest time that one callback blocked the event loop."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.longest = max(self.longest, now - last - TICK_S)
            last = now

    def take(self) -> float:
        """Return the longest stall in seconds since the last request for it."""
        longest, self.longest = self.longest, 0.0
        return longest

    def end(self) -> None:
        """Tick no more."""
        self._task.cancel()


async def scrape(app: Callable[[Any, Any, Any], Awaitable[None]]) -> bytes:
    """The body that an ASGI application answers a scrape with."""
    body = bytearray()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        body.extend(message.get("body", b""))

    await app(dict(SCOPE), receive, send)
    return bytes(body)


async def main() -> None:
    """Call every tool once; then scrape for each command."""
    channel = Channel()
    spec = channel.first()
    async with dispatcher_of(spec, spec["tools"]) as dispatcher:
        names = list(dispatcher.catalog.tools)
        channel.ready()
        room = asyncio.Semaphore(16)

        async def one(name: str) -> None:
            async with room:
                await dispatcher.execute(name, {"secret": name}, timeout=10)

        app = dispatcher.metrics_app()
        async for command in channel.commands():
            if command["do"] == "call":
                await asyncio.gather(*map(one, names))
                channel.say({"calls": len(names)})
                continue
            ticker = Ticker()
            await asyncio.sleep(0.5)
            idle = ticker.take()
            began, processor = time.monotonic(), time.process_time()
            body = await scrape(app)
            took, processor = time.monotonic() - began, time.process_time() - processor
            await asyncio.sleep(0.05)
            channel.say(
                {"idle": idle, "stall": ticker.take(), "took": took, "processor": processor, "lines": body.count(b"\n")}
            )
            ticker.end()


if __name__ == "__main__":
    asyncio.run(main())
