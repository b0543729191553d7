"""Scenario: one instance becomes slow. Outlier detection ejects it, slow start brings it back, and every call succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from itertools import cycle
from typing import Any, Final

from dispatch.balancing.instances import InstanceView
from dispatch.devtools.demo.scenarios.base import Scenario, ScenarioContext, format_states
from dispatch.devtools.demo.world import WORDS, Translator
from dispatch.errors import Outcome

SERVICE: Final = "translate-service"
TOOL: Final = "translate"
SLOW_INSTANCE: Final = "translate-2"
EXPECTED_STATES: Final = ("up", "ejected", "warming", "up")
CALLERS: Final = ("ines", "jonas", "karin")
PAUSE_S: Final = 0.03


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
    tools = frozenset({TOOL})

    def __init__(self, context: ScenarioContext, translators: Mapping[str, Translator]) -> None:
        super().__init__(context)
        self._translators = translators
        self._views: tuple[InstanceView, ...] = ()
        self.states_by_instance: dict[str, list[str]] = {}
        self.calls = self.succeeded = self.retried = self.results_while_ejected = 0
        self.slowest = 0.0

    def create_callers(self) -> Iterator[Coroutine[Any, Any, None]]:
        for name in CALLERS:
            yield self._call(name)

    async def _call(self, name: str) -> None:
        agent = self.context.create_agent(name)
        for word in cycle(WORDS):
            if not self.is_running:
                return
            result = await agent.call(TOOL, {"word": word})
            self.calls += 1
            self.succeeded += result.outcome is Outcome.SUCCESS
            self.retried += result.attempts > 1
            self.slowest = max(self.slowest, result.duration)
            self.results_while_ejected += (
                result.ok and self.states_by_instance.get(SLOW_INSTANCE, [""])[-1] == "ejected"
            )
            await asyncio.sleep(PAUSE_S)

    async def run_steps(self) -> None:
        time_scale, record = self.context.time_scale, self.context.events.record
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
            if EXPECTED_STATES[number] == "ejected":
                await self.wait(time_scale.ejection_time / 2)
                slow.is_slow = False
                record(f"{SLOW_INSTANCE} has recovered; the dispatcher does not know yet.")
        slow.is_slow = False
        await self.wait(time_scale.steady_period)

    def record_states(self) -> None:
        self._views = self.context.dispatcher.instances(SERVICE)
        for view in self._views:
            states = self.states_by_instance.get(view.id)
            if states is None or states[-1] == view.state:
                continue
            self.context.events.record(f"{view.id}: {states[-1]} → {view.state}{_describe_state(view)}")
            states.append(view.state)

    def find_deviations(self) -> list[str]:
        found = []
        if not self.states_by_instance:
            found.append(
                f"the instances of {SERVICE} were not all up but {format_states([v.state for v in self._views])}"
            )
        for id, states in self.states_by_instance.items():
            planned = EXPECTED_STATES if id == SLOW_INSTANCE else EXPECTED_STATES[:1]
            if tuple(states) != planned:
                found.append(f"{id} was {format_states(states)} instead of {format_states(planned)}")
        if self.succeeded != self.calls:
            found.append(f"{self.calls - self.succeeded} of {self.calls} calls of {TOOL} did not succeed")
        if not self.results_while_ejected:
            found.append(f"no call of {TOOL} succeeded while {SLOW_INSTANCE} was ejected")
        return found

    def describe_result(self) -> str:
        return (
            f"{SLOW_INSTANCE} became slow: {format_states(self.states_by_instance.get(SLOW_INSTANCE, []))}. "
            f"{self.succeeded} of {self.calls} calls of {TOOL} succeeded, {self.retried} of them by a retry at another "
            f"instance after an attempt timeout; the slowest took {self.slowest:.2f} s."
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
