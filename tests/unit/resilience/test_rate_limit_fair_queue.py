"""The weighted fair queue: shares by weight, and no flow locks another out (elsewhere a hog fills the whole queue, and a
cancelled waiter stays in a heap for ever)."""

from __future__ import annotations

from collections import Counter, deque
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch.resilience.rate_limit import WeightedFairQueue
from tests.helpers.state_machine_settings import machine

T = TypeVar("T")


def put(made: WeightedFairQueue[T], flow: str, item: T) -> bool:
    """Whether there was a place for the item."""
    if not made.reserve(flow):
        return False
    made.place(flow, item)
    return True


def queue(*items: str, most: int = 100, **weights: float) -> WeightedFairQueue[str]:
    """A queue of items like ``a1``: flow ``a``."""
    made: WeightedFairQueue[str] = WeightedFairQueue(most, weights)
    for item in items:
        assert put(made, item[0], item)
    return made


def all_of(made: WeightedFairQueue[str]) -> list[str]:
    """Everything, in the order in which it is taken."""
    found = []
    while (item := made.pop()) is not None:
        found.append(item)
    return found


def test_flows_take_turns_and_each_keeps_its_order() -> None:
    assert all_of(queue("a1", "a2", "a3", "b1", "c1", "b2")) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_newcomer_waits_for_one_turn_of_a_hog_and_not_for_all() -> None:
    made = queue(*(f"h{n}" for n in range(9)))
    assert [made.pop(), made.pop()] == ["h0", "h1"]
    assert put(made, "n", "n")
    assert [made.pop(), made.pop()] == ["h2", "n"]


def test_whoever_was_away_saves_nothing_up() -> None:
    made = queue("a1", "a2", "a3", "a4", "b1")
    assert [made.pop() for _ in range(4)] == ["a1", "b1", "a2", "a3"]
    put(made, "b", "b2")
    put(made, "b", "b3")
    assert all_of(made) == ["a4", "b2", "b3"]


def test_weights_are_shares() -> None:
    made = queue(*(f"a{n}" for n in range(9)), *(f"b{n}" for n in range(9)), b=3.0)
    assert Counter(item[0] for item in [made.pop() or "" for _ in range(8)]) == {"a": 2, "b": 6}


def test_an_emptied_queue_begins_anew() -> None:
    made = queue("a1", "a2", "b1", b=2.0)
    all_of(made)
    put(made, "a", "a3")
    put(made, "b", "b2")
    assert [turn[0] for turn in made.turns] == [0.5, 1.0], "numbers stay small, so that they stay exact"
    assert all_of(made) == ["b2", "a3"]


def test_one_flow_gets_half_of_the_queue_and_two_a_third_each() -> None:
    made = queue(most=9)
    assert [put(made, "a", f"a{n}") for n in range(6)] == [True] * 5 + [False]
    assert made.places == 5
    assert [put(made, "b", f"b{n}") for n in range(3)] == [True, True, False]
    assert put(made, "c", "c")
    assert put(made, "d", "d")
    assert not put(made, "e", "e")
    assert len(made.turns) == made.places == 9


def test_one_place_is_for_one_and_no_place_for_none() -> None:
    assert not put(queue(most=0), "a", "a1")
    made = queue("a1", most=1)
    assert not put(made, "b", "b1")
    assert "b" not in made._flows
    made.pop()
    assert put(made, "b", "b1")


def test_a_place_that_is_reserved_is_taken_and_competes_for_nothing() -> None:
    made = queue("a1", most=4)
    assert made.reserve("b")
    assert "b" in made._flows
    assert (made.places, len(made.turns), made.head()) == (2, 1, "a1")
    assert made.reserve("b")
    assert not made.reserve("b")
    assert made.reserve("c")
    made.release("b")
    made.place("b", "b1")
    assert (made.places, len(made.turns)) == (3, 2)
    assert all_of(made) == ["a1", "b1"]
    assert made.places == 1
    made.release("c")
    assert made.places == 0
    assert "c" not in made._flows


def test_turns_can_be_taken_back_and_the_places_stay() -> None:
    made = queue("a1", "b1", "a2", most=8)
    assert made.unplace("a") == ["a1", "a2"]
    assert (made.places, len(made.turns), made.head()) == (3, 1, "b1")
    assert "a" in made._flows
    made.place("a", "a1")
    made.place("a", "a2")
    assert all_of(made) == ["b1", "a1", "a2"]
    assert made.places == 0


def test_what_is_removed_is_gone_and_those_behind_move_up() -> None:
    made = queue("a1", "a2", "a3", "b1", "b2")
    assert made.remove("a", "a1")
    assert not made.remove("a", "a1")
    assert not made.remove("c", "c1")
    assert not made.remove("b", "a2")
    assert (len(made.turns), made.places) == (4, 4)
    assert all_of(made) == ["a2", "b1", "a3", "b2"]
    assert "a" not in made._flows


def test_the_one_before_the_last_that_is_removed_takes_its_flow_along() -> None:
    made = queue("a1", "b1")
    assert made.remove("a", "a1")
    assert "a" not in made._flows
    put(made, "a", "a2")
    assert all_of(made) == ["b1", "a2"]


def test_those_behind_one_removed_move_up_by_their_flows_weight() -> None:
    made = queue("a1", "a2", "a3", a=2.0)
    assert [turn[0] for turn in made.turns] == [0.5, 1.0, 1.5]
    made.remove("a", "a1")
    assert [turn[0] for turn in made.turns] == [0.5, 1.0]
    assert all_of(made) == ["a2", "a3"]


def test_a_weighted_newcomer_sees_how_many_it_passes() -> None:
    made = queue("a1", "a2", "a3", "a4", b=2.0, c=0.25)
    assert made.ahead("b") == 0
    assert made.ahead("c") == 4
    assert made.ahead("d") == 1


def test_nothing_is_ahead_in_an_empty_queue() -> None:
    made = queue()
    assert made.ahead("a") == 0
    assert (made.head(), made.pop(), made.turns) == (None, None, [])


ITEMS = st.lists(st.sampled_from("abc"), max_size=30)


@given(ITEMS, st.sampled_from("abcd"), st.integers(0, 10))
def test_ahead_is_what_goes_ahead(items: list[str], flow: str, before: int) -> None:
    made: WeightedFairQueue[int] = WeightedFairQueue(1000, {"b": 2.0, "d": 0.125})
    for number, name in enumerate(items):
        put(made, name, number)
    for _ in range(before):
        made.pop()
    expected = made.ahead(flow)
    put(made, flow, -1)
    ahead = 0
    while (item := made.pop()) != -1:
        assert item is not None
        ahead += 1
    assert ahead == expected


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=12), st.data())
def test_a_removed_item_leaves_the_queue_as_if_it_had_never_come(items: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(items) - 1))
    here: WeightedFairQueue[int] = WeightedFairQueue(1000, {"b": 2.0, "c": 0.5})
    there: WeightedFairQueue[int] = WeightedFairQueue(1000, {"b": 2.0, "c": 0.5})
    for number, flow in enumerate(items):
        put(here, flow, number)
        if number != gone:
            put(there, flow, number)
    assert here.remove(items[gone], gone)
    assert [turn[0] for turn in here.turns] == pytest.approx([turn[0] for turn in there.turns])
    assert here.ahead("c") == there.ahead("c")
    order = [[number for number in iter(made.pop, None) if items[number] == "a"] for made in (here, there)]
    assert order[0] == order[1]


class Machine(RuleBasedStateMachine):
    """Against lists: what is in, in which order within a flow, and that nobody who always has something waiting falls behind
    his share by more than one item each."""

    MOST = 12

    def __init__(self) -> None:
        super().__init__()
        self.weights = {"b": 2.0, "c": 0.5}
        self.queue: WeightedFairQueue[int] = WeightedFairQueue(self.MOST, self.weights)
        self.flows: dict[str, deque[int]] = {flow: deque() for flow in "abcd"}
        self.parked: Counter[str] = Counter()
        self.number = 0

    @property
    def size(self) -> int:
        return sum(len(items) for items in self.flows.values()) + self.parked.total()

    @rule(flow=st.sampled_from("abcd"))
    def put(self, flow: str) -> None:
        room = len(self.flows[flow]) + self.parked[flow] < self.MOST - self.size
        assert put(self.queue, flow, self.number) == room
        if room:
            self.flows[flow].append(self.number)
        self.number += 1

    @rule(flow=st.sampled_from("abcd"))
    def park(self, flow: str) -> None:
        room = len(self.flows[flow]) + self.parked[flow] < self.MOST - self.size
        assert self.queue.reserve(flow) == room
        self.parked[flow] += room

    @precondition(lambda self: self.parked.total())
    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        flow = data.draw(st.sampled_from(sorted(+self.parked)))
        self.parked[flow] -= 1
        if data.draw(st.booleans()):
            self.queue.release(flow)
        else:
            self.queue.place(flow, self.number)
            self.flows[flow].append(self.number)
            self.number += 1

    @rule()
    def pop(self) -> None:
        head = self.queue.head()
        item = self.queue.pop()
        if item is None:
            assert head is None
            assert not any(self.flows.values())
            return
        firsts = {items[0]: flow for flow, items in self.flows.items() if items}
        assert item in firsts, "the first of its flow"
        assert head == self.flows[firsts[item]].popleft() == item

    @precondition(lambda self: any(self.flows.values()))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        flow = data.draw(st.sampled_from(sorted(flow for flow, items in self.flows.items() if items)))
        item = data.draw(st.sampled_from(list(self.flows[flow])))
        assert self.queue.remove(flow, item)
        assert not self.queue.remove(flow, item)
        self.flows[flow].remove(item)

    @precondition(lambda self: any(self.flows.values()))
    @rule(data=st.data())
    def unplace(self, data: st.DataObject) -> None:
        flow = data.draw(st.sampled_from(sorted(flow for flow, items in self.flows.items() if items)))
        assert self.queue.unplace(flow) == list(self.flows[flow])
        self.parked[flow] += len(self.flows[flow])
        self.flows[flow].clear()

    @invariant()
    def nothing_is_lost_and_nothing_left(self) -> None:
        assert self.queue.places == self.size <= self.MOST
        waiting = sorted(item for items in self.flows.values() for item in items)
        assert len(self.queue.turns) == len(waiting)
        for flow, items in self.flows.items():
            assert (flow in self.queue._flows) == bool(items or self.parked[flow])
        assert self.queue.turns == sorted(self.queue.turns, key=lambda turn: turn[:2])
        assert sorted(item for flow in self.queue._flows.values() for item in flow.items) == waiting
        assert self.queue.ahead("d") <= len(waiting)

    @invariant()
    def no_flow_is_further_behind_than_one_item_each(self) -> None:
        """Between the heads of two flows lies no more virtual time than that of an item of the smallest weight."""
        heads: dict[str, float] = {}
        for finish, _, flow in self.queue.turns:
            heads.setdefault(flow.name, finish - 1.0 / flow.weight)
        if heads:
            assert max(heads.values()) - min(heads.values()) <= 1.0 / 0.5 + 1e-9


TestMachine = pytest.mark.costly(Machine.TestCase)
TestMachine.settings = machine(30, 40)
