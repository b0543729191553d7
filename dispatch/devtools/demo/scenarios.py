"""The demo's scenarios. Each injects a fault, observes the dispatcher's guards, and checks their reaction."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle
from typing import Any, ClassVar, Final, NamedTuple

from dispatch.devtools.demo import world
from dispatch.dispatcher import Dispatcher
from dispatch.errors import ErrorType, Outcome
from dispatch.resilience.breaker import State
from dispatch.resilience.instances import InstanceView

POLL_S: Final = 0.02
"""Poll interval for the state of the guards: far shorter than the shortest state."""
STATE_TIMEOUT_S: Final = 15.0
"""Additional time to wait for an expected state, beyond its usual time; afterwards it is a deviation."""


class Event(NamedTuple):
    """An event, ``at`` seconds after the start of the run."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class ScenarioContext:
    """Shared objects of the scenarios: dispatcher, counts, times, and the events of the run in order."""

    dispatcher: Dispatcher
    board: world.Scoreboard
    time_scale: world.TimeScale
    events: list[Event] = field(default_factory=list)
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    started_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def record(self, text: str) -> None:
        """Record an event with the current time."""
        self.events.append(Event(self.clock() - self.started_at, text))

    def create_agent(self, name: str) -> world.Agent:
        """Create an agent."""
        return world.Agent(name, self.dispatcher, self.board)


class Scenario(ABC):
    """One scenario.

    Attributes:
        title: its subject, in a few words.
        tools: tools that only this scenario calls; it checks the outcomes of their calls.
        agents: names of its agents.
        is_running: whether its agents continue to call.
    """

    title: ClassVar[str]
    tools: ClassVar[frozenset[str]] = frozenset()
    agents: ClassVar[Sequence[str]] = ()

    def __init__(self, context: ScenarioContext) -> None:
        self.context = context
        self.is_running = True

    async def run(self) -> None:
        """Run the steps while the agents call; calls in flight at the end are completed."""
        async with asyncio.TaskGroup() as group:
            for name in self.agents:
                group.create_task(self.call_as(name))
            try:
                await self.run_steps()
            finally:
                self.is_running = False

    async def call_as(self, name: str) -> None:  # noqa: B027 - optional: not every scenario has agents
        """Call as the agent ``name`` until :attr:`is_running` becomes false."""

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


# One call or a few for every outcome, so that the expected counts are known.


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
        weather = partial(self._agent.call, "weather")
        self.steps: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("an unknown tool with a similar name", partial(self._agent.call, "tell-jokes", {"topic": "cats"})),
            ("a tool's own error", partial(self._agent.call, "calculate", {"expression": "1 / 0"})),
            ("arguments that are not an object", partial(self._agent.call, "tell-joke", ["cats"])),
            ("a service with a malformed reply", partial(weather, {"place": "Tromsø"}, world.WARM_UP_TIMEOUT_S)),
            ("a service that does not reply", partial(weather, {"place": "Atlantis"})),
            ("three calls of a printer with concurrency 1", self._overload),
            ("an agent that cancels its call", self._cancellation),
        )
        """Title and action of each step, in order."""

    async def run_steps(self) -> None:
        clock = self.context.clock
        began, pause = clock(), self.context.time_scale.every_outcome / len(self.steps)
        for number, (title, run_step) in enumerate(self.steps):
            await asyncio.sleep(max(0.0, began + number * pause - clock()))
            self.context.record(f"{title[0].upper()}{title[1:]}.")
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

    async def _overload(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in (1, 2, 3):
                group.create_task(self._agent.call("print-label", {"text": f"parcel {number}"}))

    async def _cancellation(self) -> None:
        # The archive needs 350 ms for this year: the call is in flight when it is cancelled.
        calling = asyncio.ensure_future(self._agent.call("search-archive", {"year": 1990}))
        await asyncio.sleep(0.05)
        calling.cancel()
        await asyncio.wait([calling])


# One instance becomes slow. Outlier detection ejects it, slow start brings it back, and every call succeeds.


SLOW_SERVICE: Final = "translate-service"
SLOW_TOOL: Final = "translate"
SLOW_INSTANCE: Final = "translate-2"
INSTANCE_STATES: Final = ("up", "ejected", "warming", "up")
TRANSLATE_CALLERS: Final = ("ines", "jonas", "karin")
TRANSLATE_PAUSE_S: Final = 0.03


class SlowInstance(Scenario):
    """A slow instance is ejected and returns.

    Args:
        context: shared objects.
        translators: services by instance id.

    Attributes:
        states_by_instance: states of each instance, in order.
        calls, retried: number of calls; those with more than one attempt.
        results_while_ejected: successful calls while the instance was ejected.
    """

    title = "A slow instance"
    tools = frozenset({SLOW_TOOL})
    agents = TRANSLATE_CALLERS

    def __init__(self, context: ScenarioContext, translators: Mapping[str, world.Translator]) -> None:
        super().__init__(context)
        self._translators = translators
        self._views: tuple[InstanceView, ...] = ()
        self.states_by_instance: dict[str, list[str]] = {}
        self.calls = self.succeeded = self.retried = self.results_while_ejected = 0
        self.slowest = 0.0

    async def call_as(self, name: str) -> None:
        agent = self.context.create_agent(name)
        for word in cycle(world.WORDS):
            if not self.is_running:
                return
            result = await agent.call(SLOW_TOOL, {"word": word})
            self.calls += 1
            self.succeeded += result.outcome is Outcome.SUCCESS
            self.retried += result.attempts > 1
            self.slowest = max(self.slowest, result.duration)
            self.results_while_ejected += (
                result.ok and self.states_by_instance.get(SLOW_INSTANCE, [""])[-1] == "ejected"
            )
            await asyncio.sleep(TRANSLATE_PAUSE_S)

    async def run_steps(self) -> None:
        time_scale, record = self.context.time_scale, self.context.record
        slow = self._translators[SLOW_INSTANCE]
        ready = await self.wait_until(
            lambda: len(self._views) == len(self._translators) and all(view.state == "up" for view in self._views),
            time_scale.slow_start_window,  # new instances begin in slow start
        )
        if not ready:
            return
        self.states_by_instance = {view.id: [view.state] for view in self._views}
        await self.wait(time_scale.steady_period)
        slow.is_slow = True
        record(f"{SLOW_INSTANCE} becomes slow: {slow.SLOW_S:g} s per call instead of at most {slow.NORMAL_S[1]:g} s.")
        for number, usual in enumerate((0.0, time_scale.ejection_time, time_scale.slow_start_window), 1):
            if not await self.wait_for_state(self.states_by_instance[SLOW_INSTANCE], number, usual):
                break
            if INSTANCE_STATES[number] == "ejected":
                await self.wait(time_scale.ejection_time / 2)
                slow.is_slow = False
                record(f"{SLOW_INSTANCE} has recovered; the dispatcher does not know yet.")
        slow.is_slow = False
        await self.wait(time_scale.steady_period)

    def record_states(self) -> None:
        self._views = self.context.dispatcher.instances(SLOW_SERVICE)
        for view in self._views:
            states = self.states_by_instance.get(view.id)
            if states is None or states[-1] == view.state:
                continue
            self.context.record(f"{view.id}: {states[-1]} → {view.state}{_describe_state(view)}")
            states.append(view.state)

    def find_deviations(self) -> list[str]:
        found = []
        if not self.states_by_instance:
            found.append(
                f"the instances of {SLOW_SERVICE} were not all up but {format_states([v.state for v in self._views])}"
            )
        for id, states in self.states_by_instance.items():
            planned = INSTANCE_STATES if id == SLOW_INSTANCE else INSTANCE_STATES[:1]
            if tuple(states) != planned:
                found.append(f"{id} was {format_states(states)} instead of {format_states(planned)}")
        if self.succeeded != self.calls:
            found.append(f"{self.calls - self.succeeded} of {self.calls} calls of {SLOW_TOOL} did not succeed")
        if not self.results_while_ejected:
            found.append(f"no call of {SLOW_TOOL} succeeded while {SLOW_INSTANCE} was ejected")
        return found

    def describe_result(self) -> str:
        return (
            f"{SLOW_INSTANCE} became slow: {format_states(self.states_by_instance.get(SLOW_INSTANCE, []))}. "
            f"{self.succeeded} of {self.calls} calls of {SLOW_TOOL} succeeded, {self.retried} of them by a retry at "
            f"another instance after an attempt timeout; the slowest took {self.slowest:.2f} s."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "instances": self.states_by_instance,
            "calls": self.calls,
            "succeeded": self.succeeded,
            "results_while_ejected": self.results_while_ejected,
            "retried": self.retried,
            "slowest_ms": round(self.slowest * 1000, 3),
        }


def _describe_state(view: InstanceView) -> str:
    if view.state == "ejected" and view.seconds_left is not None:
        return f" for {view.seconds_left:.1f} s, after {view.failures} consecutive failures"
    if view.state == "warming":
        return ": its share of the calls grows during slow start"
    return ""


# A service hangs. The circuit breaker opens, rejections name an alternative tool, half-open calls close it.


HANGING_TOOL: Final = "exchange-rate"
ALTERNATIVE: Final = "last-known-rate"
CIRCUIT_STATES: Final = (State.CLOSED, State.OPEN, State.HALF_OPEN, State.CLOSED)
RATE_CALLERS: Final = ("lena", "mario")
RATE_PAUSE_S: Final = 0.12
HANGING_OUTCOMES: Final = frozenset({Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.REJECTED})


class OpenCircuit(Scenario):
    """The circuit breaker opens, half-opens and closes.

    Args:
        context: shared objects.
        service: the tool's service.

    Attributes:
        states: states of the circuit breaker, in order.
        outcomes: outcomes of the tool's calls.
        rejection: message of the first rejection, as a model reads it.
        alternative_results: successful calls of the alternative tool that a rejection named.
    """

    title = "A service hangs"
    tools = frozenset({HANGING_TOOL, ALTERNATIVE})
    agents = RATE_CALLERS

    def __init__(self, context: ScenarioContext, service: world.Rates) -> None:
        super().__init__(context)
        self._service = service
        self.states: list[str] = []
        self.outcomes: Counter[Outcome] = Counter()
        self.rejection: str | None = None
        self.longest_rejection = 0.0
        self.sent = 0
        self.alternative_results = 0

    async def call_as(self, name: str) -> None:
        agent = self.context.create_agent(name)
        for pair in cycle(world.RATES):
            if not self.is_running:
                return
            result = await agent.call(HANGING_TOOL, {"pair": pair})
            self.outcomes[result.outcome] += 1
            if result.outcome is Outcome.REJECTED and result.error is not None:
                self.longest_rejection = max(self.longest_rejection, result.duration)
                self.sent += bool(result.request_id)
                if self.rejection is None:
                    self.rejection = result.error.message
                    self.context.record(f"{name}'s model reads: “{self.rejection}”")
                for other in result.error.alternatives[:1]:  # as a model would do
                    result = await agent.call(other, {"pair": pair})
                    self.alternative_results += result.ok
            await asyncio.sleep(RATE_PAUSE_S)

    async def run_steps(self) -> None:
        time_scale, record = self.context.time_scale, self.context.record
        breaker = self.context.dispatcher.breaker(HANGING_TOOL)
        self.states = [str(breaker.state)]
        former = breaker.on_transition

        def on_transition(old: State, new: State, why: str) -> None:
            self.states.append(str(new))
            left = breaker.retry_after
            time = "" if left is None else f" for {left:.1f} s"
            record(f"{HANGING_TOOL}: {old} → {new}{time} ({why.replace('-', ' ')})")
            if former is not None:
                former(old, new, why)

        breaker.on_transition = on_transition
        try:
            await self.wait(time_scale.steady_period)
            self._service.is_hanging = True
            record(f"The service of {HANGING_TOOL} hangs: it receives requests and does not reply.")
            for number, usual in enumerate((0.0, time_scale.open_duration, 0.0), 1):
                if not await self.wait_for_state(self.states, number, usual):
                    break
                if CIRCUIT_STATES[number] is State.OPEN:
                    await self.wait(time_scale.open_duration / 2)
                    self._service.is_hanging = False
                    record("The service has recovered; the dispatcher does not know yet.")
            self._service.is_hanging = False
            await self.wait(time_scale.steady_period)
        finally:
            breaker.on_transition = former

    def find_deviations(self) -> list[str]:
        found = []
        if tuple(self.states) != CIRCUIT_STATES:
            found.append(
                f"the circuit breaker of {HANGING_TOOL} was {format_states(self.states)} instead of "
                f"{format_states(CIRCUIT_STATES)}"
            )
        for outcome in sorted(HANGING_OUTCOMES - self.outcomes.keys()):
            found.append(f"no call of {HANGING_TOOL} ended with {outcome}")
        for outcome in sorted(self.outcomes.keys() - HANGING_OUTCOMES):
            found.append(f"{self.outcomes[outcome]} calls of {HANGING_TOOL} ended with {outcome}")
        if self.sent:
            found.append(f"{self.sent} calls of {HANGING_TOOL} were sent, although they were rejected")
        if self.rejection is not None and not self.alternative_results:
            found.append(f"no rejection led to a successful call of {ALTERNATIVE}")
        return found

    def describe_result(self) -> str:
        count = self.outcomes
        return (
            f"The service of {HANGING_TOOL} hung: {format_states(self.states)}. {count[Outcome.TIMEOUT]} calls timed out; "
            f"{count[Outcome.REJECTED]} were rejected within {self.longest_rejection * 1000:.1f} ms, {self.sent} of them "
            f"sent; {self.alternative_results} rejected callers got a result from {ALTERNATIVE}. The model reads: "
            f"“{self.rejection}”"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "tool": HANGING_TOOL,
            "states": self.states,
            "outcomes": {str(outcome): count for outcome, count in self.outcomes.items()},
            "rejection": self.rejection,
            "longest_rejection_ms": round(self.longest_rejection * 1000, 3),
            "alternative_results": self.alternative_results,
        }


# One user calls without pauses. Its rate limit rejects the excess, and other users are not affected.


LIMITED_TOOL: Final = "search-web"
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
    tools = frozenset({LIMITED_TOOL})
    agents = (NOISY_USER, *OTHERS)

    def __init__(self, context: ScenarioContext) -> None:
        super().__init__(context)
        self.unexpected = 0
        self.rejection: str | None = None
        self._began = self.seconds = 0.0

    async def call_as(self, name: str) -> None:
        pause = NOISY_USER_PAUSE_S if name == NOISY_USER else OTHERS_PAUSE_S
        agent, users = self.context.create_agent(name), self.context.board.users
        while self.is_running:
            result = await agent.call(LIMITED_TOOL, {"query": f"news for {name}"})
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
                    self.context.record(f"{name}'s model reads: “{self.rejection}”")
            else:
                self.unexpected += 1
            self.seconds = self.context.clock() - self._began
            await asyncio.sleep(pause)

    async def run_steps(self) -> None:
        self.context.board.track_users(self.agents)
        self._began = self.context.clock()  # before the first step of the agents
        self.context.record(
            f"{NOISY_USER} calls {LIMITED_TOOL} up to {1 / NOISY_USER_PAUSE_S:.0f} times a second, {len(OTHERS)} others "
            f"rarely; each user's limit is {world.USER_RATE.rate}."
        )
        await self.wait(self.context.time_scale.noisy_user)

    async def run(self) -> None:
        await super().run()
        noisy, (admitted, rejected) = self.context.board.users[NOISY_USER], self._others()
        self.context.record(
            f"{NOISY_USER}: {noisy.admitted} calls admitted, {noisy.rejected} rejected. "
            f"Other users: {admitted} and {rejected}."
        )

    def _others(self) -> tuple[int, int]:
        others = [self.context.board.users[name] for name in OTHERS]
        return sum(each.admitted for each in others), sum(each.rejected for each in others)

    def find_deviations(self) -> list[str]:
        users = self.context.board.users
        if NOISY_USER not in users:
            return [f"{NOISY_USER} did not call"]
        found = []
        most = world.USER_RATE.capacity + world.USER_RATE.per_second * self.seconds
        noisy = users[NOISY_USER]
        if not noisy.rejected:
            found.append(f"{NOISY_USER} was not limited")
        if not world.USER_RATE.capacity <= noisy.admitted <= most + 1e-6:
            found.append(f"{noisy.admitted} calls of {NOISY_USER} were admitted in {self.seconds:.2f} s")
        for name in OTHERS:
            if users[name].rejected or not users[name].admitted:
                found.append(f"{name}: {users[name].admitted} calls admitted, {users[name].rejected} rejected")
        if self.unexpected:
            found.append(
                f"{self.unexpected} calls of {LIMITED_TOOL} ended with neither success nor a rejection by the rate limit"
            )
        return found

    def describe_result(self) -> str:
        users = self.context.board.users
        if NOISY_USER not in users:
            return f"{NOISY_USER} did not call."
        noisy, (admitted, rejected) = users[NOISY_USER], self._others()
        return (
            f"{NOISY_USER} called {LIMITED_TOOL} {noisy.admitted + noisy.rejected} times in {self.seconds:.1f} s with a "
            f"limit of {world.USER_RATE.rate} per user: {noisy.admitted} admitted, {noisy.rejected} rejected. "
            f"{', '.join(OTHERS)}: {admitted} admitted, {rejected} rejected. The model reads: “{self.rejection}”"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "tool": LIMITED_TOOL,
            "user_rate_limit": str(world.USER_RATE.rate),
            "seconds": round(self.seconds, 3),
            "rejection": self.rejection,
            "users": {name: asdict(score) for name, score in self.context.board.users.items()},
        }
