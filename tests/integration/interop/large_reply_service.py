"""A service of ours whose answers are as long as asked for, as a process of its own: ``URL TOPIC``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import dispatch

READY = "answers"


class Large(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return "x" * int(arguments["size"])


async def _main(url: str, topic: str) -> None:
    async with dispatch.ToolServer(Large(), url, service=topic):
        print(READY, flush=True)  # noqa: T201 - what the parent waits for
        await asyncio.Event().wait()  # until it is killed


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
