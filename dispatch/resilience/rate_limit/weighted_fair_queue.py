"""A bounded queue that gives each flow its weighted share of what is taken, whatever the others put in. Bookkeeping only.

Self-clocked fair queueing (Golestani 1994): each item has the virtual time at which it would be done if all flows were
served at once, each as fast as its weight; the least goes first. So an item waits for what other flows may send in its own
flow's share of time and for nothing else, and a large one cannot be overtaken for ever by small ones: it has its time, too.

Room is given out by a dynamic threshold (Choudhury and Hahne 1998): a flow may have as many items here as there are free
places. One flow alone gets half of the queue, nine that want everything a tenth each, and one tenth stays free for the next.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Flow(Generic[T]):
    """What one flow has here: ``places``, of which those of ``items`` have a turn each. Turns belong to the flow, not to its
    items: when an item leaves, those behind it in its flow move up."""

    __slots__ = ("cost", "items", "name", "places", "slots", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.places = 0
        self.cost: float | None = None  # of every item; None once they differ
        self.items: OrderedDict[T, float] = OrderedDict()
        self.slots: deque[tuple[float, int]] = deque()


class WeightedFairQueue(Generic[T]):
    """Holds items of a cost each, in flows.

    ``put`` does all at once. Who has to count an item before it may compete takes its place first (``reserve``) and its turn
    later (``place``); ``unplace`` takes the turns back and keeps the places.

    Putting, taking and removing take O(log n) comparisons and move n pointers at most, which for 10,000 takes microseconds.
    Only in a flow whose items differ in cost, removing one gives those of that flow new turns.

    Args:
        max_items: items at most.
        weights: of flows; those not named have 1.
    """

    __slots__ = ("_costs", "_flows", "_number", "_odd", "_time", "_weights", "max_items", "places", "turns")

    def __init__(self, max_items: int, weights: dict[str, float] | None = None) -> None:
        self.max_items = max_items
        self.places = 0
        """Items that are here, or have a place reserved."""
        self.turns: list[tuple[float, int, Flow[T]]] = []
        """Every turn in the order in which they come: virtual time, number (never equal), flow. Look, do not touch."""
        self._costs: list[float] = []  # of the turns, one by one
        self._odd = 0  # how many of them are not 1
        self._flows: dict[str, Flow[T]] = {}
        self._weights = weights or {}
        self._number = 0
        self._time = 0.0

    def __len__(self) -> int:
        return len(self.turns)

    def holds(self, flow: str) -> bool:
        """Has ``flow`` a place here?"""
        return flow in self._flows

    def items(self) -> list[T]:
        """All that have a turn, flow by flow."""
        return [item for flow in self._flows.values() for item in flow.items]

    def reserve(self, flow: str) -> bool:
        """Take a place. False when ``flow`` may have no more."""
        free = self.max_items - self.places
        known = self._flows.get(flow)
        if free <= (0 if known is None else known.places):
            return False
        if known is None:
            known = self._flows[flow] = Flow(flow, self._weights.get(flow, 1.0))
        known.places += 1
        self.places += 1
        return True

    def release(self, flow: str) -> None:
        """Give back a place that has no turn (any more)."""
        known = self._flows[flow]
        known.places -= 1
        self.places -= 1
        if not known.places:
            del self._flows[flow]

    def place(self, flow: str, item: T, cost: float) -> None:
        """Give ``item`` a turn in a place that was reserved."""
        known = self._flows[flow]
        if not known.items:
            known.cost = cost
        elif known.cost != cost:
            known.cost = None
        known.items[item] = cost
        self._append(known, self._finish(known, cost, known.weight), cost)

    def put(self, flow: str, item: T, cost: float) -> bool:
        """Add ``item`` at the end of its flow. False when the flow may have no more here."""
        if not self.reserve(flow):
            return False
        self.place(flow, item, cost)
        return True

    def head(self) -> tuple[T, float] | None:
        """The next item and its cost; None when there is none."""
        return next(iter(self.turns[0][2].items.items())) if self.turns else None

    def take(self) -> T | None:
        """Remove and return the next item; None when there is none."""
        if not self.turns:
            return None
        time, _, flow = self.turns.pop(0)
        self._odd -= self._costs.pop(0) != 1.0
        flow.slots.popleft()
        item, _ = flow.items.popitem(last=False)
        self.release(flow.name)
        # With nobody here nobody can be behind: starting again keeps the numbers small.
        self._time = time if self.turns else 0.0
        return item

    def remove(self, flow: str, item: T) -> bool:
        """Take ``item`` out, and its place. Those behind it in its flow move up. False: it has no turn here (any more)."""
        known = self._flows.get(flow)
        if known is None or item not in known.items:
            return False
        self._withdraw(known, item)
        self.release(flow)
        return True

    def unplace(self, flow: str) -> list[T]:
        """Take back all turns of ``flow``, keeping its places. The items, in their order."""
        known = self._flows[flow]
        while known.slots:
            self._drop(known.slots.pop())
        items = list(known.items)
        known.items.clear()
        return items

    def ahead(self, flow: str, cost: float) -> float:
        """The cost of all that would go before an item of ``cost`` that came to ``flow`` now."""
        if not self.turns:
            return 0.0
        known = self._flows.get(flow)
        finish = self._finish(known, cost, self._weights.get(flow, 1.0))
        count = bisect_right(self.turns, (finish, math.inf))
        return sum(self._costs[:count]) if self._odd else float(count)

    def _finish(self, known: Flow[T] | None, cost: float, weight: float) -> float:
        start = known.slots[-1][0] if known is not None and known.slots else self._time
        return start + cost / weight

    def _append(self, flow: Flow[T], finish: float, cost: float) -> None:
        number = self._number
        self._number = number + 1
        turn = (finish, number, flow)
        index = bisect_right(self.turns, turn)
        self.turns.insert(index, turn)
        self._costs.insert(index, cost)
        self._odd += cost != 1.0
        flow.slots.append((finish, number))

    def _drop(self, slot: tuple[float, int]) -> None:
        index = bisect_left(self.turns, slot)
        del self.turns[index]
        self._odd -= self._costs.pop(index) != 1.0

    def _withdraw(self, flow: Flow[T], item: T) -> None:
        if flow.cost is not None:
            del flow.items[item]
            self._drop(flow.slots.pop())  # they are all alike: it is the last one that is left over
            return
        finish = flow.slots[0][0] - next(iter(flow.items.values())) / flow.weight
        del flow.items[item]
        while flow.slots:
            self._drop(flow.slots.pop())
        for cost in flow.items.values():
            finish += cost / flow.weight
            self._append(flow, finish, cost)
