"""How old a request is: by two clocks that need not agree, the difference learnt."""

from __future__ import annotations

import pytest

from dispatch.serving.plain import WINDOW_S, ClockOffset


@pytest.mark.parametrize("skew", [0.0, 40.0, -40.0, 86_400.0])
def test_clocks_that_disagree_make_nothing_old(skew: float) -> None:
    ages = ClockOffset()
    assert ages.age("one", 0.01 + skew, 0.0, backlog=False) == 0.0
    for number in range(100):
        assert ages.age("one", 0.012 + skew, number * 0.1, backlog=False) == pytest.approx(0.002)


@pytest.mark.parametrize("skew", [0.0, 40.0, -40.0])
def test_what_came_again_is_as_old_as_it_is(skew: float) -> None:
    ages = ClockOffset()
    ages.age("one", 0.01 + skew, 0.0, backlog=False)
    assert ages.age("one", 12.01 + skew, 12.0, backlog=False) == pytest.approx(12.0)
    assert ages.age("one", 30.01 + skew, 30.0, backlog=True) == pytest.approx(30.0)


def test_what_waited_before_anything_is_known_is_taken_at_its_word_and_teaches_nothing() -> None:
    ages = ClockOffset()
    assert ages.age("one", 300.0, 0.0, backlog=True) == 300.0
    assert ages.age("one", 200.0, 0.0, backlog=True) == 200.0
    assert ages.age("one", -40.0, 0.0, backlog=True) == 0.0, (
        "a clock behind the sender's makes nothing younger than new"
    )
    assert len(ages) == 0


def test_a_clock_that_is_set_is_believed_after_two_windows() -> None:
    ages = ClockOffset()
    now = 0.0
    while now < 3 * WINDOW_S:
        age = ages.age("one", 0.01 if now < WINDOW_S else 40.01, now, backlog=False)
        if now < WINDOW_S:
            assert age == 0.0
        elif now < 2 * WINDOW_S:
            assert age == pytest.approx(40.0)
        now += 1.0
    assert ages.age("one", 40.01, now, backlog=False) == 0.0


def test_a_window_ends_with_the_best_of_the_one_before() -> None:
    ages = ClockOffset()
    ages.age("one", 0.01, 0.0, backlog=False)
    assert ages.age("one", 5.01, WINDOW_S, backlog=False) == pytest.approx(5.0)


def test_who_was_silent_for_long_is_learnt_anew() -> None:
    ages = ClockOffset()
    ages.age("one", 0.0, 0.0, backlog=False)
    assert ages.age("one", 7.0, 2 * WINDOW_S, backlog=False) == 0.0


def test_each_sender_has_a_clock_of_its_own_and_there_are_only_so_many() -> None:
    ages = ClockOffset(max_peers=2)
    for number, name in enumerate(("one", "two", "one", "three")):
        ages.age(name, 10.0 * len(name), float(number), backlog=False)
    assert len(ages) == 2
    assert ages.age("one", 35.0, 4.0, backlog=False) == 5.0, "it was heard of after the one that went"
    assert ages.age("two", 35.0, 4.0, backlog=False) == 0.0
