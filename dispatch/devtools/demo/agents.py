"""The demonstration's agents, and what some of them do steadily."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, Final

from dispatch.devtools.demo.scoreboard import Scoreboard
from dispatch.dispatcher import Dispatcher
from dispatch.errors import DispatchError
from dispatch.result import CallResult

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
    ("translate", {"word": "cat"}),
    ("exchange-rate", {"pair": "EUR/USD"}),
    ("last-known-rate", {"pair": "EUR/USD"}),
    ("search-web", {"query": "anybody"}),
)
"""One call for each service: it opens their topics, which takes a genuine broker a moment."""

WARM_UP_TIMEOUT_S: Final = 15.0


class Agent:
    """Somebody who calls tools, and whose calls are counted."""

    def __init__(self, name: str, dispatcher: Dispatcher, board: Scoreboard) -> None:
        self.name = name
        self._dispatcher = dispatcher
        self._board = board

    async def call(self, tool: str, arguments: Any, timeout: float | None = None) -> CallResult:
        """Call a tool and count how it ended, which is returned as well."""
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
        return result

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

    async def work(self, going: Callable[[], bool], chance: random.Random) -> None:
        """Follow the script as long as ``going``, with a little thinking between the steps."""
        for step in _endless(self.name):
            if not going():
                return
            await self.step(step)
            await asyncio.sleep(chance.uniform(0.01, 0.06))


def _endless(name: str) -> Iterator[Step]:
    return cycle(SCRIPTS[name])
