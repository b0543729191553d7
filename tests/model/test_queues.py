"""The places of an instance under any order of events: bounds, order, progress, and room for those that use none.
The fair queue against the plainest model of itself, and its fairness said as a law.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatch.serving.fair_places import MEMORY_S, MIN_PLACES, SMALL_SHARE, SPARE_SHARE, FairPlaces
from dispatch.transports.base import FairQueue, QueueFullError
from tests.helpers.state_machine_settings import machine

TOOLS, CALLERS = st.sampled_from("abcd"), st.sampled_from("123")


LIMIT = 12


"""Of the queue."""


class FairPlacesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.fair: FairPlaces[int] = FairPlaces(1, LIMIT)
        self.flow: dict[int, tuple[str, str]] = {}
        self.running: list[int] = []
        self.waiting: list[int] = []

    @initialize(places=st.sampled_from([1, 2, 4, 7, 16, 64]))
    def open(self, places: int) -> None:
        self.fair = FairPlaces(places, LIMIT)

    def _start_waiting(self) -> None:
        while (item := self.fair.start_next(self.now)) is not None:
            before = [each for each in self.waiting if self.flow[each] == self.flow[item]]
            assert item == before[0], "in order of arrival"
            self.waiting.remove(item)
            self.running.append(item)

    def _count(self, items: list[int], tool: str) -> int:
        return sum(self.flow[item][0] == tool for item in items)

    @rule(tool=TOOLS, caller=CALLERS, count=st.sampled_from([1, 1, 1, 5, 20]))
    def arrive(self, tool: str, caller: str, count: int) -> None:
        for _ in range(count):
            item = len(self.flow)
            self.flow[item] = (tool, caller)
            if self.fair.start(item, tool, caller, self.now):
                assert not any(self.flow[each] == (tool, caller) for each in self.waiting)
                self.running.append(item)
                continue
            if len(self.running) < self.fair.places:
                assert self._count(self.running, tool), "a tool that uses nothing gets a place while one is free"
            self.waiting.append(item)
            loser = self.fair.wait(item, tool, caller, self.now)
            if loser is not None:
                assert len(self.waiting) == LIMIT + 1
                longest = max(self._count(self.waiting, each) for each in "abcd")
                assert self._count(self.waiting, self.flow[loser][0]) >= longest - 1
                assert loser == [each for each in self.waiting if self.flow[each] == self.flow[loser]][-1]
                self.waiting.remove(loser)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        item = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.fair.release(item, self.now)
        self._start_waiting()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        item = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        assert self.fair.leave(item, self.now)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.3, 2.0, 5_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._start_waiting()

    @rule()
    def nothing_else_comes(self) -> None:
        """What was used lately is forgotten: a caller that is alone has all but the spare places while it waits for more."""
        for _ in range(20):
            self.now += MEMORY_S
            self._start_waiting()
        places = self.fair.places
        spare = 0 if places < MIN_PLACES else max(1, places // SPARE_SHARE)
        if self.waiting and len({self.flow[item] for item in (*self.running, *self.waiting)}) == 1:
            assert places - len(self.running) <= 2 * spare, "spared among the tools, and among the callers of one"

    @rule()
    def the_last_place_of_many(self) -> None:
        """With several tools known, none above its small share has the spare places."""
        places = self.fair.places
        known = {self.flow[item][0] for item in (*self.running, *self.waiting)}
        if len(known) > 1 and places >= MIN_PLACES:
            spare = max(1, places // SPARE_SHARE)
            for tool in "abcd":
                before = self._count(self.running, tool)
                if before > places - spare:
                    continue  # it was the only one when it took them
                while self.fair.start(len(self.flow), tool, "1", self.now):
                    self.flow[len(self.flow)] = (tool, "1")
                    self.running.append(len(self.flow) - 1)
                after = self._count(self.running, tool)
                assert after <= max(1, places - spare, places // SMALL_SHARE)

    @invariant()
    def the_books_are_right(self) -> None:
        fair = self.fair
        assert fair.running == len(self.running) == len(fair.occupants) <= fair.places
        assert set(fair.waiting) == set(self.waiting)
        assert len(self.waiting) <= LIMIT
        for name in "abcd":
            assert fair.running_of(name) == self._count(self.running, name)
        if self.waiting:
            assert self.running, "no request waits while nothing runs"
        tools = fair._tools.flows.values()
        for flows in (fair._tools, *(tool.callers for tool in tools)):
            unused = sum(max(0.0, flow.claim - flow.running) for flow in flows.flows.values())
            assert abs(flows.reserve - unused) < 1e-6
        for tool in tools:
            if tool.is_shared:
                callers = tool.callers.flows.values()
                assert sum(caller.running for caller in callers) == tool.running
                waiting = sum(caller.waiting for caller in callers)
                assert waiting == tool.waiting == sum(len(caller.queue) for caller in callers)


TestFairPlacesMachine = pytest.mark.costly(FairPlacesMachine.TestCase)


TestFairPlacesMachine.settings = machine(50, 40)


FLOWS = st.sampled_from("abcd")


class FairQueueMachine(RuleBasedStateMachine):
    """The model: a list of (flow, items), the one whose turn it is first."""

    ITEMS, BYTES = 8, 30

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(self.ITEMS, self.BYTES)
        self.turns: list[tuple[str, list[tuple[int, int]]]] = []
        self.count = 0

    def _waiting(self) -> list[tuple[int, int]]:
        return [item for _, items in self.turns for item in items]

    @rule(flow=FLOWS, size=st.integers(0, 12))
    def put(self, flow: str, size: int) -> None:
        self.count += 1
        waiting = self._waiting()
        if len(waiting) >= self.ITEMS or sum(each for _, each in waiting) + size > self.BYTES:
            with pytest.raises(QueueFullError):
                self.queue.put(flow, self.count, size)
            return
        self.queue.put(flow, self.count, size)
        for name, items in self.turns:
            if name == flow:
                items.append((self.count, size))
                return
        self.turns.append((flow, [(self.count, size)]))

    @rule()
    def pop(self) -> None:
        if not self.turns:
            assert self.queue.pop() is None
            return
        flow, items = self.turns.pop(0)
        assert self.queue.pop() == items.pop(0)[0]
        if items:
            self.turns.append((flow, items))

    @rule(flow=FLOWS, data=st.data())
    def withdraw(self, flow: str, data: Any) -> None:
        item = data.draw(st.integers(0, self.count + 1))
        items = dict(self.turns).get(flow, [])
        found = next((each for each in items if each[0] == item), None)
        assert self.queue.remove(flow, item) == (found is not None)
        if found is not None:
            items.remove(found)
            self.turns = [turn for turn in self.turns if turn[1]]

    @rule()
    def clear(self) -> None:
        assert self.queue.clear() == [item for item, _ in self._waiting()]
        self.turns = []

    @invariant()
    def the_books_are_right(self) -> None:
        waiting = self._waiting()
        assert len(self.queue) == len(waiting) <= self.ITEMS
        assert self.queue.bytes == sum(size for _, size in waiting) <= self.BYTES
        assert [self.queue.has_flow(flow) for flow in "abcd"] == [flow in dict(self.turns) for flow in "abcd"]


TestFairQueueMachine = pytest.mark.costly(FairQueueMachine.TestCase)


TestFairQueueMachine.settings = machine(40, 40)


@given(st.lists(FLOWS, max_size=60))
@settings(deadline=None)
def test_no_flow_is_served_twice_while_another_waits(arrivals: list[str]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(1_000, 1_000)
    for number, flow in enumerate(arrivals):
        queue.put(flow, (flow, number), 1)
    taken: list[tuple[str, int]] = []
    while (item := queue.pop()) is not None:
        taken.append(item)
    for flow in set(arrivals):
        numbers = [number for name, number in taken if name == flow]
        assert numbers == sorted(numbers), "first in, first out within a flow"
    left = {flow: arrivals.count(flow) for flow in arrivals}
    served = dict.fromkeys(left, 0)
    for flow, _ in taken:
        assert all(served[flow] <= served[other] for other, count in left.items() if served[other] < count)
        served[flow] += 1
    assert served == left


def test_nothing_is_remembered_of_flows_that_have_gone() -> None:
    queue: FairQueue[int] = FairQueue(10, 10)
    for number in range(10_000):
        queue.put(f"flow {number}", number, 1)
        assert queue.pop() == number
    assert not queue._flows
