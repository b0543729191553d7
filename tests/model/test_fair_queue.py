"""The fair queue against the plainest model of itself, and its fairness said as a law."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatch.transports.base import FairQueue, QueueFullError
from tests.helpers.state_machine_settings import machine

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


TestFairQueueMachine = FairQueueMachine.TestCase
TestFairQueueMachine.settings = machine(100, 40)


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
