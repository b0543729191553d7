"""Half-open: places, leases and rounds.

Guards against a herd let through by a half-open breaker (200 of 200 callers in five Python libraries), against probes that
are lost and wedge it for ever, and against one lucky success closing it."""

from __future__ import annotations

from dispatch.resilience.breaker.half_open import PROBE_FAILED, PROBE_SLOW, RECOVERED, HalfOpenCalls
from dispatch.resilience.breaker.rules import BreakerRules

DEFAULT = BreakerRules(half_open_lease=20)


def begin(probing: HalfOpenCalls, now: float = 0.0, settings: BreakerRules = DEFAULT) -> list[int]:
    """As many probes as there is room for."""
    numbers = []
    while probing.room(now, settings):
        numbers.append(probing.begin(now, settings))
        assert len(numbers) < 1_000, "places without end"
    return numbers


def passed(probing: HalfOpenCalls, results: int) -> None:
    for _ in range(results):
        assert probing.judge(False, False, DEFAULT) is None


def test_a_round_has_places_for_calls_in_flight() -> None:
    probing = HalfOpenCalls()
    assert begin(probing) == [1, 2, 3]
    assert probing.end(2, 0.0)
    assert begin(probing) == [4]
    assert probing.lost == 0


def test_a_probe_ends_once() -> None:
    probing = HalfOpenCalls()
    begin(probing)
    assert probing.end(1, 0.0)
    assert not probing.end(1, 0.0)
    assert probing.lost == 0


def test_a_lease_is_over_at_its_end_and_not_before() -> None:
    probing = HalfOpenCalls()
    begin(probing, 100.0)
    assert not probing.room(119.999, DEFAULT)
    assert probing.end(1, 119.999)
    assert not probing.end(2, 120.0)
    assert probing.lost == 1
    assert begin(probing, 120.0) == [4, 5, 6]
    assert probing.lost == 2
    assert not probing.end(3, 120.0)
    assert probing.lost == 2, "a probe is lost once"


def test_every_probe_that_ends_after_its_lease_is_lost() -> None:
    probing = HalfOpenCalls()
    begin(probing)
    assert [probing.end(number, DEFAULT.half_open_lease) for number in (1, 2, 3)] == [False] * 3
    assert probing.lost == 3


def test_only_those_whose_lease_is_over_lose_their_places() -> None:
    probing = HalfOpenCalls()
    for start in (0.0, 5.0, 10.0):
        assert probing.room(start, DEFAULT)
        probing.begin(start, DEFAULT)
    assert begin(probing, 25.0) == [4, 5]
    assert probing.end(3, 25.0)
    assert probing.lost == 2


def test_a_shorter_lease_is_in_force_at_once() -> None:
    probing = HalfOpenCalls()
    begin(probing, 0.0)
    assert not probing.room(6.0, DEFAULT)
    probing.shorten(6.0)
    assert begin(probing, 6.0, BreakerRules(half_open_lease=6)) == [4, 5, 6]
    assert probing.lost == 3


def test_a_longer_lease_is_for_those_that_begin_after_it() -> None:
    probing = HalfOpenCalls()
    begin(probing, 0.0, BreakerRules(half_open_lease=6))
    probing.shorten(9.0)
    assert not probing.end(1, 6.0)
    assert probing.end(2, 5.999)
    assert begin(probing, 6.0, BreakerRules(half_open_lease=9)) == [4, 5, 6]
    assert probing.end(4, 14.999)
    assert not probing.end(5, 15.0)


def test_rounds_double_and_the_last_one_closes() -> None:
    probing = HalfOpenCalls()
    sizes = []
    verdict = None
    while verdict is None:
        numbers = begin(probing)
        sizes.append(len(numbers))
        for number in numbers:
            assert probing.end(number, 0.0)
            assert verdict is None
            verdict = probing.judge(False, False, DEFAULT)
    assert (sizes, verdict, probing.round) == ([3, 6, 12], RECOVERED, 2)


def test_one_round_may_be_all() -> None:
    probing, settings = HalfOpenCalls(), BreakerRules(half_open_rounds=1, half_open_calls=1)
    assert begin(probing, 0.0, settings) == [1]
    assert probing.judge(False, False, settings) == RECOVERED


def test_in_the_first_round_one_failure_is_enough() -> None:
    for before in range(3):
        probing = HalfOpenCalls()
        passed(probing, before)
        assert probing.judge(True, False, DEFAULT) == PROBE_FAILED


def test_in_later_rounds_the_failure_rate_judges() -> None:
    probing = HalfOpenCalls()
    passed(probing, 3)
    assert probing.judge(True, False, DEFAULT) is None
    assert probing.judge(True, False, DEFAULT) is None
    assert probing.judge(True, False, DEFAULT) == PROBE_FAILED, "three of six"
    probing = HalfOpenCalls()
    passed(probing, 3 + 3)
    assert probing.judge(True, False, DEFAULT) is None
    assert probing.judge(True, False, DEFAULT) is None
    passed(probing, 1)
    assert probing.round == 2, "four of six were well"
    assert [probing.judge(True, False, DEFAULT) for _ in range(6)] == [None] * 5 + [PROBE_FAILED], "six of twelve"


def test_a_last_round_with_some_failures_closes() -> None:
    probing = HalfOpenCalls()
    passed(probing, 3 + 6 + 6)
    assert [probing.judge(True, False, DEFAULT) for _ in range(5)] == [None] * 5
    assert probing.judge(False, False, DEFAULT) == RECOVERED


def test_slow_calls_are_judged_by_their_rate_in_every_round() -> None:
    settings = BreakerRules(slow_call_rate=0.6)
    probing = HalfOpenCalls()
    assert probing.judge(False, True, settings) is None
    assert probing.judge(False, True, settings) == PROBE_SLOW, "two of three"
    exactly = BreakerRules(slow_call_rate=1)
    probing = HalfOpenCalls()
    assert [probing.judge(False, True, exactly) for _ in range(3)] == [None, None, PROBE_SLOW]
    probing = HalfOpenCalls()
    assert [probing.judge(False, slow, settings) for slow in (True, False, False)] == [None] * 3
    assert [probing.judge(False, True, settings) for _ in range(4)] == [None, None, None, PROBE_SLOW], "four of six"
    probing = HalfOpenCalls()
    assert [probing.judge(False, False, settings) for _ in range(3)] == [None] * 3
    assert [probing.judge(False, slow, settings) for slow in (True, True, True, False, False, False)] == [None] * 6
    assert probing.round == 2, "half of them slow is below the rate"


def test_a_failure_that_is_slow_as_well_is_a_failure() -> None:
    assert HalfOpenCalls().judge(True, True, BreakerRules(slow_call_rate=0.1)) == PROBE_FAILED


def test_a_shorter_ramp_closes_at_the_end_of_the_round_it_is_in() -> None:
    probing = HalfOpenCalls()
    passed(probing, 3 + 6)
    assert [probing.judge(False, False, BreakerRules(half_open_rounds=1)) for _ in range(12)] == [None] * 11 + [
        RECOVERED
    ]
