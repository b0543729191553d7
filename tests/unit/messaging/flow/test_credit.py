"""Credit: what may be on its way unacknowledged, and that the way can always be cleared again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch.messaging.flow.credit import CREDIT_BYTES, MESSAGE_OVERHEAD, Credit
from tests.helpers.state_machine_settings import machine


def test_a_channel_is_never_filled_to_its_mark() -> None:
    # 64 KiB is where a broker begins to drop; a last message may go just below the limit.
    assert CREDIT_BYTES + MESSAGE_OVERHEAD < 64 * 1024


def test_messages_go_while_there_is_credit_whatever_their_own_size() -> None:
    credit = Credit(100)
    assert credit.open
    credit.send(99)
    assert credit.open
    credit.send(10_000)
    assert not credit.open
    assert credit.unacknowledged == 10_099


def test_an_acknowledgement_is_of_everything_up_to_it() -> None:
    credit = Credit(100)
    assert [credit.send(40)[0] for _ in range(3)] == [1, 2, 3]
    assert credit.acknowledge(2)
    assert credit.unacknowledged == 40
    assert not credit.acknowledge(2), "old news"
    assert not credit.acknowledge(1)
    assert credit.acknowledge(99), "a later one says it for all"
    assert credit.unacknowledged == 0
    assert not credit.acknowledge(99), "nothing is out"


def test_what_is_forgiven_is_not_acknowledged_again() -> None:
    credit = Credit(100)
    first, _ = credit.send(100)
    credit.forgive()
    assert credit.open
    second, _ = credit.send(30)
    assert second == first + 1
    assert not credit.acknowledge(first), "the late acknowledgement of what was forgiven"
    assert credit.unacknowledged == 30


def test_a_withdrawn_message_no_longer_counts() -> None:
    credit = Credit(100)
    first, second = credit.send(30)[0], credit.send(80)[0]
    assert not credit.open
    assert credit.withdraw(first)
    assert credit.unacknowledged == 80
    assert not credit.withdraw(first)
    assert credit.acknowledge(second)
    assert not credit.withdraw(second), "it has arrived"


def test_when_a_marked_message_is_withdrawn_a_later_one_is_marked() -> None:
    credit = Credit(100)
    assert not credit.send(40)[1]
    marked, due = credit.send(20)
    assert due
    unmarked = credit.send(5)[0]
    assert credit.withdraw(marked)
    assert credit.send(10)[1], "nothing else asks for the acknowledgement of what is out"
    assert credit.withdraw(unmarked)
    assert credit.unacknowledged == 50


def test_a_withdrawn_message_brings_no_mark_nearer() -> None:
    credit = Credit(100)
    assert credit.send(60)[1]
    assert credit.withdraw(credit.send(20)[0])
    assert not credit.send(10)[1], "25 bytes without a mark are a quarter of the credit"


def test_a_large_message_is_marked_itself() -> None:
    assert Credit(100).send(100)[1]
    assert not Credit(100).send(10)[1]


def test_marks_are_few() -> None:
    credit = Credit(10_000)
    marks = 0
    for _ in range(1_000):
        sequence, due = credit.send(100)
        if due:
            marks += 1
            credit.acknowledge(sequence)
    assert 15 <= marks <= 40, "an acknowledgement for each half of the credit, more or less"


@pytest.mark.parametrize("limit", [0, -1])
def test_no_credit_at_all_is_a_mistake(limit: int) -> None:
    with pytest.raises(ValueError, match="one byte at least"):
        Credit(limit)


class CreditMachine(RuleBasedStateMachine):
    """Against a list of what is out."""

    def __init__(self) -> None:
        super().__init__()
        self.credit = Credit(100)
        self.out: list[tuple[int, int, bool]] = []
        self.count = 0

    @precondition(lambda self: self.credit.open)
    @rule(size=st.integers(1, 150))
    def send(self, size: int) -> None:
        sequence, due = self.credit.send(size)
        self.count += 1
        assert sequence == self.count
        self.out.append((sequence, size, due))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        upto = data.draw(st.integers(self.out[0][0], self.count))
        assert self.credit.acknowledge(upto)
        self.out = [sent for sent in self.out if sent[0] > upto]

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def withdraw(self, data: Any) -> None:
        sent = data.draw(st.sampled_from(self.out))
        assert self.credit.withdraw(sent[0])
        assert not self.credit.withdraw(sent[0])
        self.out.remove(sent)

    @rule(back=st.integers(0, 20))
    def acknowledge_again(self, back: int) -> None:
        upto = (self.out[0][0] if self.out else self.count + 1) - 1 - back
        assert not self.credit.acknowledge(upto)

    @rule()
    def forgive(self) -> None:
        self.credit.forgive()
        self.out = []

    @rule(limit=st.sampled_from([50, 100, 200]))
    def change(self, limit: int) -> None:
        self.credit.limit = limit

    @invariant()
    def the_books_are_right(self) -> None:
        assert self.credit.unacknowledged == sum(size for _, size, _ in self.out)
        assert self.credit.open == (self.credit.unacknowledged < self.credit.limit)


class MarkMachine(RuleBasedStateMachine):
    """A sender that hears only of what it marked, as it is in life: it never waits for what nobody will say."""

    def __init__(self) -> None:
        super().__init__()
        self.credit = Credit(100)
        self.marked: list[int] = []
        self.sent: list[int] = []

    @precondition(lambda self: self.credit.open)
    @rule(size=st.integers(1, 150))
    def send(self, size: int) -> None:
        sequence, due = self.credit.send(size)
        self.sent.append(sequence)
        if due:
            self.marked.append(sequence)

    @precondition(lambda self: self.marked)
    @rule()
    def hear(self) -> None:
        upto = self.marked.pop(0)
        self.credit.acknowledge(upto)
        self.sent = [sequence for sequence in self.sent if sequence > upto]

    @invariant()
    def something_is_marked_when_nothing_may_go(self) -> None:
        assert self.credit.open or self.marked


TestCreditMachine = CreditMachine.TestCase
TestCreditMachine.settings = machine(60, 40)
TestMarkMachine = MarkMachine.TestCase
TestMarkMachine.settings = machine(60, 40)
