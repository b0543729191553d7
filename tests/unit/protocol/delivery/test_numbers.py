"""Numbers that arrive late, twice or never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.protocol.delivery import ReceivedPackets, SeenNumbers

NUMBERS = st.lists(st.integers(0, 40), max_size=80)


def add(*numbers: int, most: int = 32) -> ReceivedPackets:
    received = ReceivedPackets(most)
    for number in numbers:
        received.add(number)
    return received


@given(NUMBERS)
def test_each_number_counts_once(numbers: list[int]) -> None:
    received, seen = ReceivedPackets(100), set()
    for number in numbers:
        assert received.add(number) == (number not in seen)
        seen.add(number)
    expected = [number for low, high in received.ranges for number in range(low, high + 1)]
    assert expected == sorted(seen)
    assert all(first[1] + 1 < second[0] for first, second in zip(received.ranges, received.ranges[1:], strict=False))


@given(NUMBERS, st.integers(1, 4))
def test_with_few_ranges_no_number_counts_twice(numbers: list[int], most: int) -> None:
    received, counted = ReceivedPackets(most), []
    for number in numbers:
        if received.add(number):
            counted.append(number)
        assert len(received.ranges) <= most
    assert len(counted) == len(set(counted))


@given(NUMBERS, st.integers(0, 45))
def test_a_forgotten_number_does_not_count_again(numbers: list[int], below: int) -> None:
    received = add(*numbers, most=100)
    largest = received.largest
    received.forget(below)
    assert received.largest == largest
    for number in numbers:
        if number < below or number in numbers:
            assert not received.add(number)


def test_ranges_are_reported_newest_first() -> None:
    assert add(0, 1, 2, 5, 9, 8).newest_first() == [8, 9, 5, 5, 0, 2]
    assert add().newest_first() == []


def test_a_range_grows_in_the_middle_and_joins_its_neighbours() -> None:
    received = add(0, 3, 6)
    assert received.add(4)
    assert received.ranges == [[0, 0], [3, 4], [6, 6]]
    assert received.add(5)
    assert received.ranges == [[0, 0], [3, 6]]
    assert received.add(2)
    assert received.ranges == [[0, 0], [2, 6]]
    assert received.add(1)
    assert received.ranges == [[0, 6]]


def test_the_oldest_range_is_dropped_and_what_is_below_counts_as_a_duplicate() -> None:
    received = add(0, 2, 4, most=2)
    assert received.ranges == [[2, 2], [4, 4]]
    assert not received.add(0)
    assert received.add(1) is True
    assert received.ranges == [[1, 2], [4, 4]]


def test_an_inserted_range_may_be_the_one_too_many() -> None:
    received = add(10, 20, most=2)
    assert received.add(15)
    assert received.ranges == [[15, 15], [20, 20]]
    assert not received.add(9)
    assert received.add(16)


def test_largest() -> None:
    assert add().largest == -1
    assert add(3, 1).largest == 3


def test_forgetting_keeps_the_highest_number() -> None:
    received = add(0, 1, 2, 5)
    received.forget(2)
    assert received.ranges == [[2, 2], [5, 5]]
    received.forget(5)
    assert received.ranges == [[5, 5]]
    received.forget(3)  # an older acknowledgement
    assert not received.add(4)
    assert received.add(6)


def test_a_number_below_everything_that_was_forgotten_is_a_duplicate() -> None:
    received = add(0, 1, 2)
    received.forget(2)
    received.clear()
    assert not received.add(1)
    assert received.ranges == []
    assert received.add(2)


def test_the_number_after_a_dropped_range_is_new() -> None:
    received = add(10, 20, most=2)
    assert received.add(12)
    assert received.ranges == [[12, 12], [20, 20]]
    assert received.add(11)
    assert received.ranges == [[11, 12], [20, 20]]


def test_forgetting_cuts_a_range() -> None:
    received = add(0, 1, 2, 3)
    received.forget(2)
    assert received.ranges == [[2, 3]]
    received.forget(3)
    assert received.ranges == [[3, 3]]
    assert not received.add(2)


def test_clearing_drops_all_numbers() -> None:
    received = add(0, 1)
    received.clear()
    assert received.ranges == []


@given(NUMBERS)
def test_seen_numbers_count_once_and_need_no_memory_without_gaps(numbers: list[int]) -> None:
    seen, model = SeenNumbers(), set()
    for number in numbers:
        assert (number in seen) == (number in model)
        assert seen.add(number) == (number not in model)
        model.add(number)
        assert seen.floor == next(each for each in range(100) if each not in model)
        assert seen.above == {each for each in model if each > seen.floor}
    for number in range(max(model, default=0)):
        seen.add(number)
    assert seen.above == set()


@pytest.mark.parametrize("number", [0, 5])
def test_a_number_is_seen_once(number: int) -> None:
    seen = SeenNumbers()
    assert number not in seen
    assert seen.add(number)
    assert number in seen
    assert not seen.add(number)
