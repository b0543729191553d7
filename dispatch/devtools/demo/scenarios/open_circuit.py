"""Scenario: a service hangs. The circuit breaker opens, rejections name an alternative tool, half-open calls close it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from itertools import cycle
from typing import Any, Final

from dispatch.devtools.demo.scenarios.base import Scenario, ScenarioContext, format_states
from dispatch.devtools.demo.world import RATES, Rates
from dispatch.errors import Outcome
from dispatch.resilience.breaker import State

TOOL: Final = "exchange-rate"
ALTERNATIVE: Final = "last-known-rate"
EXPECTED_STATES: Final = (State.CLOSED, State.OPEN, State.HALF_OPEN, State.CLOSED)
CALLERS: Final = ("lena", "mario")
PAUSE_S: Final = 0.12
EXPECTED_OUTCOMES: Final = frozenset({Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.REJECTED})


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
    tools = frozenset({TOOL, ALTERNATIVE})

    def __init__(self, context: ScenarioContext, service: Rates) -> None:
        super().__init__(context)
        self._service = service
        self.states: list[str] = []
        self.outcomes: Counter[Outcome] = Counter()
        self.rejection: str | None = None
        self.longest_rejection = 0.0
        self.sent = 0
        self.alternative_results = 0

    def create_callers(self) -> Iterator[Coroutine[Any, Any, None]]:
        for name in CALLERS:
            yield self._call(name)

    async def _call(self, name: str) -> None:
        agent = self.context.create_agent(name)
        for pair in cycle(RATES):
            if not self.is_running:
                return
            result = await agent.call(TOOL, {"pair": pair})
            self.outcomes[result.outcome] += 1
            if result.outcome is Outcome.REJECTED and result.error is not None:
                self.longest_rejection = max(self.longest_rejection, result.duration)
                self.sent += bool(result.request_id)
                if self.rejection is None:
                    self.rejection = result.error.message
                    self.context.events.record(f"{name}'s model reads: “{self.rejection}”")
                for other in result.error.alternatives[:1]:  # as a model would do
                    result = await agent.call(other, {"pair": pair})
                    self.alternative_results += result.ok
            await asyncio.sleep(PAUSE_S)

    async def run_steps(self) -> None:
        time_scale, record = self.context.time_scale, self.context.events.record
        breaker = self.context.dispatcher.breaker(TOOL)
        self.states = [str(breaker.state)]
        former = breaker.on_transition

        def on_transition(old: State, new: State, why: str) -> None:
            self.states.append(str(new))
            left = breaker.retry_after
            record(f"{TOOL}: {old} → {new}{'' if left is None else f' for {left:.1f} s'} ({why.replace('-', ' ')})")
            if former is not None:
                former(old, new, why)

        breaker.on_transition = on_transition
        try:
            await self.wait(time_scale.steady_period)
            self._service.is_hanging = True
            record(f"The service of {TOOL} hangs: it receives requests and does not reply.")
            for number, usual in enumerate((0.0, time_scale.open_duration, 0.0), 1):
                if not await self.wait_for_state(self.states, number, usual):
                    break
                if EXPECTED_STATES[number] is State.OPEN:
                    await self.wait(time_scale.open_duration / 2)
                    self._service.is_hanging = False
                    record("The service has recovered; the dispatcher does not know yet.")
            self._service.is_hanging = False
            await self.wait(time_scale.steady_period)
        finally:
            breaker.on_transition = former

    def find_deviations(self) -> list[str]:
        found = []
        if tuple(self.states) != EXPECTED_STATES:
            found.append(
                f"the circuit breaker of {TOOL} was {format_states(self.states)} instead of {format_states(EXPECTED_STATES)}"
            )
        for outcome in sorted(EXPECTED_OUTCOMES - self.outcomes.keys()):
            found.append(f"no call of {TOOL} ended with {outcome}")
        for outcome in sorted(self.outcomes.keys() - EXPECTED_OUTCOMES):
            found.append(f"{self.outcomes[outcome]} calls of {TOOL} ended with {outcome}")
        if self.sent:
            found.append(f"{self.sent} calls of {TOOL} were sent, although they were rejected")
        if self.rejection is not None and not self.alternative_results:
            found.append(f"no rejection led to a successful call of {ALTERNATIVE}")
        return found

    def describe_result(self) -> str:
        count = self.outcomes
        return (
            f"The service of {TOOL} hung: {format_states(self.states)}. {count[Outcome.TIMEOUT]} calls timed out; "
            f"{count[Outcome.REJECTED]} were rejected within {self.longest_rejection * 1000:.1f} ms, {self.sent} of them "
            f"sent; {self.alternative_results} rejected callers got a result from {ALTERNATIVE}. The model reads: "
            f"“{self.rejection}”"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "tool": TOOL,
            "states": self.states,
            "outcomes": {str(outcome): count for outcome, count in self.outcomes.items()},
            "rejection": self.rejection,
            "longest_rejection_ms": round(self.longest_rejection * 1000, 3),
            "alternative_results": self.alternative_results,
        }
