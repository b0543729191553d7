"""The demonstration itself: services, agents and one dispatcher on one broker, and a story in acts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from typing import Final

from dispatch.catalog import Catalog
from dispatch.devtools.demo.agents import SCRIPTS, WARM_UP, WARM_UP_TIMEOUT_S, Agent
from dispatch.devtools.demo.descriptors import demo_catalog
from dispatch.devtools.demo.fault_schedule import Ledger, Rates, Search, Translator
from dispatch.devtools.demo.scenarios import Act, Event, Events, Hog, Incidents, OpenCircuit, SlowInstance, Stage
from dispatch.devtools.demo.scoreboard import Scoreboard
from dispatch.devtools.demo.services import Archive, BrokenService, Calculator, CustomRag, Joke, Printer, Story
from dispatch.devtools.demo.state_snapshot import Guards, look
from dispatch.devtools.demo.summary import Summary
from dispatch.devtools.demo.time_scale import DEFAULT_SECONDS, Pace
from dispatch.dispatcher import Dispatcher
from dispatch.errors import TransportError
from dispatch.policy import Policy
from dispatch.resilience.breaker.rules import BreakerRules
from dispatch.serving.server import ToolServer
from dispatch.serving.tool_service import ToolService
from dispatch.transports import Security, Transport, open_transport

TRANSLATORS: Final = ("translate-1", "translate-2", "translate-3")
_SEED: Final = 20_250


class Demo:
    """One run.

    Args:
        broker: ``memory://``, or the URL of a genuine one with the namespaces tg/request and tg/response.
        seconds: how long the story takes, about; the times of its guards are made to fit. Starting and ending come on top,
            a second or two.
        security: token and TLS settings; None: from the environment.

    Attributes:
        board: the counts, to be looked at while it runs.
        pace: the times of the guards.
        act: which act it is, from 1; 0 before the first.
        acts: how many there are.
        phase: what happens just now, in a few words.
    """

    acts: Final = 4

    def __init__(self, broker: str, seconds: float = DEFAULT_SECONDS, *, security: Security | None = None) -> None:
        self._id = f"demo-{secrets.token_hex(4)}"
        self.broker = f"memory://{self._id}" if broker == "memory://" else broker
        self.board = Scoreboard()
        self.pace = Pace(seconds)
        self.act = 0
        self.phase = "connecting"
        self._security = security
        self._events: Events | None = None
        self._dispatcher: Dispatcher | None = None
        self._guards = Guards()
        self._going = True
        self._done = False
        self._translators: dict[str, Translator] = {}
        self._rates = Rates()

    @property
    def progress(self) -> float:
        """The part of the story that is over, from 0 to 1; below 1 until it has ended."""
        if self._done or self._events is None:
            return float(self._done)
        passed = asyncio.get_running_loop().time() - self._events.began
        return min(0.99, passed / self.pace.total)

    @property
    def events(self) -> list[Event]:
        """What has happened so far."""
        return [] if self._events is None else self._events.all

    @property
    def guards(self) -> Guards:
        """How the guards are doing; after the end: how they were then."""
        return self._guards if self._dispatcher is None else look(self._dispatcher, self.board.users)

    async def run(self) -> Summary:
        """Run it. Cancelled, it ends everything it started.

        Raises:
            TransportError: the broker is out of reach, or lacks a namespace; the message names the fix.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        catalog = demo_catalog(self._id, self.pace)
        async with contextlib.AsyncExitStack() as stack:
            serving = self._transport()
            stack.push_async_callback(serving.close)
            await serving.start()
            await self._serve(stack, serving, catalog)
            chance = random.Random(_SEED)
            dispatcher = await stack.enter_async_context(
                Dispatcher(
                    self._transport(),
                    catalog,
                    # No jitter: a single dispatcher needs no spread, and the open time on the screen is that of the policy.
                    policy=Policy(breaker=BreakerRules(jitter=0.0)),
                    randomness=random.Random(chance.random()).random,
                )
            )
            await self._warm_up(dispatcher)
            stage = Stage(dispatcher, self.board, self.pace, Events())
            self._events = stage.events
            self._dispatcher = dispatcher
            stack.callback(self._freeze)
            async with asyncio.TaskGroup() as group:
                for name in SCRIPTS:
                    work = Agent(name, dispatcher, self.board).work(self._goes_on, random.Random(chance.random()))
                    group.create_task(work)
                acts = await self._story(stage)
                self._going = False
            self.phase = "done"
            self._done = True
            replies = dispatcher.reply_counts()
            return Summary(
                self.broker,
                clock() - started,
                self.pace.shortened,
                self.board,
                acts,
                dispatcher.pending_requests,
                replies,
            )

    async def _story(self, stage: Stage) -> tuple[Act, ...]:
        guarded: tuple[Act, ...] = (
            SlowInstance(stage, self._translators),
            OpenCircuit(stage, self._rates),
            Hog(stage),
        )
        acts: tuple[Act, ...] = (Incidents(stage, {tool for act in guarded for tool in act.tools}), *guarded)
        assert len(acts) == self.acts
        for self.act, act in enumerate(acts, 1):
            self.phase = act.title
            await act.play()
        self.phase = "All as before"
        await asyncio.sleep(self.pace.moment)
        return acts

    def _goes_on(self) -> bool:
        return self._going

    def _freeze(self) -> None:
        """Before the dispatcher closes."""
        self._guards, self._dispatcher = self.guards, None

    def _transport(self) -> Transport:
        return open_transport(self.broker, security=self._security)

    async def _serve(self, stack: contextlib.AsyncExitStack, transport: Transport, catalog: Catalog) -> None:
        self.phase = "starting the services"
        chance = random.Random(_SEED)
        self._translators = {name: Translator(chance) for name in TRANSLATORS}
        limits: dict[str, dict[str, int]] = {"printer-service": {"concurrency": 1, "max_queued": 0}}
        services: list[tuple[str, str, ToolService]] = [
            *(
                (id, f"{id.removesuffix('-service')}-1", service)
                for id, service in (
                    ("joke-service", Joke(chance)),
                    ("calculator-service", Calculator()),
                    ("rag-service", CustomRag(chance)),
                    ("story-service", Story()),
                    ("archive-service", Archive()),
                    ("printer-service", Printer()),
                    ("rates-service", self._rates),
                    ("ledger-service", Ledger()),
                    ("search-service", Search()),
                )
            ),
            *(("translate-service", name, service) for name, service in self._translators.items()),
        ]
        for id, instance, service in services:
            descriptor = catalog.service(id)
            server = ToolServer(
                service,
                transport,
                request_queue=descriptor.request_queue,
                response_queue=descriptor.response_queue,
                id=id,
                instance=instance,
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
