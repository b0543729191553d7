"""An agent: a dispatcher for each incident, whose calls have numbers and records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import dispatch
from benchmarks.incidents.figures import RIGHT, WRONG
from benchmarks.incidents.roles.load import answer_to
from benchmarks.workers.channel import Channel
from benchmarks.workers.pacing import Pacer, is_certainly_not_executed

CANCEL_S = 10.0
UNFINISHED = "unfinished"

Row = tuple[float, float, str, int, str, bool]
"""Beginning and end, how the call ended, its number, its tool, and whether its error says that it was not executed."""


class Agent:
    """Calls the tools of the command in turn.

    Args:
        dispatcher: connected.
        command: ``tools``, each with its name and ``arguments``.
    """

    def __init__(self, dispatcher: dispatch.Dispatcher, command: dict[str, Any]) -> None:
        self._dispatcher = dispatcher
        self._tools: list[dict[str, Any]] = command["tools"]
        self._records: list[Row] = []
        self._pacer = Pacer(lambda: self._make({}))
        self._in_flight: dict[int, Row] = {}
        self._number = 0

    def begin(self, rate: float) -> None:
        """Make ``rate`` calls per second from now on, whether or not earlier ones have ended."""
        self._pacer.begin(lambda: 1 / rate)

    def call(self, extra: dict[str, Any]) -> None:
        """Begin one call, with further arguments.

        ``stream`` reads a stream, with that many seconds after each chunk; ``read``: chunks after which the reader stops;
        ``send``: characters of an argument.
        """
        self._pacer.start(self._make(extra))

    def _make(self, extra: dict[str, Any]) -> Coroutine[Any, Any, None]:
        number, tool = self._number, self._tools[self._number % len(self._tools)]
        self._number += 1
        arguments = {**tool["arguments"], **extra, "call": number}
        if (size := arguments.pop("send", 0)) > 0:
            arguments["padding"] = "x" * size
        make = self._stream if "stream" in arguments else self._execute
        return make(tool["name"], arguments)

    async def _execute(self, tool: str, arguments: dict[str, Any]) -> None:
        began = self._begin(arguments, tool)
        result = await self._dispatcher.execute(tool, arguments)
        text = result.text
        is_right = text.startswith(answer_to(str(arguments["call"]))) and len(text) == 16 + arguments.get("bytes", 0)
        self._record(arguments, tool, began, result.error, is_right=is_right)

    async def _stream(self, tool: str, arguments: dict[str, Any]) -> None:
        pause, most = arguments.pop("stream"), arguments.pop("read", None)
        began = time.monotonic() if most is not None else self._begin(arguments, tool)
        text, error, read = [], None, 0
        try:
            async with aclosing(self._dispatcher.stream(tool, arguments)) as chunks:
                async for chunk in chunks:
                    text.append(chunk)
                    read += 1
                    if read == most:
                        await asyncio.Event().wait()  # until the load ends
                    if pause:
                        await asyncio.sleep(pause)
        except dispatch.DispatchError as failed:
            error = failed
        size = arguments.get("bytes", 0)
        expected = "".join(f"{number}\n".rjust(size) for number in range(arguments["chunks"]))
        self._record(arguments, tool, began, error, is_right="".join(text) == expected)

    def _begin(self, arguments: dict[str, Any], tool: str) -> float:
        began = time.monotonic()
        self._in_flight[arguments["call"]] = (began, began, UNFINISHED, arguments["call"], tool, False)
        return began

    def _record(
        self,
        arguments: dict[str, Any],
        tool: str,
        began: float,
        error: dispatch.DispatchError | None,
        *,
        is_right: bool,
    ) -> None:
        kind = error.type if error is not None else RIGHT if is_right else WRONG
        self._in_flight.pop(arguments["call"], None)
        certain = error is not None and is_certainly_not_executed(error)
        self._records.append((began, time.monotonic(), kind, arguments["call"], tool, certain))

    async def reach(self, calls: int) -> None:
        """Make so many calls, one after the other, that are not recorded: the agent is warm."""
        for _ in range(calls):
            self.call({"seconds": 0.0})
            await self.wait(None)
        self._records.clear()

    async def wait(self, seconds: float | None) -> None:
        """Wait until no call is in flight, at most so many seconds."""
        await self._pacer.wait(seconds)

    async def end(self, seconds: float) -> list[Row]:
        """Stop making calls, wait up to ``seconds`` for those in flight, and return the records.

        Calls that are in flight afterwards are cancelled, and recorded as unfinished; streams whose reader stopped have no
        record.
        """
        await self._pacer.end(seconds)
        unfinished = list(self._in_flight.values())
        for task in self._pacer.in_flight:
            task.cancel()
        await self.wait(CANCEL_S)
        return self._records + [(began, time.monotonic(), *rest) for began, _, *rest in unfinished]


def dispatcher_of(url: str, command: dict[str, Any]) -> dispatch.Dispatcher:
    """A dispatcher with the default policy, the timeouts of the command excepted."""
    catalog = dispatch.Catalog.of(
        services=[{"id": "digest-service", "request-queue": command["request"], "response-queue": command["response"]}],
        tools=[
            {
                "type": "tool-service",
                "name": tool["name"],
                "description": "Returns a digest.",
                "service": "digest-service",
                "read-only": tool["is_repeatable"],
                "policy": tool["policy"],
            }
            for tool in command["tools"]
        ],
    )
    policy = dispatch.Policy(**command["policy"])
    return dispatch.connect(url, catalog, policy=policy, security=dispatch.Security(token=None))


async def main() -> None:
    """Execute the driver's commands."""
    channel = Channel()
    spec = channel.first()
    channel.ready()
    async for command in channel.commands():
        async with dispatcher_of(spec["url"], command) as dispatcher:
            agent = Agent(dispatcher, command)
            await agent.reach(command["warm_up"])
            channel.say({"at": time.monotonic()})
            async for command in channel.commands():
                match command["do"]:
                    case "begin":
                        agent.begin(command["rate"])
                    case "calls":
                        for extra in command["calls"]:
                            agent.call(extra)
                    case "wait":
                        await agent.wait(command["seconds"])
                    case "end":
                        channel.say({"records": await agent.end(command["seconds"])})
                        break
                channel.say({"at": time.monotonic()})


if __name__ == "__main__":
    asyncio.run(main())
