"""Scenario: one user calls without pauses. Its rate limit rejects the excess, and other users are not affected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final

from dispatch.devtools.demo.scenarios.base import Scenario, ScenarioContext
from dispatch.devtools.demo.world import USER_RATE
from dispatch.errors import ErrorType, Outcome

TOOL: Final = "search-web"
NOISY_USER: Final = "noisy"
OTHERS: Final = ("nora", "otto", "petra")
NOISY_USER_PAUSE_S: Final = 0.01
"""Without a pause the loop of immediately rejected calls would starve the event loop."""
OTHERS_PAUSE_S: Final = 0.35


class NoisyUser(Scenario):
    """A noisy user is limited to its own rate.

    Attributes:
        seconds: from the first call to the last.
        unexpected: calls with an outcome other than success and the rejection by the rate limit.
    """

    title = "A noisy user"
    tools = frozenset({TOOL})

    def __init__(self, context: ScenarioContext) -> None:
        super().__init__(context)
        self.unexpected = 0
        self.rejection: str | None = None
        self._began: float | None = None
        self.seconds = 0.0

    def create_callers(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._call(NOISY_USER, NOISY_USER_PAUSE_S)
        for name in OTHERS:
            yield self._call(name, OTHERS_PAUSE_S)

    async def _call(self, name: str, pause: float) -> None:
        agent, users = self.context.create_agent(name), self.context.board.users
        while self.is_running:
            result = await agent.call(TOOL, {"query": f"news for {name}"})
            if result.ok:
                users[name].admitted += 1
            elif (
                result.outcome is Outcome.THROTTLED
                and result.error is not None
                and result.error.type == ErrorType.RATE_LIMITED
            ):
                users[name].rejected += 1
                if self.rejection is None:
                    self.rejection = result.error.message
                    self.context.events.record(f"{name}'s model reads: “{self.rejection}”")
            else:
                self.unexpected += 1
            self.seconds = self.context.clock() - self._start
            await asyncio.sleep(pause)

    async def run_steps(self) -> None:
        self.context.board.track_users((NOISY_USER, *OTHERS))
        self._began = self.context.clock()
        self.context.events.record(
            f"{NOISY_USER} calls {TOOL} up to {1 / NOISY_USER_PAUSE_S:.0f} times a second, {len(OTHERS)} others rarely; "
            f"each user's limit is {USER_RATE.rate}."
        )
        await self.wait(self.context.time_scale.noisy_user)

    async def run(self) -> None:
        await super().run()
        noisy, (admitted, rejected) = self.context.board.users[NOISY_USER], self._others()
        self.context.events.record(
            f"{NOISY_USER}: {noisy.admitted} calls admitted, {noisy.rejected} rejected. "
            f"Other users: {admitted} and {rejected}."
        )

    @property
    def _start(self) -> float:
        assert self._began is not None  # run_steps sets it before the callers' first step
        return self._began

    def _others(self) -> tuple[int, int]:
        others = [self.context.board.users[name] for name in OTHERS]
        return sum(each.admitted for each in others), sum(each.rejected for each in others)

    def find_deviations(self) -> list[str]:
        users = self.context.board.users
        if NOISY_USER not in users:
            return [f"{NOISY_USER} did not call"]
        found = []
        most = USER_RATE.capacity + USER_RATE.per_second * self.seconds
        noisy = users[NOISY_USER]
        if not noisy.rejected:
            found.append(f"{NOISY_USER} was not limited")
        if not USER_RATE.capacity <= noisy.admitted <= most + 1e-6:
            found.append(f"{noisy.admitted} calls of {NOISY_USER} were admitted in {self.seconds:.2f} s")
        for name in OTHERS:
            if users[name].rejected or not users[name].admitted:
                found.append(f"{name}: {users[name].admitted} calls admitted, {users[name].rejected} rejected")
        if self.unexpected:
            found.append(
                f"{self.unexpected} calls of {TOOL} ended with neither success nor a rejection by the rate limit"
            )
        return found

    def describe_result(self) -> str:
        users = self.context.board.users
        if NOISY_USER not in users:
            return f"{NOISY_USER} did not call."
        noisy, (admitted, rejected) = users[NOISY_USER], self._others()
        return (
            f"{NOISY_USER} called {TOOL} {noisy.admitted + noisy.rejected} times in {self.seconds:.1f} s with a limit of "
            f"{USER_RATE.rate} per user: {noisy.admitted} admitted, {noisy.rejected} rejected. {', '.join(OTHERS)}: "
            f"{admitted} admitted, {rejected} rejected. The model reads: “{self.rejection}”"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "tool": TOOL,
            "user_rate_limit": str(USER_RATE.rate),
            "seconds": round(self.seconds, 3),
            "rejection": self.rejection,
            "users": {name: score.as_dict() for name, score in self.context.board.users.items()},
        }
