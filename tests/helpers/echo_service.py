"""A tool service for tests on a genuine broker, as a process of its own: ``python -m tests.helpers.echo_service URL TOPIC``.

It answers with the argument ``text``, after ``sleep`` seconds. It prints ``ready``, and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import dispatch
from tests.helpers.python_processes import running


class Echo(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        if "sleep" in arguments:
            await asyncio.sleep(arguments["sleep"])
        return str(arguments.get("text", "x" * 120))


@contextlib.contextmanager
def echo_process(url: str, topic: str, concurrency: int = 64) -> Iterator[subprocess.Popen[str]]:
    """The service in a process of its own, ready; gone at the end, and with this process should it end first."""
    with running("-m", __name__, url, topic, str(concurrency), ready="ready") as program:
        yield program.process


async def _main(url: str, topic: str, concurrency: int) -> None:
    async with dispatch.ToolServer(Echo(), url, service=topic, concurrency=concurrency, max_queue=10_000):
        print("ready", flush=True)  # noqa: T201 - what the parent waits for
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
