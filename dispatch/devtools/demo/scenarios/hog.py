"""One user calls as fast as it can: it gets its rate and no more, and the others do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final

from dispatch.devtools.demo.scenarios.base import Act, Stage
from dispatch.devtools.demo.time_scale import USER_RATE
from dispatch.errors import Outcome

TOOL: Final = "search-web"
HOG: Final = "hog"
OTHERS: Final = ("nora", "otto", "petra")
HOG_PAUSE_S: Final = 0.01
"""Without any, nothing else would run: calls that are refused cost next to nothing."""
OTHERS_PAUSE_S: Final = 0.35


class Hog(Act):
    """See the module.

    Attributes:
        seconds: from the first call to the last.
        unplanned: calls that ended in another way than with an answer or the rate's refusal.
    """

    title = "A user calls without end"
    tools = frozenset({TOOL})

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.unplanned = 0
        self.refusal: str | None = None
        self._began: float | None = None
        self.seconds = 0.0

    def callers(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._call(HOG, HOG_PAUSE_S)
        for name in OTHERS:
            yield self._call(name, OTHERS_PAUSE_S)

    async def _call(self, name: str, pause: float) -> None:
        agent, users = self.stage.agent(name), self.stage.board.users
        while self.going:
            result = await agent.call(TOOL, {"query": f"news for {name}"})
            if result.ok:
                users[name].let_through += 1
            elif (
                result.outcome is Outcome.THROTTLED and result.error is not None and result.error.type == "rate-limited"
            ):
                users[name].refused += 1
                if self.refusal is None:
                    self.refusal = result.error.message
                    self.stage.events.say(f"{name}'s model reads: “{self.refusal}”")
            else:
                self.unplanned += 1
            self.seconds = self.stage.clock() - self._start
            await asyncio.sleep(pause)

    async def course(self) -> None:
        self.stage.board.watch_users((HOG, *OTHERS))
        self._began = self.stage.clock()
        self.stage.events.say(
            f"{HOG} calls {TOOL} up to {1 / HOG_PAUSE_S:.0f} times a second, {len(OTHERS)} others now and then; "
            f"the limit is {USER_RATE.rate} each."
        )
        await self.hold(self.stage.pace.hog)

    async def play(self) -> None:
        await super().play()
        hog, (through, refused) = self.stage.board.users[HOG], self._others()
        self.stage.events.say(
            f"{HOG}: {hog.let_through} let through, {hog.refused} refused. The others: {through} and {refused}."
        )

    @property
    def _start(self) -> float:
        assert self._began is not None  # set before the callers' first step
        return self._began

    def _others(self) -> tuple[int, int]:
        others = [self.stage.board.users[name] for name in OTHERS]
        return sum(each.let_through for each in others), sum(each.refused for each in others)

    def surprises(self) -> list[str]:
        users = self.stage.board.users
        if HOG not in users:
            return [f"{HOG} did not call"]
        found = []
        most = USER_RATE.capacity + USER_RATE.per_second * self.seconds
        hog = users[HOG]
        if not hog.refused:
            found.append(f"{HOG} was not limited")
        if not USER_RATE.capacity <= hog.let_through <= most + 1e-6:
            found.append(f"{hog.let_through} calls of {HOG} were let through in {self.seconds:.2f} s")
        for name in OTHERS:
            if users[name].refused or not users[name].let_through:
                found.append(
                    f"of {name}, {users[name].let_through} calls were let through, {users[name].refused} refused"
                )
        if self.unplanned:
            found.append(f"{self.unplanned} calls of {TOOL} ended with neither an answer nor the rate's refusal")
        return found

    def account(self) -> str:
        users = self.stage.board.users
        if HOG not in users:
            return f"{HOG} did not call."
        hog, (through, refused) = users[HOG], self._others()
        return (
            f"{HOG} called {TOOL} {hog.let_through + hog.refused} times in {self.seconds:.1f} s at {USER_RATE.rate} a user: "
            f"{hog.let_through} let through, {hog.refused} refused. {', '.join(OTHERS)}: {through} let through, {refused} "
            f"refused. What a model reads: “{self.refusal}”"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "tool": TOOL,
            "user_rate": str(USER_RATE.rate),
            "seconds": round(self.seconds, 3),
            "refusal": self.refusal,
            "users": {name: score.as_dict() for name, score in self.stage.board.users.items()},
        }
