"""Things that go wrong, each once, so that their numbers are known beforehand: every way in which a call can end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from dispatch.devtools.demo.agents import WARM_UP_TIMEOUT_S
from dispatch.devtools.demo.scenarios.base import Act, Stage
from dispatch.errors import Outcome

EXPECTED: Final = {
    Outcome.TOOL_ERROR: 1,
    Outcome.INVALID_ARGUMENTS: 1,
    Outcome.THROTTLED: 2,
    Outcome.TIMEOUT: 1,
    Outcome.TRANSPORT: 1,
    Outcome.CANCELLED: 1,
    Outcome.REJECTED: 1,
}
"""How often each outcome but success occurs, at all tools that no other act calls: what the incidents bring about, and
nothing else."""


class Incidents(Act):
    """See the module.

    Args:
        stage: see :class:`Stage`.
        elsewhere: tools that other acts call, whose outcomes are theirs to judge.
    """

    title = "Every way a call can end"

    def __init__(self, stage: Stage, elsewhere: Iterable[str] = ()) -> None:
        super().__init__(stage)
        self._elsewhere = frozenset(elsewhere)
        self._agent = stage.agent("mallory")
        self.all: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("a name slightly wrong", self._unknown_tool),
            ("a tool's own error", self._tool_error),
            ("arguments that are no object", self._invalid_arguments),
            ("a service that answers rubbish", self._rubbish),
            ("a service that does not answer", self._timeout),
            ("three labels for one printer", self._overload),
            ("an agent that changes its mind", self._change_of_mind),
        )
        """Each with what it shows, in the order of their happening."""

    async def course(self) -> None:
        clock = self.stage.clock
        began, pause = clock(), self.stage.pace.incidents / len(self.all)
        for number, (title, happen) in enumerate(self.all):
            await asyncio.sleep(max(0.0, began + number * pause - clock()))
            self.stage.events.say(f"{title[0].upper()}{title[1:]}.")
            await happen()

    def surprises(self) -> list[str]:
        outcomes = self.outcomes()
        return [
            f"{outcome}: {outcomes[outcome]} instead of {number}"
            for outcome, number in EXPECTED.items()
            if outcomes[outcome] != number
        ]

    def outcomes(self) -> dict[Outcome, int]:
        """How the calls ended of all tools that no other act calls."""
        tools = self.stage.board.tools.items()
        return {
            outcome: sum(score.outcomes[outcome] for name, score in tools if name not in self._elsewhere)
            for outcome in Outcome
        }

    def account(self) -> str:
        ends = sum(count > 0 for count in self.outcomes().values())
        return f"{len(self.all)} incidents showed {ends} of {len(Outcome)} ways in which a call can end."

    def as_dict(self) -> dict[str, Any]:
        return {"title": self.title, "outcomes": {str(outcome): count for outcome, count in self.outcomes().items()}}

    async def _unknown_tool(self) -> None:
        await self._agent.call("tell-jokes", {"topic": "cats"})

    async def _tool_error(self) -> None:
        await self._agent.call("calculate", {"expression": "1 / 0"})

    async def _invalid_arguments(self) -> None:
        await self._agent.call("tell-joke", ["cats"])

    async def _timeout(self) -> None:
        await self._agent.call("weather", {"place": "Atlantis"})

    async def _overload(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in (1, 2, 3):
                group.create_task(self._agent.call("print-label", {"text": f"parcel {number}"}))

    async def _rubbish(self) -> None:
        await self._agent.call("weather", {"place": "Tromsø"}, WARM_UP_TIMEOUT_S)

    async def _change_of_mind(self) -> None:
        # The archive is far from an answer then.
        calling = asyncio.ensure_future(self._agent.call("search-archive", {"year": 1990}))
        await asyncio.sleep(0.05)
        calling.cancel()
        await asyncio.wait([calling])
