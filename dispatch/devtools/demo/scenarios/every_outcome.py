"""Scenario: one call or a few for every outcome, so that the expected counts are known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from dispatch.devtools.demo.scenarios.base import Scenario, ScenarioContext
from dispatch.devtools.demo.world import WARM_UP_TIMEOUT_S
from dispatch.errors import Outcome

EXPECTED_OUTCOMES: Final = {
    Outcome.TOOL_ERROR: 1,
    Outcome.INVALID_ARGUMENTS: 1,
    Outcome.THROTTLED: 2,
    Outcome.TIMEOUT: 1,
    Outcome.TRANSPORT: 1,
    Outcome.CANCELLED: 1,
    Outcome.REJECTED: 1,
}
"""Expected count of each outcome except success, over all tools that no other scenario calls."""


class EveryOutcome(Scenario):
    """Produces every outcome.

    Args:
        context: shared objects.
        elsewhere: tools that other scenarios call; their outcomes are not counted here.
    """

    title = "Every outcome"

    def __init__(self, context: ScenarioContext, elsewhere: Iterable[str] = ()) -> None:
        super().__init__(context)
        self._elsewhere = frozenset(elsewhere)
        self._agent = context.create_agent("mallory")
        self.steps: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("an unknown tool with a similar name", self._unknown_tool),
            ("a tool's own error", self._tool_error),
            ("arguments that are not an object", self._invalid_arguments),
            ("a service with a malformed reply", self._malformed_reply),
            ("a service that does not reply", self._timeout),
            ("three calls of a printer with concurrency 1", self._overload),
            ("an agent that cancels its call", self._cancellation),
        )
        """Title and action of each step, in order."""

    async def run_steps(self) -> None:
        clock = self.context.clock
        began, pause = clock(), self.context.time_scale.every_outcome / len(self.steps)
        for number, (title, run_step) in enumerate(self.steps):
            await asyncio.sleep(max(0.0, began + number * pause - clock()))
            self.context.events.record(f"{title[0].upper()}{title[1:]}.")
            await run_step()

    def find_deviations(self) -> list[str]:
        outcomes = self.count_outcomes()
        return [
            f"{outcome}: {outcomes[outcome]} instead of {number}"
            for outcome, number in EXPECTED_OUTCOMES.items()
            if outcomes[outcome] != number
        ]

    def count_outcomes(self) -> dict[Outcome, int]:
        """Return the outcomes of calls to all tools that no other scenario calls."""
        tools = self.context.board.tools.items()
        return {
            outcome: sum(score.outcomes[outcome] for name, score in tools if name not in self._elsewhere)
            for outcome in Outcome
        }

    def describe_result(self) -> str:
        produced = sum(count > 0 for count in self.count_outcomes().values())
        return f"{len(self.steps)} steps produced {produced} of {len(Outcome)} outcomes."

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "outcomes": {str(outcome): count for outcome, count in self.count_outcomes().items()},
        }

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

    async def _malformed_reply(self) -> None:
        await self._agent.call("weather", {"place": "Tromsø"}, WARM_UP_TIMEOUT_S)

    async def _cancellation(self) -> None:
        # The archive needs 350 ms for this year: the call is in flight when it is cancelled.
        calling = asyncio.ensure_future(self._agent.call("search-archive", {"year": 1990}))
        await asyncio.sleep(0.05)
        calling.cancel()
        await asyncio.wait([calling])
