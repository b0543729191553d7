"""Deadlines: what is due comes out, in order, once; what has ended never does, and takes no room for long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatch.messaging.rpc.deadline_heap import SLACK, Deadlines

INSTANTS = st.floats(0, 100, allow_nan=False)


@given(st.lists(INSTANTS), INSTANTS)
def test_what_is_due_comes_out_in_order_and_once(instants: list[float], now: float) -> None:
    live = {f"id-{number}": when for number, when in enumerate(instants)}
    deadlines = Deadlines(live)
    for id, when in live.items():
        deadlines.add(when, id)
    due = deadlines.due(now)
    assert due == sorted((when, id) for id, when in live.items() if when <= now)
    assert deadlines.due(now) == []
    assert deadlines.next() == min((when for when in instants if when > now), default=None)


def test_entries_of_what_has_ended_are_cleaned_up() -> None:
    live: set[str] = {"stays"}
    deadlines = Deadlines(live)
    deadlines.add(1e9, "stays")
    for number in range(50 * SLACK):
        live.add(f"{number}")
        deadlines.add(float(number), f"{number}")
        live.discard(f"{number}")
        assert len(deadlines) <= SLACK + 4  # twice the two live ones
    assert deadlines.next() == 1e9


def test_many_live_ones_are_not_looked_at_again_for_each_new_one() -> None:
    looked = 0

    class Live(set[str]):
        def __contains__(self, id: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(id)

    live = Live()
    deadlines = Deadlines(live)
    for number in range(100_000):
        live.add(f"{number}")
        deadlines.add(float(number), f"{number}")
    assert len(deadlines) == 100_000
    assert looked < 200_000


class Machine(RuleBasedStateMachine):
    """Against a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, float] = {}
        self.deadlines = Deadlines(self.live)
        self.count = 0

    @rule(when=INSTANTS)
    def begin(self, when: float) -> None:
        self.count += 1
        self.live[f"{self.count}"] = when
        self.deadlines.add(when, f"{self.count}")

    @rule(which=st.integers(0, 10))
    def end(self, which: int) -> None:
        if self.live:
            del self.live[sorted(self.live)[which % len(self.live)]]

    @rule(now=INSTANTS)
    def look(self, now: float) -> None:
        due = self.deadlines.due(now)
        assert due == sorted((when, id) for id, when in self.live.items() if when <= now)
        for _, id in due:
            del self.live[id]

    @invariant()
    def the_next_is_the_earliest(self) -> None:
        assert self.deadlines.next() == min(self.live.values(), default=None)


TestMachine = Machine.TestCase
