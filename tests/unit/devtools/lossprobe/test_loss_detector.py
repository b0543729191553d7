"""Which calls a later one has overtaken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatch.devtools.lossprobe import LossDetector


def test_a_call_is_granted_a_while_after_it_was_overtaken() -> None:
    detector = LossDetector(grace=0.5)
    assert detector.find_lost_below(10.0) == 0
    detector.record_reply(7)
    assert detector.find_lost_below(10.1) == 0
    assert detector.find_lost_below(10.59) == 0
    assert detector.find_lost_below(10.6) == 7


def test_while_nothing_is_answered_nothing_is_overtaken() -> None:
    detector = LossDetector(grace=0.5)
    detector.record_reply(3)
    assert [detector.find_lost_below(now) for now in (0.0, 1.0, 2.0, 100.0)] == [0, 3, 3, 3]


@given(st.lists(st.integers(0, 60) | st.none(), max_size=30), st.integers(0, 20))
def test_exactly_those_are_lost_that_were_overtaken_long_enough_ago(arrivals: list[int | None], grace: int) -> None:
    """Whatever arrives when (None: never), in whatever order: asked at each tick of a clock."""
    detector = LossDetector(grace)
    for now in range(90):
        for number, at in enumerate(arrivals, 1):
            if at == now:
                detector.record_reply(number)
        ago = [number for number, at in enumerate(arrivals, 1) if at is not None and at <= now - grace]
        assert detector.find_lost_below(now) == max(ago, default=0)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=40), st.integers(0, 20))
def test_where_order_is_kept_only_lost_ones_are_given_up_and_all_but_the_last(
    steps: list[tuple[int, bool]], grace: int
) -> None:
    detector, now, waiting, lost = LossDetector(grace), 0, set(range(1, len(steps) + 1)), set()
    for number, (later, vanishes) in enumerate(steps, 1):
        now += later
        if vanishes:
            lost.add(number)
        else:
            waiting.discard(number)
            detector.record_reply(number)
        assert {each for each in waiting if each < detector.find_lost_below(now)} <= lost
    detector.find_lost_below(now)
    last = max(set(range(1, len(steps) + 1)) - lost, default=0)
    assert {each for each in waiting if each < detector.find_lost_below(now + grace)} == {
        each for each in lost if each < last
    }
