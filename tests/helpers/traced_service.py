"""A tool service that exports its spans, as a process of its own:
``python -m tests.helpers.traced_service URL TOPIC ENDPOINT INSTANCE``.

What it does is told by the argument ``do``: ``stream`` comes in chunks; ``trip`` fails, and ``dawdle`` takes a second, at
the instance ``a`` alone, so that a second attempt goes well. It prints ``ready``; at SIGTERM it stops, sends its last spans
and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import dispatch
from tests.helpers.otlp_collector import exporting
from tests.helpers.python_processes import running

CHUNKS = 20
TRIPPED = "tripped"
"""The type of the error at instance ``a``."""
SLOW_S = 1.0


class Traced(dispatch.ToolService):
    def __init__(self, instance: str) -> None:
        self._ill = instance == "a"

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        do = arguments["do"]
        if do == "stream":
            return self._chunks()
        if do == "trip" and self._ill:
            raise dispatch.ToolError(TRIPPED, "over its own feet")
        if do == "dawdle" and self._ill:
            await asyncio.sleep(SLOW_S)
        return str(arguments["n"])

    async def _chunks(self) -> AsyncIterator[str]:
        for index in range(CHUNKS):
            yield f"{index} "


@contextlib.contextmanager
def traced_process(url: str, topic: str, endpoint: str, instance: str) -> Iterator[None]:
    """The service, ready; it has sent all its spans, and ended, at the end. Killed if it does not."""
    with running("-m", __name__, url, topic, endpoint, instance, ready="ready") as program:
        yield
        assert program.end(signal.SIGTERM) == 0, program.text()


async def _main(url: str, topic: str, endpoint: str, instance: str) -> None:
    provider = exporting(endpoint, f"service-{instance}")
    telemetry = dispatch.Telemetry(tracer_provider=provider, metrics=False)
    async with dispatch.ToolServer(Traced(instance), url, service=topic, instance=instance, telemetry=telemetry):
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        print("ready", flush=True)  # noqa: T201 - what the parent waits for
        await ended.wait()
    provider.shutdown()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:5]))
