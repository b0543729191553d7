"""The weighted fair queue: shares by weight, no flow locks another out, large costs have their time too (elsewhere a stream
of small ones starves them, a hog fills the whole queue, and a cancelled waiter stays in a heap for ever)."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch.resilience.fair_queue import WeightedFairQueue
from tests.helpers.state_machine_settings import machine


def queue(*items: str, most: int = 100, cost: float = 1.0, **weights: float) -> WeightedFairQueue[str]:
    """A queue of items like ``a1``: flow ``a``."""
    made: WeightedFairQueue[str] = WeightedFairQueue(most, weights)
    for item in items:
        assert made.put(item[0], item, cost)
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
    assert made.put("n", "n", 1.0)
    assert [made.pop(), made.pop()] == ["h2", "n"]


def test_whoever_was_away_saves_nothing_up() -> None:
    made = queue("a1", "a2", "a3", "a4", "b1")
    assert [made.pop() for _ in range(4)] == ["a1", "b1", "a2", "a3"]
    made.put("b", "b2", 1.0)
    made.put("b", "b3", 1.0)
    assert all_of(made) == ["a4", "b2", "b3"]


def test_weights_are_shares() -> None:
    made = queue(*(f"a{n}" for n in range(9)), *(f"b{n}" for n in range(9)), b=3.0)
    assert Counter(item[0] for item in [made.pop() or "" for _ in range(8)]) == {"a": 2, "b": 6}


def test_costs_are_what_is_shared_not_calls() -> None:
    made = queue(*(f"a{n}" for n in range(9)))
    for n in range(3):
        made.put("b", f"b{n}", 3.0)
    assert [item[0] for item in all_of(made)] == ["a", "a", "a", "b", "a", "a", "a", "b", "a", "a", "a", "b"]


def test_small_ones_that_keep_coming_do_not_starve_a_large_one() -> None:
    made = queue("a0")
    made.put("b", "large", 5.0)
    added = []
    for n in range(1, 20):
        made.put("a", f"a{n}", 1.0)
        added.append(made.pop())
    assert added.index("large") == 4, "it costs as much as five; a0 to a3 went before, a4 came later"


def test_an_emptied_queue_begins_anew() -> None:
    made = queue("a1", "a2", "b1")
    all_of(made)
    made.put("a", "a3", 1.0)
    made.put("b", "b2", 0.5)
    assert [turn[0] for turn in made.turns] == [0.5, 1.0], "numbers stay small, so that they stay exact"
    assert all_of(made) == ["b2", "a3"]


def test_one_flow_gets_half_of_the_queue_and_two_a_third_each() -> None:
    made = queue(most=9)
    assert [made.put("a", f"a{n}", 1.0) for n in range(6)] == [True] * 5 + [False]
    assert made.places == 5
    assert [made.put("b", f"b{n}", 1.0) for n in range(3)] == [True, True, False]
    assert made.put("c", "c", 1.0)
    assert made.put("d", "d", 1.0)
    assert not made.put("e", "e", 1.0)
    assert len(made) == made.places == 9


def test_one_place_is_for_one_and_no_place_for_none() -> None:
    assert not queue(most=0).put("a", "a1", 1.0)
    made = queue("a1", most=1)
    assert not made.put("b", "b1", 1.0)
    assert not made.holds("b")
    made.pop()
    assert made.put("b", "b1", 1.0)


def test_a_place_that_is_reserved_is_taken_and_competes_for_nothing() -> None:
    made = queue("a1", most=4)
    assert made.reserve("b")
    assert made.holds("b")
    assert (made.places, len(made), made.head()) == (2, 1, ("a1", 1.0))
    assert made.reserve("b")
    assert not made.reserve("b")
    assert made.reserve("c")
    made.release("b")
    made.place("b", "b1", 1.0)
    assert (made.places, len(made)) == (3, 2)
    assert all_of(made) == ["a1", "b1"]
    assert made.places == 1
    made.release("c")
    assert made.places == 0
    assert not made.holds("c")


def test_turns_can_be_taken_back_and_the_places_stay() -> None:
    made = queue("a1", "b1", "a2", most=8)
    assert made.unplace("a") == ["a1", "a2"]
    assert (made.places, len(made), made.items()) == (3, 1, ["b1"])
    assert made.holds("a")
    made.place("a", "a1", 2.0)
    made.place("a", "a2", 2.0)
    assert all_of(made) == ["b1", "a1", "a2"]
    assert made.places == 0


def test_what_is_removed_is_gone_and_those_behind_move_up() -> None:
    made = queue("a1", "a2", "a3", "b1", "b2")
    assert made.remove("a", "a1")
    assert not made.remove("a", "a1")
    assert not made.remove("c", "c1")
    assert not made.remove("b", "a2")
    assert (len(made), made.places) == (4, 4)
    assert all_of(made) == ["a2", "b1", "a3", "b2"]
    assert not made.holds("a")


def test_the_one_before_the_last_that_is_removed_takes_its_flow_along() -> None:
    made = queue("a1", "b1")
    assert made.remove("a", "a1")
    assert not made.holds("a")
    made.put("a", "a2", 1.0)
    assert all_of(made) == ["b1", "a2"]


def test_a_removed_cost_is_not_paid_by_those_behind() -> None:
    made = queue("b1", "b2", "b3", "b4")
    for item, cost in (("a1", 3.0), ("a2", 1.0), ("a3", 2.0)):
        made.put("a", item, cost)
    made.remove("a", "a1")
    assert made.ahead("c", 1.0) == 2.0, "b1 and a2"
    assert made.ahead("c", 3.0) == 6.0, "b1 to b3, a2, a3"
    assert all_of(made) == ["b1", "a2", "b2", "b3", "a3", "b4"]


def test_costs_that_are_alike_but_not_one_count_as_what_they_are() -> None:
    made = queue("a1", "a2", "b1", cost=2.5)
    assert made.ahead("c", 2.5) == 5.0
    assert made.ahead("a", 2.5) == 7.5
    made.remove("a", "a1")
    assert made.ahead("a", 2.5) == 5.0
    made.pop()
    made.pop()
    assert made.ahead("a", 1.0) == 0.0


def test_a_usual_cost_that_leaves_does_not_hide_that_others_are_unusual() -> None:
    made = queue("a1", "a2")
    for item in ("b1", "b2"):
        made.put("b", item, 3.0)
    assert made.ahead("c", 100.0) == 8.0
    made.remove("a", "a1")
    assert made.ahead("c", 100.0) == 7.0
    made.remove("b", "b1")
    assert made.ahead("c", 100.0) == 4.0
    made.remove("b", "b2")
    assert made.ahead("c", 100.0) == 1.0
    assert made._odd == 0, "from now on they need only be counted"


def test_what_is_taken_does_not_hide_that_others_are_unusual() -> None:
    made = queue("a1", "a2")
    assert made._odd == 0
    made.put("b", "b1", 3.0)
    assert made._odd == 1
    assert made.pop() == "a1"
    assert made.ahead("c", 100.0) == 4.0
    assert [made.pop(), made.pop()] == ["a2", "b1"]
    assert made._odd == 0


def test_those_behind_one_removed_move_up_by_their_flows_weight() -> None:
    made = queue(a=2.0)
    for item, cost in (("a1", 4.0), ("a2", 2.0), ("a3", 6.0)):
        made.put("a", item, cost)
    assert [turn[0] for turn in made.turns] == [2.0, 3.0, 6.0]
    made.remove("a", "a1")
    assert [turn[0] for turn in made.turns] == [1.0, 4.0]


def test_a_weighted_newcomer_sees_how_many_it_passes() -> None:
    made = queue("a1", "a2", "a3", "a4", b=2.0)
    assert made.ahead("b", 1.0) == 0.0
    assert made.ahead("b", 4.0) == 2.0
    assert made.ahead("c", 4.0) == 4.0


def test_nothing_is_ahead_in_an_empty_queue() -> None:
    made = queue()
    assert made.ahead("a", 1.0) == 0.0
    assert (made.head(), made.pop(), len(made), made.items()) == (None, None, 0, [])


ITEMS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.5, 1.0, 1.0, 4.0])), max_size=30)


@given(ITEMS, st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 7.0]), st.integers(0, 10))
def test_ahead_is_what_goes_ahead(items: list[tuple[str, float]], flow: str, cost: float, before: int) -> None:
    made: WeightedFairQueue[int] = WeightedFairQueue(1000, {"b": 2.0, "d": 0.5})
    costs = {}
    for number, (name, each) in enumerate(items):
        made.put(name, number, each)
        costs[number] = each
    for _ in range(before):
        made.pop()
    expected = made.ahead(flow, cost)
    made.put(flow, -1, cost)
    ahead = 0.0
    while (item := made.pop()) != -1:
        assert item is not None
        ahead += costs[item]
    assert ahead == expected


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1.0, 2.0, 3.0])), min_size=1, max_size=12), st.data())
def test_a_removed_item_leaves_the_queue_as_if_it_had_never_come(
    items: list[tuple[str, float]], data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(items) - 1))
    here: WeightedFairQueue[int] = WeightedFairQueue(1000)
    there: WeightedFairQueue[int] = WeightedFairQueue(1000)
    for number, (flow, cost) in enumerate(items):
        here.put(flow, number, cost)
        if number != gone:
            there.put(flow, number, cost)
    assert here.remove(items[gone][0], gone)
    assert [turn[0] for turn in here.turns] == pytest.approx([turn[0] for turn in there.turns])
    assert here.ahead("c", 2.0) == there.ahead("c", 2.0)
    order = [[number for number in iter(made.pop, None) if items[number][0] == "a"] for made in (here, there)]
    assert order[0] == order[1]


class Machine(RuleBasedStateMachine):
    """Against lists: what is in, in which order within a flow, and that nobody who always has something waiting falls behind
    his share by more than the largest costs."""

    MOST = 12

    def __init__(self) -> None:
        super().__init__()
        self.weights = {"b": 2.0, "c": 0.5}
        self.queue: WeightedFairQueue[int] = WeightedFairQueue(self.MOST, self.weights)
        self.flows: dict[str, deque[tuple[int, float]]] = {flow: deque() for flow in "abcd"}
        self.parked: Counter[str] = Counter()
        self.number = 0

    @property
    def size(self) -> int:
        return sum(len(items) for items in self.flows.values()) + self.parked.total()

    @rule(flow=st.sampled_from("abcd"), cost=st.sampled_from([1.0, 1.0, 0.5, 3.0]))
    def put(self, flow: str, cost: float) -> None:
        room = len(self.flows[flow]) + self.parked[flow] < self.MOST - self.size
        assert self.queue.put(flow, self.number, cost) == room
        if room:
            self.flows[flow].append((self.number, cost))
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
            self.queue.place(flow, self.number, 1.0)
            self.flows[flow].append((self.number, 1.0))
            self.number += 1

    @rule()
    def pop(self) -> None:
        head = self.queue.head()
        item = self.queue.pop()
        if item is None:
            assert head is None
            assert not any(self.flows.values())
            return
        firsts = {items[0][0]: flow for flow, items in self.flows.items() if items}
        assert item in firsts, "the first of its flow"
        assert head == self.flows[firsts[item]].popleft()

    @precondition(lambda self: any(self.flows.values()))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        flow = data.draw(st.sampled_from(sorted(flow for flow, items in self.flows.items() if items)))
        item = data.draw(st.sampled_from(list(self.flows[flow])))
        assert self.queue.remove(flow, item[0])
        assert not self.queue.remove(flow, item[0])
        self.flows[flow].remove(item)

    @precondition(lambda self: any(self.flows.values()))
    @rule(data=st.data())
    def unplace(self, data: st.DataObject) -> None:
        flow = data.draw(st.sampled_from(sorted(flow for flow, items in self.flows.items() if items)))
        assert self.queue.unplace(flow) == [item for item, _ in self.flows[flow]]
        self.parked[flow] += len(self.flows[flow])
        self.flows[flow].clear()

    @invariant()
    def nothing_is_lost_and_nothing_left(self) -> None:
        assert self.queue.places == self.size <= self.MOST
        assert len(self.queue) == sum(len(items) for items in self.flows.values())
        for flow, items in self.flows.items():
            assert self.queue.holds(flow) == bool(items or self.parked[flow])
        assert self.queue.turns == sorted(self.queue.turns, key=lambda turn: turn[:2])
        assert sorted(self.queue.items()) == sorted(item for items in self.flows.values() for item, _ in items)
        everything = sum(cost for items in self.flows.values() for _, cost in items)
        assert self.queue.ahead("d", 1e9) == pytest.approx(everything)

    @invariant()
    def no_flow_is_further_behind_than_one_large_item_each(self) -> None:
        """Between the heads of two flows lies no more virtual time than the largest cost over the smallest weight."""
        heads = {}
        for finish, _, flow in self.queue.turns:
            heads.setdefault(flow.name, finish - flow.items[next(iter(flow.items))] / flow.weight)
        if heads:
            assert max(heads.values()) - min(heads.values()) <= 3.0 / 0.5 + 1e-9


TestMachine = pytest.mark.costly(Machine.TestCase)
TestMachine.settings = machine(30, 40)
