"""The demonstration's agents: some that work steadily, and one incident for each way in which a call can end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle
from typing import Any, Final

from dispatch.demo.scoreboard import Scoreboard
from dispatch.dispatcher import Dispatcher
from dispatch.outcome import DispatchError

Step = tuple[str, dict[str, Any]]

SCRIPTS: Final[dict[str, tuple[Step, ...]]] = {
    "alice": (("tell-joke", {"topic": "cats"}), ("query-products", {"question": "Which kettle is fastest?"})),
    "bob": (("calculate", {"expression": "(17.5 + 3) * 12 / 4"}), ("calculate", {"expression": "2 * 21"})),
    "carol": (("query-customers", {"question": "Any complaint?"}), ("search-archive", {"year": 2019})),
    "dave": (("tell-joke", {"topic": "cheese"}), ("calculate", {"expression": "1 / 8"})),
    "erin": (("search-archive", {"year": 2012}), ("query-products", {"question": "Which bulb for the lamp?"})),
    "frank": (
        ("tell-story", {"subject": "a lighthouse keeper"}),
        ("query-customers", {"question": "How many returns?"}),
    ),
}
"""What each steady agent does, again and again."""

STREAMED: Final = frozenset({"tell-story"})

WARM_UP: Final[tuple[Step, ...]] = (
    ("tell-joke", {"topic": "programming"}),
    ("calculate", {"expression": "1 + 1"}),
    ("query-products", {"question": "Is anybody there?"}),
    ("tell-story", {"subject": "a first call"}),
    ("search-archive", {"year": 2025}),
    ("print-label", {"text": "fragile"}),
)
"""One call for each service: it opens their topics, which takes a genuine broker a moment."""

WARM_UP_TIMEOUT_S: Final = 15.0


class Agent:
    """Somebody who calls tools, and whose calls are counted."""

    def __init__(self, name: str, dispatcher: Dispatcher, board: Scoreboard) -> None:
        self.name = name
        self._dispatcher = dispatcher
        self._board = board

    async def call(self, tool: str, arguments: Any, timeout: float | None = None) -> None:
        """Call a tool and count how it ended."""
        self._board.begin(tool)
        try:
            result = await self._dispatcher.execute(tool, arguments, user=self.name, timeout=timeout)
        except asyncio.CancelledError:
            self._board.abandon(tool)
            raise
        if result.error is None:
            self._board.succeed(tool, result.text, result.duration)
        else:
            self._board.fail(tool, result.error)

    async def listen(self, tool: str, arguments: dict[str, Any], timeout: float | None = None) -> None:
        """Call a tool, take its answer chunk by chunk, and count how it ended."""
        self._board.begin(tool)
        clock = asyncio.get_running_loop().time
        started, heard = clock(), ""
        try:
            async for chunk in self._dispatcher.stream(tool, arguments, user=self.name, timeout=timeout):
                self._board.chunk(tool, heard + chunk, None if heard else clock() - started)
                heard += chunk
        except DispatchError as error:
            self._board.fail(tool, error)
        except asyncio.CancelledError:
            self._board.abandon(tool)
            raise
        else:
            self._board.succeed(tool, heard, clock() - started)

    async def step(self, step: Step, timeout: float | None = None) -> None:
        """One step of a script."""
        tool, arguments = step
        await (self.listen if tool in STREAMED else self.call)(tool, arguments, timeout)

    async def work(self, until: float, chance: random.Random) -> None:
        """Follow the script until the loop's clock says ``until``, with a little thinking between the steps."""
        clock = asyncio.get_running_loop().time
        for step in _endless(self.name):
            if clock() >= until:
                return
            await self.step(step)
            await asyncio.sleep(min(chance.uniform(0.01, 0.06), max(0.0, until - clock())))


def _endless(name: str) -> Iterator[Step]:
    return cycle(SCRIPTS[name])


class Incidents:
    """Things that go wrong, each once, so that their numbers are known beforehand."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.all: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("a name slightly wrong", self.unknown_tool),
            ("a tool's own error", self.tool_error),
            ("arguments that are no object", self.invalid_arguments),
            ("a service that answers rubbish", self.rubbish),
            ("a service that does not answer", self.timeout),
            ("three labels for one printer", self.overload),
            ("an agent that changes its mind", self.change_of_mind),
        )
        """Each with what it shows, in the order of their happening."""

    async def unknown_tool(self) -> None:
        await self._agent.call("tell-jokes", {"topic": "cats"})

    async def tool_error(self) -> None:
        await self._agent.call("calculate", {"expression": "1 / 0"})

    async def invalid_arguments(self) -> None:
        await self._agent.call("tell-joke", ["cats"])

    async def timeout(self) -> None:
        await self._agent.call("weather", {"place": "Atlantis"})

    async def overload(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in (1, 2, 3):
                group.create_task(self._agent.call("print-label", {"text": f"parcel {number}"}))

    async def rubbish(self) -> None:
        await self._agent.call("weather", {"place": "Tromsø"}, WARM_UP_TIMEOUT_S)

    async def change_of_mind(self) -> None:
        # The archive is far from an answer then.
        calling = asyncio.ensure_future(self._agent.call("search-archive", {"year": 1990}))
        await asyncio.sleep(0.05)
        calling.cancel()
        await asyncio.wait([calling])
