"""A tool service for tests on a genuine broker, as a process of its own: ``python -m tests.helpers.echo_service URL TOPIC``.

It answers with the argument ``text``, after ``sleep`` seconds. It prints ``ready`` and ends with its parent's pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dispatch

ROOT = Path(__file__).parents[2]


class Echo(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        if "sleep" in arguments:
            await asyncio.sleep(arguments["sleep"])
        return str(arguments.get("text", "x" * 120))


@contextlib.contextmanager
def echo_process(url: str, topic: str, concurrency: int = 64, env: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The service in a process of its own, ready; gone at the end, and with this process should it end first."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, url, topic, str(concurrency)],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line == "ready\n", f"the echo service did not start: {line!r}"
        yield process
    finally:
        process.kill()
        process.communicate()


async def _main(url: str, topic: str, concurrency: int) -> None:
    async with dispatch.ToolServer(Echo(), url, service=topic, concurrency=concurrency, max_queue=10_000):
        print("ready", flush=True)  # noqa: T201 - what the parent waits for
        # The parent's end of the pipe closes when it ends, however it ends.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
