"""The figures of a breaker, and each of its four rules at its exact boundary.

Guards against an outage at low traffic that no share ever sees, against runs of failures that time alone wears away, and
against a quiet night taken for an outage."""

from __future__ import annotations

import pytest

from dispatch.resilience.breaker import BreakerRules, FailureRules

ALL_OFF = {"consecutive_failures": None, "no_success_duration": None}


def feed(rules: FailureRules, pattern: str, now: float = 0.0, gap: float = 0.0) -> list[str | None]:
    """Calls as letters: ``.`` well, ``F`` failed, ``S`` slow, ``B`` both. Returns the verdict after each."""
    verdicts = []
    for each in pattern:
        failed, slow = each in "FB", each in "SB"
        rules.add(failed, slow, now)
        verdicts.append(rules.find_violation(failed, slow, now))
        now += gap
    return verdicts


def test_failure_rate_opens_at_half_of_twenty_calls() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    assert feed(rules, "." * 10 + "F" * 10) == [None] * 19 + ["failure-rate"]
    assert rules.failure_rate() == 0.5
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "." * 11 + "F" * 10) == [None] * 21, "10 of 21"
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "F" * 19) == [None] * 19, "too few to tell"


def test_fast_success_violates_no_rule() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    assert feed(rules, "F" * 19 + ".") == [None] * 20
    assert rules.failure_rate() == 0.95
    assert feed(rules, "S") == [None], "it was slow, but most are not"
    assert feed(rules, "F") == ["failure-rate"]


@pytest.mark.parametrize("rate", [0.07, 0.14, 0.28, 0.29, 0.55, 0.57, 0.58])
def test_failure_rate_threshold_is_exact(rate: float) -> None:
    """Shares such as 0.07 times 100 are not whole numbers in a computer."""
    failures = round(rate * 100)
    rules = FailureRules(BreakerRules(**ALL_OFF, failure_rate=rate, min_calls=100))
    assert feed(rules, "." * (100 - failures) + "F" * failures) == [None] * 99 + ["failure-rate"]


def test_count_window_detects_failures_that_the_time_window_misses() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    verdicts = feed(rules, "." * 1000 + "F" * 50, gap=0.001)
    assert verdicts == [None] * 1049 + ["failure-rate"]


def test_time_window_detects_failures_that_the_count_window_misses() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    assert feed(rules, "." * 100, gap=1.0) == [None] * 100
    assert feed(rules, "F" * 20, now=200.0, gap=0.1) == [None] * 19 + ["failure-rate"]
    assert rules.failure_rate() == 1.0


def test_window_below_min_calls_is_not_judged() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    feed(rules, "." * 100, now=0.0)
    feed(rules, "F" * 19, now=200.0)
    assert rules.failure_rate() == 0.19, "nineteen in thirty seconds are too few, so the last hundred tell"
    rules = FailureRules(BreakerRules(**ALL_OFF, window_calls=5, min_calls=5))
    assert rules.failure_rate() is None
    assert rules.slow_call_rate() is None
    feed(rules, "....")
    assert (rules.failure_rate(), rules.slow_call_rate()) == (None, None)
    feed(rules, ".")
    assert (rules.failure_rate(), rules.slow_call_rate()) == (0.0, 0.0)


def test_slow_call_rate_opens() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    assert feed(rules, "." * 4 + "S" * 16) == [None] * 19 + ["slow-call-rate"]
    assert rules.slow_call_rate() == 0.8
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "." * 5 + "S" * 16) == [None] * 21
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "S" * 19) == [None] * 19
    rules = FailureRules(BreakerRules(**ALL_OFF))
    feed(rules, "." * 100)
    assert feed(rules, "S" * 20, now=200.0) == [None] * 19 + ["slow-call-rate"], "by time"
    rules = FailureRules(BreakerRules(**ALL_OFF, failure_rate=1))
    assert feed(rules, "." * 4 + "B" * 16)[-1] == "slow-call-rate", "slow failures are slow, too"


def test_fast_call_does_not_violate_the_slow_call_rate() -> None:
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "S" * 19 + ".F") == [None] * 21
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "S" * 19 + ".FS") == [None] * 21 + ["slow-call-rate"]


def test_rate_is_the_higher_one_of_both_windows() -> None:
    for letter, share in (("F", FailureRules.failure_rate), ("S", FailureRules.slow_call_rate)):
        rules = FailureRules(BreakerRules(**ALL_OFF))
        feed(rules, letter * 19 + "." * 21)
        feed(rules, "." * 20, now=200.0)
        assert share(rules) == 19 / 60, "of the last hundred; none of the last thirty seconds"
        rules = FailureRules(BreakerRules(**ALL_OFF))
        feed(rules, "." * 40)
        feed(rules, letter * 2 + "." * 18, now=200.0)
        assert share(rules) == 2 / 20, "of the last thirty seconds"


def test_consecutive_failures_open_at_any_rate_of_calls() -> None:
    rules = FailureRules(BreakerRules(no_success_duration=None))
    assert feed(rules, "F" * 9 + "." + "F" * 9, gap=3600.0) == [None] * 19
    assert feed(rules, "F") == ["consecutive-failures"]
    assert feed(FailureRules(BreakerRules(consecutive_failures=1)), "F") == ["consecutive-failures"]
    assert feed(FailureRules(BreakerRules(no_success_duration=None)), "FFFFFFFFFS") == [None] * 10
    assert feed(FailureRules(BreakerRules(no_success_duration=None)), "FFFFFFFFFSF") == [None] * 11, (
        "slow is a success, too"
    )


def test_only_failures_for_a_minute_open() -> None:
    assert feed(FailureRules(BreakerRules()), "FFF", gap=30.0) == [None, None, "no-success"]
    assert feed(FailureRules(BreakerRules()), "FFF", gap=29.999) == [None, None, None]
    assert feed(FailureRules(BreakerRules()), "FF", gap=300.0) == [None, None], "two may be one hiccup"
    assert feed(FailureRules(BreakerRules()), "FF.FF", gap=300.0) == [None] * 5
    assert feed(FailureRules(BreakerRules(no_success_failures=1, no_success_duration=1)), "FF", gap=1.0) == [
        None,
        "no-success",
    ]


def test_idle_time_does_not_count_as_time_without_success() -> None:
    rules = FailureRules(BreakerRules())
    feed(rules, ".", now=0.0)
    assert feed(rules, "FFFFF", now=40_000.0, gap=1.0) == [None] * 5


def test_plain_successes_count_as_if_added_one_by_one() -> None:
    rules = FailureRules(BreakerRules())
    feed(rules, "F" * 9)
    assert rules.slice_end > 0
    rules.pending_successes += 30
    assert feed(rules, "F" * 9) == [None] * 9, "they ended the run"
    assert rules.failure_rate() == 18 / 48
    rules.pending_successes += 100
    rules.refresh(1.0)
    assert (rules.pending_successes, rules.failure_rate()) == (0, 18 / 148)
    rules.refresh(40.0)
    assert rules.failure_rate() == 0.0, "the last hundred; those of the last thirty seconds are too few"


def test_refresh_sets_the_end_of_the_current_slice() -> None:
    rules = FailureRules(BreakerRules())
    rules.refresh(50.0)
    assert rules.slice_end == float("-inf"), "nothing was counted yet"
    feed(rules, "F", now=50.0)
    assert rules.slice_end == 51.0
    rules.refresh(52.0)
    assert rules.slice_end == 54.0


def test_stopped_rules_keep_their_rates_and_count_no_calls() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    feed(rules, "F" * 10)
    rules.pending_successes += 10
    rules.stop()
    rules.refresh(1e6)
    assert (rules.slice_end, rules.pending_successes, rules.failure_rate()) == (float("-inf"), 0, 0.5)
    rules.clear()
    assert (rules.slice_end, rules.failure_rate()) == (float("-inf"), None)


def test_cleared_rules_forget_all_calls() -> None:
    rules = FailureRules(BreakerRules())
    feed(rules, "F" * 9)
    rules.pending_successes += 5
    rules.clear()
    assert rules.pending_successes == 0
    assert feed(rules, "F" * 9, now=100.0) == [None] * 9
    assert rules.failure_rate() is None


def test_reconfiguration_keeps_windows_of_unchanged_size() -> None:
    rules = FailureRules(BreakerRules())
    assert rules.slow_after == float("inf")
    feed(rules, "F" * 9, now=1.0)
    rules.reconfigure(BreakerRules(slow_call_duration=2, consecutive_failures=11))
    assert (rules.slow_after, rules.slice_end) == (2, 3.0)
    assert feed(rules, "FF", now=1.0) == [None, "consecutive-failures"], "the run goes on"
    rules.pending_successes += 20
    rules.reconfigure(BreakerRules(window_calls=50, slow_call_duration=2))
    assert rules.pending_successes == 0
    assert rules.failure_rate() == 11 / 31, "by time, which is as it was"
    rules.reconfigure(BreakerRules(window_calls=50, window_duration=10))
    assert (rules.failure_rate(), rules.slice_end, rules.slow_after) == (None, float("-inf"), float("inf"))
    assert feed(rules, "F", now=1.0) == [None]
    assert rules.slice_end == 2.0


def test_a_window_that_stays_as_it_is_keeps_its_calls() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    feed(rules, "F" * 8 + "." * 32)
    rules.reconfigure(BreakerRules(**ALL_OFF, window_duration=10))
    assert rules.failure_rate() == 0.2
    rules.reconfigure(BreakerRules(**ALL_OFF, window_duration=10, window_calls=30))
    assert rules.failure_rate() is None
    feed(rules, "F" * 5 + "." * 30, gap=10.0)
    assert rules.failure_rate() == 0.0, "five of the last thirty-five, none of the last thirty"


def test_consecutive_failures_survive_new_windows_until_a_success() -> None:
    rules = FailureRules(BreakerRules())
    feed(rules, "F" * 9)
    rules.reconfigure(BreakerRules(window_calls=50, window_duration=10))
    assert feed(rules, "F") == ["consecutive-failures"]
    rules = FailureRules(BreakerRules())
    feed(rules, "F" * 9)
    rules.pending_successes += 1
    rules.reconfigure(BreakerRules(window_calls=50, window_duration=10))
    assert feed(rules, "F") == [None]
