"""One instance of a service turns slow: it is ejected, comes back little by little, and no call is lost meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from itertools import cycle
from typing import Any, Final

from dispatch.balancing.snapshot import InstanceView
from dispatch.devtools.demo.fault_schedule import WORDS, Translator
from dispatch.devtools.demo.scenarios.base import Act, Stage, chain
from dispatch.errors import Outcome

SERVICE: Final = "translate-service"
TOOL: Final = "translate"
SICK: Final = "translate-2"
PLANNED: Final = ("up", "ejected", "warming", "up")
CALLERS: Final = ("ines", "jonas", "karin")
PAUSE_S: Final = 0.03


class SlowInstance(Act):
    """See the module.

    Args:
        stage: see :class:`Stage`.
        translators: the services, by the names of their instances.

    Attributes:
        seen: each instance's states, in their order.
        calls, repeated: calls so far; those of them that took more than one attempt.
        meanwhile: calls answered while the instance was ejected.
    """

    title = "An instance turns slow"
    tools = frozenset({TOOL})

    def __init__(self, stage: Stage, translators: Mapping[str, Translator]) -> None:
        super().__init__(stage)
        self._translators = translators
        self._views: tuple[InstanceView, ...] = ()
        self.seen: dict[str, list[str]] = {}
        self.calls = self.answered = self.repeated = self.meanwhile = 0
        self.slowest = 0.0

    def callers(self) -> Iterator[Coroutine[Any, Any, None]]:
        for name in CALLERS:
            yield self._call(name)

    async def _call(self, name: str) -> None:
        agent = self.stage.agent(name)
        for word in cycle(WORDS):
            if not self.going:
                return
            result = await agent.call(TOOL, {"word": word})
            self.calls += 1
            self.answered += result.outcome is Outcome.SUCCESS
            self.repeated += result.attempts > 1
            self.slowest = max(self.slowest, result.duration)
            self.meanwhile += result.ok and self.seen.get(SICK, [""])[-1] == "ejected"
            await asyncio.sleep(PAUSE_S)

    async def course(self) -> None:
        pace, say = self.stage.pace, self.stage.events.say
        sick = self._translators[SICK]
        ready = await self.until(
            lambda: len(self._views) == len(self._translators) and all(view.state == "up" for view in self._views),
            pace.slow_start,  # which everybody begins with
        )
        if not ready:
            return
        self.seen = {view.id: [view.state] for view in self._views}
        await self.hold(pace.moment)
        sick.slow = True
        say(f"{SICK} falls ill: {sick.SLOW_S:g} s for each answer, instead of {sick.QUICK_S[1]:g} s at most.")
        for number, usual in enumerate((0.0, pace.eject_for, pace.slow_start), 1):
            if not await self.reaches(self.seen[SICK], number, usual):
                break
            if PLANNED[number] == "ejected":
                await self.hold(pace.eject_for / 2)
                sick.slow = False
                say(f"{SICK} is well again; the dispatcher has to find out.")
        sick.slow = False
        await self.hold(pace.moment)

    def look(self) -> None:
        self._views = self.stage.dispatcher.instances(SERVICE)
        for view in self._views:
            states = self.seen.get(view.id)
            if states is None or states[-1] == view.state:
                continue
            self.stage.events.say(f"{view.id}: {states[-1]} → {view.state}{_why(view)}")
            states.append(view.state)

    def surprises(self) -> list[str]:
        found = []
        if not self.seen:
            found.append(f"the instances of {SERVICE} were not all up, but {chain([v.state for v in self._views])}")
        for id, states in self.seen.items():
            planned = PLANNED if id == SICK else PLANNED[:1]
            if tuple(states) != planned:
                found.append(f"{id} was {chain(states)} instead of {chain(planned)}")
        if self.answered != self.calls:
            found.append(f"{self.calls - self.answered} of {self.calls} calls of {TOOL} were not answered")
        if not self.meanwhile:
            found.append(f"no call of {TOOL} was answered while {SICK} was ejected")
        return found

    def account(self) -> str:
        return (
            f"{SICK} turned slow: {chain(self.seen.get(SICK, []))}. {self.answered} of {self.calls} calls of {TOOL} were "
            f"answered, {self.repeated} of them by another instance after a first attempt that took too long; the slowest "
            f"took {self.slowest:.2f} s."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "instances": self.seen,
            "calls": self.calls,
            "answered": self.answered,
            "answered_while_ejected": self.meanwhile,
            "repeated": self.repeated,
            "slowest_ms": round(self.slowest * 1000, 3),
        }


def _why(view: InstanceView) -> str:
    if view.state == "ejected" and view.seconds_left is not None:
        return f" for {view.seconds_left:.1f} s, after {view.failures} failures in a row"
    if view.state == "warming":
        return ": a small share of the calls first, then more"
    return ""
