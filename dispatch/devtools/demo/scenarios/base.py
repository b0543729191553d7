"""Base class of the scenarios: inject a fault, wait for the guards, report deviations from the expected reaction."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from dispatch.devtools.demo.world import Agent, Scoreboard, TimeScale
from dispatch.dispatcher import Dispatcher

POLL_S: Final = 0.02
"""Poll interval for the state of the guards: far shorter than the shortest state."""
STATE_TIMEOUT_S: Final = 15.0
"""Additional time to wait for an expected state, beyond its usual time; afterwards it is a deviation."""


class Event(NamedTuple):
    """An event, ``at`` seconds after the start of the run."""

    at: float
    text: str


class EventLog:
    """The events of a run, in order."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self.started_at = asyncio.get_running_loop().time()

    def record(self, text: str) -> None:
        """Record an event with the current time."""
        self.all.append(Event(asyncio.get_running_loop().time() - self.started_at, text))


@dataclass(frozen=True, slots=True)
class ScenarioContext:
    """Shared objects of the scenarios: dispatcher, counts, times and event log."""

    dispatcher: Dispatcher
    board: Scoreboard
    time_scale: TimeScale
    events: EventLog
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)

    def create_agent(self, name: str) -> Agent:
        """Create an agent."""
        return Agent(name, self.dispatcher, self.board)


class Scenario(ABC):
    """One scenario.

    Attributes:
        title: its subject, in a few words.
        tools: tools that only this scenario calls; it checks the outcomes of their calls.
        is_running: whether its agents continue to call.
    """

    title: ClassVar[str]
    tools: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, context: ScenarioContext) -> None:
        self.context = context
        self.is_running = True

    async def run(self) -> None:
        """Run the steps while the agents call; calls in flight at the end are completed."""
        async with asyncio.TaskGroup() as group:
            for caller in self.create_callers():
                group.create_task(caller)
            try:
                await self.run_steps()
            finally:
                self.is_running = False

    def create_callers(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Create the agents' coroutines; each ends when :attr:`is_running` becomes false."""
        return iter(())

    @abstractmethod
    async def run_steps(self) -> None:
        """Inject the fault, wait for the guards' reaction, and remove the fault."""

    def record_states(self) -> None:  # noqa: B027 - optional: not every scenario changes the state of a guard
        """Record state changes of the guards; called while the scenario waits."""

    async def wait_until(self, condition: Callable[[], bool], usual: float = 0.0) -> bool:
        """Poll until ``condition()``; return False if it does not hold within ``usual`` + :data:`STATE_TIMEOUT_S` s."""
        clock = self.context.clock
        limit = clock() + usual + STATE_TIMEOUT_S
        while True:
            self.record_states()
            if condition():
                return True
            if clock() >= limit:
                return False
            await asyncio.sleep(POLL_S)

    async def wait_for_state(self, states: Sequence[str], number: int, usual: float = 0.0) -> bool:
        """Wait until ``states`` has its item ``number``; :meth:`record_states` or a callback appends to it."""
        return await self.wait_until(lambda: len(states) > number, usual)

    async def wait(self, seconds: float) -> None:
        """Wait ``seconds`` while recording state changes."""
        end = self.context.clock() + seconds
        await self.wait_until(lambda: self.context.clock() >= end, seconds)

    @abstractmethod
    def find_deviations(self) -> list[str]:
        """List deviations from the expected reaction."""

    @abstractmethod
    def describe_result(self) -> str:
        """Describe the result with its figures, in sentences."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""


def format_states(states: Iterable[str]) -> str:
    """Format states in their order."""
    return " → ".join(states)
