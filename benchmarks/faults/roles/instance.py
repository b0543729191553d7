"""One instance of a compared system's service, whose tool keeps a journal."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from benchmarks.incidents.roles.load import answer_to
from benchmarks.peers.system import Place, load
from benchmarks.workers.channel import Channel


class Tool:
    """Answers a digest of the call's number after its work.

    Args:
        journal: path of the journal: a line for each execution that begins, and one with a minus for each that is cancelled.
    """

    def __init__(self, journal: str, work_s: float, concurrency: int) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._work_s = work_s
        self._slots = asyncio.Semaphore(concurrency)
        self.factor = 1.0
        self._healthy = asyncio.Event()
        self._healthy.set()
        self.block_s = 0.0

    def hang(self) -> None:
        """Let no call return until the tool is healed."""
        self._healthy.clear()

    def heal(self) -> None:
        """Work at the usual speed."""
        self._healthy.set()
        self.factor = 1.0

    async def __call__(self, arguments: dict[str, Any]) -> str:
        number = arguments["call"]
        async with self._slots:
            os.write(self._journal, f"{number}\n".encode())
            if self.block_s:
                seconds, self.block_s = self.block_s, 0.0
                time.sleep(seconds)  # noqa: ASYNC251 - a common mistake of authors of tools
            try:
                await asyncio.sleep(self._work_s * self.factor)
                await self._healthy.wait()
            except asyncio.CancelledError:
                os.write(self._journal, f"-{number}\n".encode())
                raise
        return answer_to(str(number))


async def main() -> None:
    """Execute the driver's commands."""
    channel = Channel()
    spec = channel.first()
    place = Place(**{**spec["place"], "ports": tuple(spec["place"]["ports"])})
    tool = Tool(spec["journal"], spec["work_s"], place.concurrency)
    system = load(spec["system"])
    channel.ready()
    if (command := await asyncio.to_thread(channel.read)) is None:
        return  # a spare process that was not needed
    async with system.serve(place, command["instance"], tool):
        channel.say({})
        async for command in channel.commands():
            match command["do"]:
                case "hang":
                    tool.hang()
                case "slow":
                    tool.factor = command["value"]
                case "block":
                    tool.block_s = command["value"]
                case "heal":
                    tool.heal()
            channel.say({})
    # A library whose threads do not end must not delay the end of the run.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
