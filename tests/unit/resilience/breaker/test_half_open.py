"""Half-open: places, leases and rounds.

Guards against a herd let through by a half-open breaker (200 of 200 callers in five Python libraries), against probes that
are lost and wedge it for ever, and against one lucky success closing it."""

from __future__ import annotations

from dispatch.resilience.breaker import PROBE_FAILED, PROBE_SLOW, RECOVERED, BreakerRules, HalfOpenCalls

DEFAULT = BreakerRules(half_open_lease=20)


def start_calls(probing: HalfOpenCalls, now: float = 0.0, settings: BreakerRules = DEFAULT) -> list[int]:
    """As many probes as there is room for."""
    numbers = []
    while probing.has_free_permit(now, settings):
        numbers.append(probing.start_call(now, settings))
        assert len(numbers) < 1_000, "places without end"
    return numbers


def passed(probing: HalfOpenCalls, results: int) -> None:
    for _ in range(results):
        assert probing.judge_result(False, False, DEFAULT) is None


def test_round_limits_calls_in_flight() -> None:
    probing = HalfOpenCalls()
    assert start_calls(probing) == [1, 2, 3]
    assert probing.end_call(2, 0.0)
    assert start_calls(probing) == [4]
    assert probing.lost == 0


def test_half_open_call_ends_once() -> None:
    probing = HalfOpenCalls()
    start_calls(probing)
    assert probing.end_call(1, 0.0)
    assert not probing.end_call(1, 0.0)
    assert probing.lost == 0


def test_lease_expires_exactly_at_its_end() -> None:
    probing = HalfOpenCalls()
    start_calls(probing, 100.0)
    assert not probing.has_free_permit(119.999, DEFAULT)
    assert probing.end_call(1, 119.999)
    assert not probing.end_call(2, 120.0)
    assert probing.lost == 1
    assert start_calls(probing, 120.0) == [4, 5, 6]
    assert probing.lost == 2
    assert not probing.end_call(3, 120.0)
    assert probing.lost == 2, "a probe is lost once"


def test_call_that_ends_after_its_lease_is_lost() -> None:
    probing = HalfOpenCalls()
    start_calls(probing)
    assert [probing.end_call(number, DEFAULT.half_open_lease) for number in (1, 2, 3)] == [False] * 3
    assert probing.lost == 3


def test_only_expired_leases_free_their_permits() -> None:
    probing = HalfOpenCalls()
    for start in (0.0, 5.0, 10.0):
        assert probing.has_free_permit(start, DEFAULT)
        probing.start_call(start, DEFAULT)
    assert start_calls(probing, 25.0) == [4, 5]
    assert probing.end_call(3, 25.0)
    assert probing.lost == 2


def test_shorter_lease_applies_at_once() -> None:
    probing = HalfOpenCalls()
    start_calls(probing, 0.0)
    assert not probing.has_free_permit(6.0, DEFAULT)
    probing.shorten_leases(6.0)
    assert start_calls(probing, 6.0, BreakerRules(half_open_lease=6)) == [4, 5, 6]
    assert probing.lost == 3


def test_longer_lease_applies_to_later_calls_only() -> None:
    probing = HalfOpenCalls()
    start_calls(probing, 0.0, BreakerRules(half_open_lease=6))
    probing.shorten_leases(9.0)
    assert not probing.end_call(1, 6.0)
    assert probing.end_call(2, 5.999)
    assert start_calls(probing, 6.0, BreakerRules(half_open_lease=9)) == [4, 5, 6]
    assert probing.end_call(4, 14.999)
    assert not probing.end_call(5, 15.0)


def test_rounds_double_and_the_last_one_closes() -> None:
    probing = HalfOpenCalls()
    sizes = []
    verdict = None
    while verdict is None:
        numbers = start_calls(probing)
        sizes.append(len(numbers))
        for number in numbers:
            assert probing.end_call(number, 0.0)
            assert verdict is None
            verdict = probing.judge_result(False, False, DEFAULT)
    assert (sizes, verdict, probing.round) == ([3, 6, 12], RECOVERED, 2)


def test_single_round_closes() -> None:
    probing, settings = HalfOpenCalls(), BreakerRules(half_open_rounds=1, half_open_calls=1)
    assert start_calls(probing, 0.0, settings) == [1]
    assert probing.judge_result(False, False, settings) == RECOVERED


def test_one_failure_in_the_first_round_opens() -> None:
    for before in range(3):
        probing = HalfOpenCalls()
        passed(probing, before)
        assert probing.judge_result(True, False, DEFAULT) == PROBE_FAILED


def test_failure_rate_decides_in_later_rounds() -> None:
    probing = HalfOpenCalls()
    passed(probing, 3)
    assert probing.judge_result(True, False, DEFAULT) is None
    assert probing.judge_result(True, False, DEFAULT) is None
    assert probing.judge_result(True, False, DEFAULT) == PROBE_FAILED, "three of six"
    probing = HalfOpenCalls()
    passed(probing, 3 + 3)
    assert probing.judge_result(True, False, DEFAULT) is None
    assert probing.judge_result(True, False, DEFAULT) is None
    passed(probing, 1)
    assert probing.round == 2, "four of six were well"
    assert [probing.judge_result(True, False, DEFAULT) for _ in range(6)] == [None] * 5 + [PROBE_FAILED], (
        "six of twelve"
    )


def test_a_last_round_with_some_failures_closes() -> None:
    probing = HalfOpenCalls()
    passed(probing, 3 + 6 + 6)
    assert [probing.judge_result(True, False, DEFAULT) for _ in range(5)] == [None] * 5
    assert probing.judge_result(False, False, DEFAULT) == RECOVERED


def test_slow_calls_are_judged_by_their_rate_in_every_round() -> None:
    settings = BreakerRules(slow_call_rate=0.6)
    probing = HalfOpenCalls()
    assert probing.judge_result(False, True, settings) is None
    assert probing.judge_result(False, True, settings) == PROBE_SLOW, "two of three"
    exactly = BreakerRules(slow_call_rate=1)
    probing = HalfOpenCalls()
    assert [probing.judge_result(False, True, exactly) for _ in range(3)] == [None, None, PROBE_SLOW]
    probing = HalfOpenCalls()
    assert [probing.judge_result(False, slow, settings) for slow in (True, False, False)] == [None] * 3
    assert [probing.judge_result(False, True, settings) for _ in range(4)] == [None, None, None, PROBE_SLOW], (
        "four of six"
    )
    probing = HalfOpenCalls()
    assert [probing.judge_result(False, False, settings) for _ in range(3)] == [None] * 3
    assert [probing.judge_result(False, slow, settings) for slow in (True, True, True, False, False, False)] == [
        None
    ] * 6
    assert probing.round == 2, "half of them slow is below the rate"


def test_slow_failure_counts_as_failure() -> None:
    assert HalfOpenCalls().judge_result(True, True, BreakerRules(slow_call_rate=0.1)) == PROBE_FAILED


def test_fewer_rounds_close_at_the_end_of_the_current_round() -> None:
    probing = HalfOpenCalls()
    passed(probing, 3 + 6)
    assert [probing.judge_result(False, False, BreakerRules(half_open_rounds=1)) for _ in range(12)] == [None] * 11 + [
        RECOVERED
    ]
