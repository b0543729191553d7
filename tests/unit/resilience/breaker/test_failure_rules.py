"""The figures of a breaker, and each of its four rules at its exact boundary.

Guards against an outage at low traffic that no share ever sees, against runs of failures that time alone wears away, and
against a quiet night taken for an outage."""

from __future__ import annotations

import pytest

from dispatch.resilience.breaker.failure_rules import Tally
from dispatch.resilience.breaker.rules import BreakerRules

ALL_OFF = {"consecutive_failures": None, "no_success_duration": None}


def feed(tally: Tally, pattern: str, now: float = 0.0, gap: float = 0.0) -> list[str | None]:
    """Calls as letters: ``.`` well, ``F`` failed, ``S`` slow, ``B`` both. Returns the verdict after each."""
    verdicts = []
    for each in pattern:
        failed, slow = each in "FB", each in "SB"
        tally.add(failed, slow, now)
        verdicts.append(tally.trouble(failed, slow, now))
        now += gap
    return verdicts


def test_half_of_twenty_is_trouble() -> None:
    tally = Tally(BreakerRules(**ALL_OFF))
    assert feed(tally, "." * 10 + "F" * 10) == [None] * 19 + ["failure-rate"]
    assert tally.failure_rate() == 0.5
    assert feed(Tally(BreakerRules(**ALL_OFF)), "." * 11 + "F" * 10) == [None] * 21, "10 of 21"
    assert feed(Tally(BreakerRules(**ALL_OFF)), "F" * 19) == [None] * 19, "too few to tell"


def test_a_call_that_was_well_is_no_trouble_whatever_came_before() -> None:
    tally = Tally(BreakerRules(**ALL_OFF))
    assert feed(tally, "F" * 19 + ".") == [None] * 20
    assert tally.failure_rate() == 0.95
    assert feed(tally, "S") == [None], "it was slow, but most are not"
    assert feed(tally, "F") == ["failure-rate"]


@pytest.mark.parametrize("rate", [0.07, 0.14, 0.28, 0.29, 0.55, 0.57, 0.58])
def test_a_share_is_met_exactly(rate: float) -> None:
    """Shares such as 0.07 times 100 are not whole numbers in a computer."""
    failures = round(rate * 100)
    tally = Tally(BreakerRules(**ALL_OFF, failure_rate=rate, min_calls=100))
    assert feed(tally, "." * (100 - failures) + "F" * failures) == [None] * 99 + ["failure-rate"]


def test_the_last_hundred_calls_see_what_thirty_seconds_do_not() -> None:
    tally = Tally(BreakerRules(**ALL_OFF))
    verdicts = feed(tally, "." * 1000 + "F" * 50, gap=0.001)
    assert verdicts == [None] * 1049 + ["failure-rate"]


def test_thirty_seconds_see_what_the_last_hundred_calls_do_not() -> None:
    tally = Tally(BreakerRules(**ALL_OFF))
    assert feed(tally, "." * 100, gap=1.0) == [None] * 100
    assert feed(tally, "F" * 20, now=200.0, gap=0.1) == [None] * 19 + ["failure-rate"]
    assert tally.failure_rate() == 1.0


def test_too_few_in_a_window_are_not_judged_by_it() -> None:
    tally = Tally(BreakerRules(**ALL_OFF))
    feed(tally, "." * 100, now=0.0)
    feed(tally, "F" * 19, now=200.0)
    assert tally.failure_rate() == 0.19, "nineteen in thirty seconds are too few, so the last hundred tell"
    tally = Tally(BreakerRules(**ALL_OFF, window_calls=5, min_calls=5))
    assert tally.failure_rate() is None
    assert tally.slow_call_rate() is None
    feed(tally, "....")
    assert (tally.failure_rate(), tally.slow_call_rate()) == (None, None)
    feed(tally, ".")
    assert (tally.failure_rate(), tally.slow_call_rate()) == (0.0, 0.0)


def test_most_calls_slow_is_trouble() -> None:
    tally = Tally(BreakerRules(**ALL_OFF))
    assert feed(tally, "." * 4 + "S" * 16) == [None] * 19 + ["slow-call-rate"]
    assert tally.slow_call_rate() == 0.8
    assert feed(Tally(BreakerRules(**ALL_OFF)), "." * 5 + "S" * 16) == [None] * 21
    assert feed(Tally(BreakerRules(**ALL_OFF)), "S" * 19) == [None] * 19
    tally = Tally(BreakerRules(**ALL_OFF))
    feed(tally, "." * 100)
    assert feed(tally, "S" * 20, now=200.0) == [None] * 19 + ["slow-call-rate"], "by time"
    tally = Tally(BreakerRules(**ALL_OFF, failure_rate=1))
    assert feed(tally, "." * 4 + "B" * 16)[-1] == "slow-call-rate", "slow failures are slow, too"


def test_a_call_that_was_not_slow_is_not_judged_by_those_that_were() -> None:
    assert feed(Tally(BreakerRules(**ALL_OFF)), "S" * 19 + ".F") == [None] * 21
    assert feed(Tally(BreakerRules(**ALL_OFF)), "S" * 19 + ".FS") == [None] * 21 + ["slow-call-rate"]


def test_the_higher_share_of_both_windows_is_told() -> None:
    for letter, share in (("F", Tally.failure_rate), ("S", Tally.slow_call_rate)):
        tally = Tally(BreakerRules(**ALL_OFF))
        feed(tally, letter * 19 + "." * 21)
        feed(tally, "." * 20, now=200.0)
        assert share(tally) == 19 / 60, "of the last hundred; none of the last thirty seconds"
        tally = Tally(BreakerRules(**ALL_OFF))
        feed(tally, "." * 40)
        feed(tally, letter * 2 + "." * 18, now=200.0)
        assert share(tally) == 2 / 20, "of the last thirty seconds"


def test_failures_in_a_row_are_trouble_at_any_pace() -> None:
    tally = Tally(BreakerRules(no_success_duration=None))
    assert feed(tally, "F" * 9 + "." + "F" * 9, gap=3600.0) == [None] * 19
    assert feed(tally, "F") == ["consecutive-failures"]
    assert feed(Tally(BreakerRules(consecutive_failures=1)), "F") == ["consecutive-failures"]
    assert feed(Tally(BreakerRules(no_success_duration=None)), "FFFFFFFFFS") == [None] * 10
    assert feed(Tally(BreakerRules(no_success_duration=None)), "FFFFFFFFFSF") == [None] * 11, "slow is a success, too"


def test_nothing_but_failures_for_a_minute_is_trouble() -> None:
    assert feed(Tally(BreakerRules()), "FFF", gap=30.0) == [None, None, "no-success"]
    assert feed(Tally(BreakerRules()), "FFF", gap=29.999) == [None, None, None]
    assert feed(Tally(BreakerRules()), "FF", gap=300.0) == [None, None], "two may be one hiccup"
    assert feed(Tally(BreakerRules()), "FF.FF", gap=300.0) == [None] * 5
    assert feed(Tally(BreakerRules(no_success_failures=1, no_success_duration=1)), "FF", gap=1.0) == [
        None,
        "no-success",
    ]


def test_a_quiet_night_is_not_time_without_a_success() -> None:
    tally = Tally(BreakerRules())
    feed(tally, ".", now=0.0)
    assert feed(tally, "FFFFF", now=40_000.0, gap=1.0) == [None] * 5


def test_plain_successes_count_as_if_added_one_by_one() -> None:
    tally = Tally(BreakerRules())
    feed(tally, "F" * 9)
    assert tally.ends > 0
    tally.plain += 30
    assert feed(tally, "F" * 9) == [None] * 9, "they ended the run"
    assert tally.failure_rate() == 18 / 48
    tally.plain += 100
    tally.look(1.0)
    assert (tally.plain, tally.failure_rate()) == (0, 18 / 148)
    tally.look(40.0)
    assert tally.failure_rate() == 0.0, "the last hundred; those of the last thirty seconds are too few"


def test_looking_says_when_its_part_of_time_ends() -> None:
    tally = Tally(BreakerRules())
    tally.look(50.0)
    assert tally.ends == float("-inf"), "nothing was counted yet"
    feed(tally, "F", now=50.0)
    assert tally.ends == 51.0
    tally.look(52.0)
    assert tally.ends == 54.0


def test_a_stopped_tally_keeps_its_figures_and_counts_no_more() -> None:
    tally = Tally(BreakerRules(**ALL_OFF))
    feed(tally, "F" * 10)
    tally.plain += 10
    tally.stop()
    tally.look(1e6)
    assert (tally.ends, tally.plain, tally.failure_rate()) == (float("-inf"), 0, 0.5)
    tally.clear()
    assert (tally.ends, tally.failure_rate()) == (float("-inf"), None)


def test_a_cleared_tally_remembers_neither_runs_nor_successes() -> None:
    tally = Tally(BreakerRules())
    feed(tally, "F" * 9)
    tally.plain += 5
    tally.clear()
    assert tally.plain == 0
    assert feed(tally, "F" * 9, now=100.0) == [None] * 9
    assert tally.failure_rate() is None


def test_new_settings_keep_what_they_can() -> None:
    tally = Tally(BreakerRules())
    assert tally.usual == float("inf")
    feed(tally, "F" * 9, now=1.0)
    tally.reconfigure(BreakerRules(slow_call_duration=2, consecutive_failures=11))
    assert (tally.usual, tally.ends) == (2, 3.0)
    assert feed(tally, "FF", now=1.0) == [None, "consecutive-failures"], "the run goes on"
    tally.plain += 20
    tally.reconfigure(BreakerRules(window_calls=50, slow_call_duration=2))
    assert tally.plain == 0
    assert tally.failure_rate() == 11 / 31, "by time, which is as it was"
    tally.reconfigure(BreakerRules(window_calls=50, window_duration=10))
    assert (tally.failure_rate(), tally.ends, tally.usual) == (None, float("-inf"), float("inf"))
    assert feed(tally, "F", now=1.0) == [None]
    assert tally.ends == 2.0


def test_a_window_that_stays_as_it_is_keeps_its_calls() -> None:
    tally = Tally(BreakerRules(**ALL_OFF))
    feed(tally, "F" * 8 + "." * 32)
    tally.reconfigure(BreakerRules(**ALL_OFF, window_duration=10))
    assert tally.failure_rate() == 0.2
    tally.reconfigure(BreakerRules(**ALL_OFF, window_duration=10, window_calls=30))
    assert tally.failure_rate() is None
    feed(tally, "F" * 5 + "." * 30, gap=10.0)
    assert tally.failure_rate() == 0.0, "five of the last thirty-five, none of the last thirty"


def test_a_run_outlives_new_windows_and_ends_with_a_success_before_them() -> None:
    tally = Tally(BreakerRules())
    feed(tally, "F" * 9)
    tally.reconfigure(BreakerRules(window_calls=50, window_duration=10))
    assert feed(tally, "F") == ["consecutive-failures"]
    tally = Tally(BreakerRules())
    feed(tally, "F" * 9)
    tally.plain += 1
    tally.reconfigure(BreakerRules(window_calls=50, window_duration=10))
    assert feed(tally, "F") == [None]
