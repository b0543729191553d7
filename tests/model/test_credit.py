"""Credit against a naive account, with acknowledgements as a network brings them: late, twice, out of order, or never."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch.messaging.flow.credit import CREDIT_BYTES, MESSAGE_OVERHEAD, Credit
from tests.helpers.state_machine_settings import machine


class NetworkMachine(RuleBasedStateMachine):
    """One sender, one receiver, and what is between them. ``marked``: the numbers whose acknowledgement was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.credit = Credit(1_000)
        self.sizes: dict[int, int] = {}
        self.marked: list[int] = []
        self.heard = 0
        self.sequence = 0

    @precondition(lambda self: self.credit.open)
    @rule(size=st.one_of(st.integers(1, 40), st.integers(1, 600), st.integers(1, 5_000)))
    def send(self, size: int) -> None:
        sequence, due = self.credit.send(size)
        self.sequence += 1
        assert sequence == self.sequence
        self.sizes[sequence] = size
        if due:
            self.marked.append(sequence)

    @precondition(lambda self: self.sequence)
    @rule(data=st.data())
    def hear_of_any(self, data: Any) -> None:
        """A reply proves any one of them, in any order, marked or not, and as often as it likes."""
        self._hear(data.draw(st.integers(1, self.sequence)))

    @precondition(lambda self: self.marked)
    @rule(data=st.data(), again=st.booleans())
    def hear_of_a_marked_one(self, data: Any, again: bool) -> None:
        sequence = data.draw(st.sampled_from(self.marked))
        self._hear(sequence)
        if again:
            self._hear(sequence)

    @rule(sequence=st.sampled_from([0, -1, -(10**18)]))
    def hear_nonsense(self, sequence: int) -> None:
        self._hear(sequence)

    def _hear(self, sequence: int) -> None:
        news = sequence > self.heard and any(out > self.heard for out in self.sizes if out <= sequence)
        assert self.credit.acknowledge(sequence) == news
        if news:
            self.heard = sequence

    def _out(self) -> list[int]:
        return [sequence for sequence in self.sizes if sequence > self.heard]

    @invariant()
    def the_account_is_right(self) -> None:
        assert self.credit.unacknowledged == sum(self.sizes[sequence] for sequence in self._out()) >= 0

    @invariant()
    def when_nothing_may_go_a_marked_one_is_out(self) -> None:
        assert self.credit.open or any(sequence in self.marked for sequence in self._out())

    def teardown(self) -> None:
        if self._out():
            assert self.credit.acknowledge(self.sequence)
        assert self.credit.unacknowledged == 0
        assert self.credit.open


TestNetworkMachine = NetworkMachine.TestCase
TestNetworkMachine.settings = machine(100, 50)


@given(st.integers(1, 100_000), st.lists(st.integers(0, 1_000_000), min_size=1, max_size=200))
@settings(deadline=None)
def test_whoever_hears_of_the_marked_ones_only_never_stands_still(limit: int, payloads: list[int]) -> None:
    """Every message gets out, however small the credit, with nothing but the acknowledgements that were asked for."""
    credit = Credit(limit)
    marked: list[int] = []
    for payload in payloads:
        while not credit.open:
            assert marked, "closed, and nothing that was sent will be acknowledged"
            credit.acknowledge(marked.pop(0))
        before = credit.unacknowledged
        sequence, due = credit.send(payload + MESSAGE_OVERHEAD)
        assert before < limit, "whatever its own size, a message finds less than the limit in front of it"
        if due:
            marked.append(sequence)
    credit.acknowledge(len(payloads))
    assert credit.unacknowledged == 0


@given(st.integers(0, 4_000))
@settings(deadline=None)
def test_a_full_credit_of_small_messages_is_acknowledged_twice_or_thrice(payload: int) -> None:
    credit, marks = Credit(CREDIT_BYTES), 0
    while credit.open:
        marks += credit.send(payload + MESSAGE_OVERHEAD)[1]
    assert 2 <= marks <= 4, "fewer would leave the sender waiting, more would be a message for each"
