"""Two large answers at a time, or one: learnt from what had to be sent again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.messaging.flow.credit import CREDIT_BYTES, MAX_CREDIT_BYTES, MESSAGE_OVERHEAD, Credit
from dispatch.messaging.flow.doubling import LOSS_OVER, RESTING, Doubling


def of(size: int, answers: int = 200) -> Doubling:
    doubling = Doubling()
    for _ in range(answers):
        doubling.received(size, again=False)
    return doubling


@pytest.mark.parametrize(("size", "at_a_time"), [(60_000, 2), (100_000, 2), (200_000, 2), (210_000, 1), (1_000_000, 1)])
def test_two_large_answers_go_at_a_time_and_one_of_the_largest(size: int, at_a_time: int) -> None:
    credit = Credit(of(size).credit(CREDIT_BYTES))
    gone = 0
    while credit.open:
        credit.send(size + MESSAGE_OVERHEAD)
        gone += 1
    assert gone == at_a_time


@pytest.mark.parametrize("size", [0, 120, 10_000, 37_000])
def test_small_answers_keep_the_credit_that_loses_none(size: int) -> None:
    assert of(size).credit(CREDIT_BYTES) == CREDIT_BYTES


def test_instances_that_share_a_credit_keep_their_shares() -> None:
    assert of(100_000).credit(CREDIT_BYTES // 2) == CREDIT_BYTES // 2


def test_too_many_losses_mean_one_at_a_time_for_a_while() -> None:
    doubling = of(100_000)
    doubled = doubling.credit(CREDIT_BYTES)
    for _ in range(5):
        doubling.received(100_000, again=True)
        assert doubling.credit(CREDIT_BYTES) == doubled, "five of 64 are not many"
    doubling.received(100_000, again=True)
    assert doubling.credit(CREDIT_BYTES) == CREDIT_BYTES
    for _ in range(RESTING - 1):
        doubling.received(100_000, again=False)
        assert doubling.credit(CREDIT_BYTES) == CREDIT_BYTES
    doubling.received(100_000, again=False)
    assert doubling.credit(CREDIT_BYTES) == doubled, "then it is tried again"


def test_losses_while_one_goes_at_a_time_do_not_count_against_two() -> None:
    doubling = of(100_000)
    for _ in range(6 + RESTING):
        doubling.received(100_000, again=True)
    assert doubling.credit(CREDIT_BYTES) > CREDIT_BYTES
    doubling.received(100_000, again=True)
    assert doubling.credit(CREDIT_BYTES) > CREDIT_BYTES


def test_a_rare_loss_changes_nothing() -> None:
    doubling = of(100_000)
    for _ in range(20):
        for _ in range(2 * LOSS_OVER):
            doubling.received(100_000, again=False)
        doubling.received(100_000, again=True)
        assert doubling.credit(CREDIT_BYTES) > CREDIT_BYTES


@given(st.lists(st.tuples(st.integers(0, 5_000_000), st.booleans())), st.integers(1, CREDIT_BYTES))
def test_a_credit_is_never_less_than_the_share_nor_more_than_a_service_grants(
    answers: list[tuple[int, bool]], share: int
) -> None:
    doubling = Doubling()
    for size, again in answers:
        doubling.received(size, again=again)
        assert share <= doubling.credit(share) <= MAX_CREDIT_BYTES
