"""What the story's acts have in common. An act brings something about, and says afterwards whether it came as planned."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from dispatch.devtools.demo.agents import Agent
from dispatch.devtools.demo.scoreboard import Scoreboard
from dispatch.devtools.demo.time_scale import Pace
from dispatch.dispatcher import Dispatcher

LOOK_S: Final = 0.02
"""How often an act looks at the guards: far shorter than the shortest state that it waits for."""
LIMIT_S: Final = 15.0
"""What has not come by then, beyond the time that it should take, does not come: a surprise."""


class Event(NamedTuple):
    """Something happened ``at`` seconds after the story began."""

    at: float
    text: str


class Events:
    """What happened, in its order."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self.began = asyncio.get_running_loop().time()

    def say(self, text: str) -> None:
        """It happens now."""
        self.all.append(Event(asyncio.get_running_loop().time() - self.began, text))


@dataclass(frozen=True, slots=True)
class Stage:
    """What an act plays on: the real dispatcher, the counts, the times, and where it says what happens."""

    dispatcher: Dispatcher
    board: Scoreboard
    pace: Pace
    events: Events
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)

    def agent(self, name: str) -> Agent:
        """Somebody who calls tools."""
        return Agent(name, self.dispatcher, self.board)


class Act(ABC):
    """One act.

    Attributes:
        title: what it shows, in a few words.
        tools: those it calls, and nobody else does: what becomes of their calls is the act's to judge.
        going: its agents go on calling.
    """

    title: ClassVar[str]
    tools: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.going = True

    async def play(self) -> None:
        """Its course, while its agents call. Calls that they have begun are finished."""
        async with asyncio.TaskGroup() as group:
            for caller in self.callers():
                group.create_task(caller)
            try:
                await self.course()
            finally:
                self.going = False

    def callers(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Its agents at work; each ends when :attr:`going` does."""
        return iter(())

    @abstractmethod
    async def course(self) -> None:
        """What it brings about."""

    def look(self) -> None:  # noqa: B027 - an act that changes nothing of the guards need not look at them
        """Take note of how the guards are doing."""

    async def until(self, come: Callable[[], bool], usual: float = 0.0) -> bool:
        """Look at the guards until ``come``. False: it did not, within :data:`LIMIT_S` beyond the ``usual`` seconds."""
        clock = self.stage.clock
        limit = clock() + usual + LIMIT_S
        while True:
            self.look()
            if come():
                return True
            if clock() >= limit:
                return False
            await asyncio.sleep(LOOK_S)

    async def reaches(self, states: Sequence[str], number: int, usual: float = 0.0) -> bool:
        """The same, until ``states``, which :meth:`look` or a listener writes, has its item ``number``."""
        return await self.until(lambda: len(states) > number, usual)

    async def hold(self, seconds: float) -> None:
        """Let this much time pass, looking."""
        end = self.stage.clock() + seconds
        await self.until(lambda: self.stage.clock() >= end, seconds)

    @abstractmethod
    def surprises(self) -> list[str]:
        """What was planned and did not happen, or happened and was not planned."""

    @abstractmethod
    def account(self) -> str:
        """What happened, with its figures: some sentences."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""


def chain(states: Iterable[str]) -> str:
    """States in the order in which they came."""
    return " → ".join(states)
