"""A run of the demo: services, agents and one dispatcher on one broker, and four scenarios in sequence."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from dispatch.admin import Admin
from dispatch.catalog import Catalog
from dispatch.devtools.demo import world
from dispatch.devtools.demo.scenarios import (
    SLOW_SERVICE,
    Event,
    EveryOutcome,
    NoisyUser,
    OpenCircuit,
    Scenario,
    ScenarioContext,
    SlowInstance,
)
from dispatch.dispatcher import Dispatcher
from dispatch.errors import Outcome, TransportError
from dispatch.policy import Policy
from dispatch.resilience.breaker import BreakerRules
from dispatch.server import ToolServer
from dispatch.serving.tool_service import ToolService
from dispatch.transports import Security, Transport, open_transport

# Result of a run and its deviations from the expected one.


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a run. Durations are in seconds.

    Attributes:
        broker: URL of the broker.
        seconds: total duration.
        note: which times of the guards were shortened, for people.
        board: the counts.
        scenarios: the scenarios, in order.
        pending: requests still pending in the dispatcher; 0 unless one leaked.
        replies: number of replies by disposition.
    """

    broker: str
    seconds: float
    note: str
    board: world.Scoreboard
    scenarios: Sequence[Scenario]
    pending: int
    replies: dict[str, int]

    @property
    def deviations(self) -> list[str]:
        """List deviations from the expected run, one line each; empty for a successful run."""
        found = [deviation for scenario in self.scenarios for deviation in scenario.find_deviations()]
        if not self.board.outcomes[Outcome.SUCCESS]:
            found.append("no call succeeded")
        if self.board.wrong_searches:
            found.append(f"{self.board.wrong_searches} of {self.board.searches} searches found another tool first")
        if self.pending:
            found.append(f"{self.pending} requests are still pending")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        return {
            "broker": self.broker,
            "seconds": round(self.seconds, 3),
            "calls": self.board.calls,
            "pending": self.pending,
            "replies": self.replies,
            "searches": self.board.searches,
            "tools": {name: score.as_dict() for name, score in self.board.tools.items()},
            "outcomes": {str(outcome): self._outcome(outcome) for outcome in self.board.outcomes},
            "scenarios": [scenario.as_dict() for scenario in self.scenarios],
            "deviations": self.deviations,
        }

    def _outcome(self, outcome: Outcome) -> dict[str, Any]:
        example = self.board.examples.get(outcome)
        shown = {} if example is None else {"example": asdict(example)}
        return {"count": self.board.outcomes[outcome], **shown}


TRANSLATORS: Final = ("translate-1", "translate-2", "translate-3")
_SEED: Final = 20_250


class Demo:
    """One run of the demo.

    Args:
        broker: ``memory://``, or the URL of a Pulsar broker with the namespaces tg/request and tg/response.
        seconds: approximate duration of the scenarios; times of the guards are scaled to it. Start and shutdown take one
            or two seconds more.
        security: token and TLS settings; None: from the environment.
        admin: the admin endpoint of its dispatcher; None: off.
        on_admin: receives the URL of the endpoint.

    Attributes:
        board: the counts, updated during the run.
        time_scale: the times of the guards.
        scenario_number: number of the current scenario, from 1; 0 before the first.
        scenario_count: number of scenarios.
        phase: the current activity, in a few words.
    """

    scenario_count: Final = 4

    def __init__(
        self,
        broker: str,
        seconds: float = world.DEFAULT_SECONDS,
        *,
        security: Security | None = None,
        admin: Admin | None = None,
        on_admin: Callable[[str], object] = lambda url: None,
    ) -> None:
        self._admin = admin
        self._on_admin = on_admin
        self._id = f"demo-{secrets.token_hex(4)}"
        self.broker = f"memory://{self._id}" if broker == "memory://" else broker
        self.board = world.Scoreboard()
        self.time_scale = world.TimeScale(seconds)
        self.scenario_number = 0
        self.phase = "connecting"
        self._security = security
        self._context: ScenarioContext | None = None
        self._dispatcher: Dispatcher | None = None
        self._guards: dict[str, list[dict[str, Any]]] = {}
        self._is_running = True
        self._done = False
        self._translators: dict[str, world.Translator] = {}
        self._rates = world.Rates()

    @property
    def progress(self) -> float:
        """Return the completed share of the run, 0 to 1; below 1 until it has ended."""
        if self._done or self._context is None:
            return float(self._done)
        passed = self._context.clock() - self._context.started_at
        return min(0.99, passed / self.time_scale.total)

    @property
    def events(self) -> list[Event]:
        """Return the events so far."""
        return [] if self._context is None else self._context.events

    @property
    def guards(self) -> dict[str, list[dict[str, Any]]]:
        """Return the state of instances, circuits and users, as rows in the form of the admin API; after the run, their last
        state."""
        dispatcher, users = self._dispatcher, self.board.users.items()
        if dispatcher is None:
            return self._guards
        breakers = {tool: dispatcher.breaker(tool) for tool in dispatcher.catalog.tools}
        return {
            "instances": [msgspec.to_builtins(view) for view in dispatcher.instances(SLOW_SERVICE)],
            "circuits": [
                {"tool": tool, "state": str(breaker.state), "retry_after": breaker.retry_after}
                for tool, breaker in breakers.items()
            ],
            "users": [{"user": name, "calls": score.admitted, "refused": score.rejected} for name, score in users],
        }

    async def run(self) -> Summary:
        """Run the demo. A cancellation stops everything that the run started.

        Raises:
            TransportError: the broker is not reachable, or a namespace is missing; the message names the fix.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        catalog = world.demo_catalog(self._id, self.time_scale)
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
                    admin=self._admin,
                )
            )
            if dispatcher.admin_url is not None:
                self._on_admin(dispatcher.admin_url)
            dispatcher.search.use_embedder(None)  # terms only: two runs are alike, whatever is installed
            await self._warm_up(dispatcher)
            self._context = context = ScenarioContext(dispatcher, self.board, self.time_scale)
            self._dispatcher = dispatcher
            stack.callback(self._store_snapshot)
            async with asyncio.TaskGroup() as group:
                for name in world.SCRIPTS:
                    work = world.Agent(name, dispatcher, self.board).run_script(
                        lambda: self._is_running, random.Random(chance.random())
                    )
                    group.create_task(work)
                scenarios = await self._run_scenarios(context)
                self._is_running = False
            self.phase = "done"
            self._done = True
            replies = dispatcher.reply_counts()
            return Summary(
                self.broker,
                clock() - started,
                self.time_scale.note,
                self.board,
                scenarios,
                dispatcher.pending_requests,
                replies,
            )

    async def _run_scenarios(self, context: ScenarioContext) -> tuple[Scenario, ...]:
        guarded: tuple[Scenario, ...] = (
            SlowInstance(context, self._translators),
            OpenCircuit(context, self._rates),
            NoisyUser(context),
        )
        scenarios: tuple[Scenario, ...] = (
            EveryOutcome(context, {tool for each in guarded for tool in each.tools}),
            *guarded,
        )
        assert len(scenarios) == self.scenario_count
        for self.scenario_number, scenario in enumerate(scenarios, 1):
            self.phase = scenario.title
            await scenario.run()
        self.phase = "All guards back to normal"
        await asyncio.sleep(self.time_scale.steady_period)
        return scenarios

    def _store_snapshot(self) -> None:
        """Store the state of the guards before the dispatcher closes."""
        self._guards, self._dispatcher = self.guards, None

    def _transport(self) -> Transport:
        return open_transport(self.broker, security=self._security)

    async def _serve(self, stack: contextlib.AsyncExitStack, transport: Transport, catalog: Catalog) -> None:
        self.phase = "starting the services"
        chance = random.Random(_SEED)
        self._translators = {name: world.Translator(chance) for name in TRANSLATORS}
        limits: dict[str, dict[str, int]] = {"printer-1": {"concurrency": 1, "max_queue": 0}}
        services: dict[str, ToolService] = {
            "joke-1": world.Joke(chance),
            "calculator-1": world.Calculator(),
            "rag-1": world.CustomRag(chance),
            "story-1": world.Story(),
            "archive-1": world.Archive(),
            "printer-1": world.Printer(),
            "rates-1": self._rates,
            "ledger-1": world.Ledger(),
            "search-1": world.Search(),
            **self._translators,
        }
        for instance, service in services.items():
            descriptor = catalog.service(f"{instance.partition('-')[0]}-service")
            server = ToolServer(
                service,
                transport,
                request_queue=descriptor.request_queue,
                response_queue=descriptor.response_queue,
                instance=instance,
                **limits.get(instance, {}),  # type: ignore[arg-type] # keys and values are ToolServer's own
            )
            await stack.enter_async_context(server)
        broken = catalog.service("weather-service")
        topics = broken.request_queue, broken.response_queue
        await stack.enter_async_context(world.broken_service(transport, *topics))

    async def _warm_up(self, dispatcher: Dispatcher) -> None:
        """Call each service once; these calls are counted as all others.

        Raises:
            TransportError: a first call failed.
        """
        self.phase = "calling each service for the first time"
        first = world.Agent("mallory", dispatcher, self.board)
        async with asyncio.TaskGroup() as group:
            for step in world.WARM_UP:
                group.create_task(first.run_step(step, world.WARM_UP_TIMEOUT_S))
        for outcome, example in self.board.examples.items():
            raise TransportError(
                example.type, f"The first call of '{example.tool}' ended with {outcome}: {example.message}"
            )
