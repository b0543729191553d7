"""The demo's agents and their scripts."""

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

QUERIES: Final = {"alice": "a short joke about cats", "dave": "work out an arithmetic expression"}
"""What these agents search for before each call: they know no tool by name."""

SCRIPTS: Final[dict[str, tuple[Step, ...]]] = {
    "alice": (("tell-joke", {"topic": "cats"}),),
    "bob": (("calculate", {"expression": "(17.5 + 3) * 12 / 4"}), ("calculate", {"expression": "2 * 21"})),
    "carol": (("query-customers", {"question": "Any complaint?"}), ("search-archive", {"year": 2019})),
    "dave": (("calculate", {"expression": "1 / 8"}),),
    "erin": (("search-archive", {"year": 2012}), ("query-products", {"question": "Which bulb for the lamp?"})),
    "frank": (
        ("tell-story", {"subject": "a lighthouse keeper"}),
        ("query-customers", {"question": "How many returns?"}),
    ),
}
"""The calls that each agent with a script repeats."""

STREAMED: Final = frozenset({"tell-story"})

WARM_UP: Final[tuple[Step, ...]] = (
    ("tell-joke", {"topic": "programming"}),
    ("calculate", {"expression": "1 + 1"}),
    ("query-products", {"question": "Which products are new?"}),
    ("tell-story", {"subject": "a first call"}),
    ("search-archive", {"year": 2025}),
    ("print-label", {"text": "fragile"}),
    ("translate", {"word": "cat"}),
    ("exchange-rate", {"pair": "EUR/USD"}),
    ("last-known-rate", {"pair": "EUR/USD"}),
    ("search-web", {"query": "pulsar"}),
)
"""One call per service: the first call opens the topics, which takes up to a second on a Pulsar broker."""

WARM_UP_TIMEOUT_S: Final = 15.0


class Agent:
    """An agent: calls tools and counts the calls on the scoreboard."""

    def __init__(self, name: str, dispatcher: Dispatcher, board: Scoreboard) -> None:
        self.name = name
        self._dispatcher = dispatcher
        self._board = board

    async def call(self, tool: str, arguments: Any, timeout: float | None = None) -> CallResult:
        """Call a tool, record its outcome and return the result."""
        self._board.record_start(tool)
        try:
            result = await self._dispatcher.execute(tool, arguments, user=self.name, timeout=timeout)
        except asyncio.CancelledError:
            self._board.record_cancellation(tool)
            raise
        if result.error is None:
            self._board.record_success(tool, result.text, result.duration)
        else:
            self._board.record_failure(tool, result.error)
        return result

    async def stream(self, tool: str, arguments: dict[str, Any], timeout: float | None = None) -> None:
        """Call a tool, receive its reply as a stream, and record its outcome."""
        self._board.record_start(tool)
        clock = asyncio.get_running_loop().time
        started, text = clock(), ""
        try:
            async for chunk in self._dispatcher.stream(tool, arguments, user=self.name, timeout=timeout):
                self._board.record_chunk(tool, text + chunk, None if text else clock() - started)
                text += chunk
        except DispatchError as error:
            self._board.record_failure(tool, error)
        except asyncio.CancelledError:
            self._board.record_cancellation(tool)
            raise
        else:
            self._board.record_success(tool, text, clock() - started)

    async def find_tool(self, step: Step) -> Step:
        """Return the step with the tool that a search finds, if the agent searches."""
        query = QUERIES.get(self.name)
        if query is None:
            return step
        (found,) = await self._dispatcher.find(query, limit=1, user=self.name)
        self._board.record_search(found.name == step[0])
        return found.name, step[1]

    async def run_step(self, step: Step, timeout: float | None = None) -> None:
        """Run one step of a script."""
        tool, arguments = step
        await (self.stream if tool in STREAMED else self.call)(tool, arguments, timeout)

    async def run_script(self, is_running: Callable[[], bool], chance: random.Random) -> None:
        """Repeat the script while ``is_running()``, with short pauses between the calls."""
        for step in _repeat_script(self.name):
            if not is_running():
                return
            await self.run_step(await self.find_tool(step))
            await asyncio.sleep(chance.uniform(0.01, 0.06))


def _repeat_script(name: str) -> Iterator[Step]:
    return cycle(SCRIPTS[name])
