"""A tool's service hangs: the circuit opens, callers are refused at once and told what to use instead, probes close it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from itertools import cycle
from typing import Any, Final

from dispatch.devtools.demo.fault_schedule import RATES, Rates
from dispatch.devtools.demo.scenarios.base import Act, Stage, chain
from dispatch.errors import Outcome
from dispatch.resilience.breaker.breaker import State

TOOL: Final = "exchange-rate"
INSTEAD: Final = "last-known-rate"
PLANNED: Final = (State.CLOSED, State.OPEN, State.HALF_OPEN, State.CLOSED)
CALLERS: Final = ("lena", "mario")
PAUSE_S: Final = 0.12
POSSIBLE: Final = frozenset({Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.REJECTED})


class OpenCircuit(Act):
    """See the module.

    Args:
        stage: see :class:`Stage`.
        service: behind the tool.

    Attributes:
        states: of the tool's circuit, in their order.
        outcomes: of the tool's calls.
        refusal: the text of the first refusal, as a model reads it.
        instead: calls of the tool that the refusal named, which were answered.
    """

    title = "A service hangs"
    tools = frozenset({TOOL, INSTEAD})

    def __init__(self, stage: Stage, service: Rates) -> None:
        super().__init__(stage)
        self._service = service
        self.states: list[str] = []
        self.outcomes: Counter[Outcome] = Counter()
        self.refusal: str | None = None
        self.longest_refusal = 0.0
        self.sent = 0
        self.instead = 0

    def callers(self) -> Iterator[Coroutine[Any, Any, None]]:
        for name in CALLERS:
            yield self._call(name)

    async def _call(self, name: str) -> None:
        agent = self.stage.agent(name)
        for pair in cycle(RATES):
            if not self.going:
                return
            result = await agent.call(TOOL, {"pair": pair})
            self.outcomes[result.outcome] += 1
            if result.outcome is Outcome.REJECTED and result.error is not None:
                self.longest_refusal = max(self.longest_refusal, result.duration)
                self.sent += bool(result.request_id)
                if self.refusal is None:
                    self.refusal = result.error.message
                    self.stage.events.say(f"{name}'s model reads: “{self.refusal}”")
                for other in result.error.alternatives[:1]:  # and does as it is told
                    answer = await agent.call(other, {"pair": pair})
                    self.instead += answer.ok
            await asyncio.sleep(PAUSE_S)

    async def course(self) -> None:
        pace, say = self.stage.pace, self.stage.events.say
        breaker = self.stage.dispatcher.breaker(TOOL)
        self.states = [str(breaker.state)]
        former = breaker.on_transition

        def turned(old: State, new: State, why: str) -> None:
            self.states.append(str(new))
            left = breaker.retry_after
            say(f"{TOOL}: {old} → {new}{'' if left is None else f' for {left:.1f} s'} ({why.replace('-', ' ')})")
            if former is not None:
                former(old, new, why)

        breaker.on_transition = turned
        try:
            await self.hold(pace.moment)
            self._service.hangs = True
            say(f"The service of {TOOL} hangs: it takes requests and answers none.")
            for number, usual in enumerate((0.0, pace.open_duration, 0.0), 1):
                if not await self.reaches(self.states, number, usual):
                    break
                if PLANNED[number] is State.OPEN:
                    await self.hold(pace.open_duration / 2)
                    self._service.hangs = False
                    say("The service is well again; the dispatcher has to find out.")
            self._service.hangs = False
            await self.hold(pace.moment)
        finally:
            breaker.on_transition = former

    def surprises(self) -> list[str]:
        found = []
        if tuple(self.states) != PLANNED:
            found.append(f"the circuit of {TOOL} was {chain(self.states)} instead of {chain(PLANNED)}")
        for outcome in sorted(POSSIBLE - self.outcomes.keys()):
            found.append(f"no call of {TOOL} ended with {outcome}")
        for outcome in sorted(self.outcomes.keys() - POSSIBLE):
            found.append(f"{self.outcomes[outcome]} calls of {TOOL} ended with {outcome}")
        if self.sent:
            found.append(f"{self.sent} calls of {TOOL} were sent, although they were refused")
        if self.refusal is not None and not self.instead:
            found.append(f"no refusal led to an answer of {INSTEAD}")
        return found

    def account(self) -> str:
        count = self.outcomes
        return (
            f"The service of {TOOL} hung: {chain(self.states)}. {count[Outcome.TIMEOUT]} calls waited for it in vain; "
            f"{count[Outcome.REJECTED]} were refused within {self.longest_refusal * 1000:.1f} ms, {self.sent} of them sent; "
            f"{self.instead} of these callers got an answer from {INSTEAD}. What a model reads: “{self.refusal}”"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "tool": TOOL,
            "states": self.states,
            "outcomes": {str(outcome): count for outcome, count in self.outcomes.items()},
            "refusal": self.refusal,
            "longest_refusal_ms": round(self.longest_refusal * 1000, 3),
            "answered_instead": self.instead,
        }
