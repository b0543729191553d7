"""Slices of a deadline. Guards against the first attempt that hangs eating the whole time of the call, so that no second
one can ever be made (a total timeout only), and against shares that cut off a slow tool although there is time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.resilience.attempt_timeout import attempt_slice

NOW = 1_000.0


def test_a_single_attempt_has_all_the_time() -> None:
    assert attempt_slice(NOW, NOW + 30) == (NOW + 30, "call")


def test_attempts_share_what_is_left() -> None:
    assert attempt_slice(NOW, NOW + 30, attempts_left=3) == (NOW + 10, "attempt")
    assert attempt_slice(NOW + 10, NOW + 30, attempts_left=2) == (NOW + 20, "attempt")
    assert attempt_slice(NOW + 20, NOW + 30, attempts_left=1) == (NOW + 30, "call")


def test_an_attempt_that_ended_soon_leaves_more_to_the_others() -> None:
    assert attempt_slice(NOW + 2, NOW + 30, attempts_left=2) == (NOW + 16, "attempt")


def test_the_policys_limit_goes_before_any_share() -> None:
    assert attempt_slice(NOW, NOW + 30, limit=4, attempts_left=3) == (NOW + 4, "attempt")
    assert attempt_slice(NOW, NOW + 30, limit=20, attempts_left=3) == (NOW + 20, "attempt")
    assert attempt_slice(NOW, NOW + 30, limit=4, attempts_left=3, usual=9) == (NOW + 4, "attempt")


@pytest.mark.parametrize(("limit", "clock"), [(29.5, "attempt"), (30.0, "call"), (30.5, "call")])
def test_no_limit_reaches_beyond_the_call(limit: float, clock: str) -> None:
    ends, fired = attempt_slice(NOW, NOW + 30, limit=limit)
    assert (ends, fired) == (NOW + min(limit, 30), clock)


def test_a_slow_tool_gets_what_it_takes_while_there_is_time() -> None:
    assert attempt_slice(NOW, NOW + 30, attempts_left=3, usual=5.0) == (NOW + 10, "attempt")
    assert attempt_slice(NOW, NOW + 30, attempts_left=3, usual=6.0) == (NOW + 12, "attempt")
    assert attempt_slice(NOW, NOW + 30, attempts_left=3, usual=15.0) == (NOW + 30, "call")
    assert attempt_slice(NOW, NOW + 30, attempts_left=3, usual=40.0) == (NOW + 30, "call")


def test_what_takes_far_longer_than_ever_is_not_waited_for_while_another_attempt_may_follow() -> None:
    assert attempt_slice(NOW, NOW + 30, attempts_left=3, usual=0.25) == (NOW + 5, "attempt")
    assert attempt_slice(NOW, NOW + 30, attempts_left=3, usual=0.001) == (NOW + 1, "attempt")
    assert attempt_slice(NOW, NOW + 30, attempts_left=3, usual=0.5) == (NOW + 10, "attempt")
    assert attempt_slice(NOW, NOW + 30, attempts_left=1, usual=0.001) == (NOW + 30, "call")


@given(
    st.floats(0.001, 1_000),
    st.integers(1, 10),
    st.one_of(st.none(), st.floats(0.001, 1_000)),
    st.one_of(st.none(), st.floats(0.001, 1_000)),
)
def test_every_slice_is_within_the_call_and_says_which_clock_it_is(
    left: float, attempts: int, limit: float | None, usual: float | None
) -> None:
    ends, clock = attempt_slice(NOW, NOW + left, limit=limit, attempts_left=attempts, usual=usual)
    assert NOW < ends <= NOW + left
    assert (clock == "call") == (ends == NOW + left)


@given(st.floats(0.01, 1_000), st.integers(2, 10))
def test_attempts_that_all_time_out_use_the_whole_time_and_no_more(timeout: float, attempts: int) -> None:
    now, ends = NOW, 0.0
    for left in range(attempts, 0, -1):
        now, clock = attempt_slice(now, NOW + timeout, attempts_left=left)
        assert (clock == "call") == (left == 1)
        ends = now
    assert ends == NOW + timeout
