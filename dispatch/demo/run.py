"""The demonstration itself: services, agents and one dispatcher on one broker, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from dataclasses import dataclass
from typing import Any, Final

from dispatch.catalog import Catalog
from dispatch.demo.agents import SCRIPTS, WARM_UP, WARM_UP_TIMEOUT_S, Agent, Incidents
from dispatch.demo.descriptors import demo_catalog
from dispatch.demo.scoreboard import Scoreboard
from dispatch.demo.services import Archive, BrokenService, Calculator, CustomRag, Joke, Printer, Story
from dispatch.dispatcher import Dispatcher
from dispatch.outcome import Outcome, TransportError
from dispatch.server import ToolServer
from dispatch.transports import Security, Transport, open_transport

EXPECTED: Final = {
    Outcome.TOOL_ERROR: 1,
    Outcome.INVALID_ARGUMENTS: 1,
    Outcome.THROTTLED: 2,
    Outcome.TIMEOUT: 1,
    Outcome.TRANSPORT: 1,
    Outcome.ABANDONED: 1,
    Outcome.REJECTED: 1,
}
"""How often each outcome but success occurs: what the incidents bring about, and nothing else."""

_INCIDENTS_SHARE: Final = 0.8
"""The part of the time in which the incidents happen; the rest shows that all is as before."""
_SEED: Final = 20_250


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of a run. Durations are in seconds."""

    broker: str
    seconds: float
    board: Scoreboard
    pending: int
    replies: dict[str, int]

    @property
    def surprises(self) -> list[str]:
        """What should not have been, a line each; empty for a run as it should be."""
        found = [
            f"{outcome}: {self.board.outcomes[outcome]} instead of {number}"
            for outcome, number in EXPECTED.items()
            if self.board.outcomes[outcome] != number
        ]
        if not self.board.outcomes[Outcome.SUCCESS]:
            found.append("no call succeeded")
        if self.pending:
            found.append(f"{self.pending} calls are left in the table of those that wait")
        return found

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for ``--json``."""
        examples = self.board.examples
        return {
            "broker": self.broker,
            "seconds": round(self.seconds, 3),
            "calls": self.board.calls,
            "pending": self.pending,
            "replies": self.replies,
            "tools": {name: score.as_dict() for name, score in self.board.tools.items()},
            "outcomes": {
                str(outcome): {
                    "count": count,
                    **(
                        {
                            "example": {
                                "tool": examples[outcome].tool,
                                "type": examples[outcome].type,
                                "message": examples[outcome].message,
                            }
                        }
                        if outcome in examples
                        else {}
                    ),
                }
                for outcome, count in self.board.outcomes.items()
            },
            "surprises": self.surprises,
        }


class Demo:
    """One run.

    Args:
        broker: ``memory://``, or the URL of a genuine one with the namespaces tg/request and tg/response.
        seconds: how long the agents work; starting and ending come on top, a second or two.
        security: token and TLS settings; None: from the environment.

    Attributes:
        board: the counts, to be looked at while it runs.
        phase: what happens just now, in a few words.
        progress: from 0 to 1.
    """

    def __init__(self, broker: str, seconds: float = 10.0, *, security: Security | None = None) -> None:
        self._id = f"demo-{secrets.token_hex(4)}"
        self.broker = f"memory://{self._id}" if broker == "memory://" else broker
        self.seconds = seconds
        self.board = Scoreboard()
        self.phase = "connecting"
        self._security = security
        self._began: float | None = None

    @property
    def progress(self) -> float:
        """The part of the agents' time that is over."""
        if self._began is None:
            return 0.0
        return min(1.0, (asyncio.get_running_loop().time() - self._began) / self.seconds)

    async def run(self) -> Summary:
        """Run it. Cancelled, it ends everything it started.

        Raises:
            TransportError: the broker is out of reach, or lacks a namespace; the message names the fix.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        catalog = demo_catalog(self._id)
        async with contextlib.AsyncExitStack() as stack:
            serving = self._transport()
            stack.push_async_callback(serving.close)
            await serving.start()
            await self._serve(stack, serving, catalog)
            dispatcher = await stack.enter_async_context(Dispatcher(self._transport(), catalog))
            await self._warm_up(dispatcher)
            self._began = clock()
            chance = random.Random(_SEED)
            until = self._began + self.seconds
            async with asyncio.TaskGroup() as group:
                for name in SCRIPTS:
                    agent = Agent(name, dispatcher, self.board)
                    group.create_task(agent.work(until, random.Random(chance.random())))
                group.create_task(self._incidents(Agent("mallory", dispatcher, self.board)))
            self.phase = "done"
            replies = {str(disposition): count for disposition, count in dispatcher.exchange.replies.items()}
            return Summary(self.broker, clock() - started, self.board, dispatcher.exchange.pending, replies)

    def _transport(self) -> Transport:
        return open_transport(self.broker, security=self._security)

    async def _serve(self, stack: contextlib.AsyncExitStack, transport: Transport, catalog: Catalog) -> None:
        self.phase = "starting the services"
        chance = random.Random(_SEED)
        limits: dict[str, dict[str, int]] = {"printer-service": {"concurrency": 1, "max_queued": 0}}
        for id, service in (
            ("joke-service", Joke(chance)),
            ("calculator-service", Calculator()),
            ("rag-service", CustomRag(chance)),
            ("story-service", Story()),
            ("archive-service", Archive()),
            ("printer-service", Printer()),
        ):
            descriptor = catalog.service(id)
            server = ToolServer(
                service,
                transport,
                request_queue=descriptor.request_queue,
                response_queue=descriptor.response_queue,
                id=id,
                **limits.get(id, {}),  # type: ignore[arg-type] # keys and values are ToolServer's own
            )
            await stack.enter_async_context(server)
        broken = catalog.service("weather-service")
        await stack.enter_async_context(BrokenService(transport, broken.request_queue))

    async def _warm_up(self, dispatcher: Dispatcher) -> None:
        """The first call of each service, counted as any other.

        Raises:
            TransportError: they do not get through: the rest would make no sense.
        """
        self.phase = "calling each service for the first time"
        first = Agent("mallory", dispatcher, self.board)
        async with asyncio.TaskGroup() as group:
            for step in WARM_UP:
                group.create_task(first.step(step, WARM_UP_TIMEOUT_S))
        for outcome, example in self.board.examples.items():
            raise TransportError(
                example.type, f"The first call of '{example.tool}' ended with {outcome}: {example.message}"
            )

    async def _incidents(self, agent: Agent) -> None:
        incidents = Incidents(agent).all
        clock = asyncio.get_running_loop().time
        assert self._began is not None  # set before the agents start
        pause = self.seconds * _INCIDENTS_SHARE / len(incidents)
        for number, (title, happen) in enumerate(incidents):
            due = self._began + number * pause
            await asyncio.sleep(max(0.0, due - clock()))
            self.phase = title
            await happen()
        self.phase = "all as before"
