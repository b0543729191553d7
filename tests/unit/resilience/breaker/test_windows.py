"""Windows over calls: right at every size, at a cost that does not grow with it, in next to no memory.

Guards against windows that are scanned on every call (a Python peer's cost triples from 100 calls to 1,000)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.resilience.breaker import FAILED, PLAIN, SLOTS, SLOW, CountWindow, TimeWindow
from tests.helpers.run_profile import examples

KINDS = st.sampled_from([PLAIN, FAILED, SLOW, FAILED | SLOW])


def figures(window_calls: CountWindow | TimeWindow) -> tuple[int, int, int]:
    return window_calls.calls, window_calls.failures, window_calls.slow


def totals(kinds: list[int]) -> tuple[int, int, int]:
    return len(kinds), sum(kind in (1, 3) for kind in kinds), sum(kind in (2, 3) for kind in kinds)


def test_windows_count_failures_and_slow_calls_separately() -> None:
    assert (PLAIN, FAILED, SLOW) == (0, 1, 2)


@given(st.integers(1, 12), st.lists(KINDS | st.integers(10, 20)))
@settings(deadline=None, max_examples=examples(200))
def test_count_window_covers_the_last_calls(size: int, steps: list[int]) -> None:
    """A step below 10 is a call of that kind, one from 10 on so many plain ones (less ten) at once."""
    window_calls, calls = CountWindow(size), list[int]()
    for step in steps:
        if step < 10:
            window_calls.add(step)
            calls.append(step)
        else:
            window_calls.add_plain(step - 10)
            calls += [PLAIN] * (step - 10)
        assert figures(window_calls) == totals(calls[-size:])
        assert len(window_calls._ring) == size


def test_a_cleared_count_window_starts_from_nothing() -> None:
    window_calls = CountWindow(3)
    for _ in range(5):
        window_calls.add(FAILED | SLOW)
    window_calls.clear()
    assert figures(window_calls) == (0, 0, 0)
    for _ in range(4):
        window_calls.add(PLAIN)
    assert figures(window_calls) == (3, 0, 0)
    window_calls.clear()
    window_calls.add(FAILED)
    assert figures(window_calls) == (1, 1, 0)


def test_batch_of_plain_calls_wraps_around_the_ring() -> None:
    window_calls = CountWindow(5)
    for kind in (FAILED, SLOW, FAILED | SLOW, FAILED, SLOW, FAILED, PLAIN, PLAIN):
        window_calls.add(kind)  # the ring is F - - F S, and the fourth is the oldest
    assert figures(window_calls) == (5, 2, 1)
    window_calls.add_plain(2)
    assert figures(window_calls) == (5, 1, 0)
    window_calls.add_plain(1)
    assert figures(window_calls) == (5, 0, 0)
    for _ in range(5):
        window_calls.add(PLAIN)
        assert figures(window_calls) == (5, 0, 0), "who has left leaves once"
    window_calls.add(FAILED)
    assert figures(window_calls) == (5, 1, 0)


@pytest.mark.parametrize("size", [0, -1])
def test_count_window_rejects_a_size_below_one(size: int) -> None:
    with pytest.raises(ValueError, match=f"^the window size must be at least 1 call, not {size}$"):
        CountWindow(size)


@given(st.lists(st.tuples(st.integers(0, 40), KINDS)), st.sampled_from([0.0, 1e6, -100.0]))
@settings(deadline=None)
def test_time_window_covers_its_last_ten_slices(steps: list[tuple[int, int]], start: float) -> None:
    """Steps of a quarter of a part, so that every number is exact and each boundary is met."""
    window_calls, calls, now = TimeWindow(5.0), list[tuple[float, int]](), start
    for quarters, kind in steps:
        now += quarters * 0.125
        window_calls.add(kind, now)
        calls.append((now, kind))
        assert window_calls.slice_end > now >= window_calls.slice_end - 0.5
        held = [kind for at, kind in calls if at // 0.5 > now // 0.5 - 10]
        assert figures(window_calls) == totals(held)


def test_a_time_window_covers_nine_tenths_of_its_span_at_least_and_never_more_than_all() -> None:
    for offset in (0.0, 0.25, 0.5, 0.96875):
        window_calls = TimeWindow(10.0)
        window_calls.add(FAILED, 100 + offset)
        window_calls.advance(108.999)
        assert figures(window_calls) == (1, 1, 0)
        window_calls.advance(109.999)
        assert figures(window_calls) == (1, 1, 0)
        window_calls.advance(110.0)
        assert figures(window_calls) == (0, 0, 0)


def test_a_time_window_forgets_everything_after_a_long_time() -> None:
    window_calls = TimeWindow(10.0)
    for second in range(10):
        window_calls.add(FAILED | SLOW, 100.0 + second)
    assert figures(window_calls) == (10, 10, 10)
    window_calls.advance(1e9)
    assert figures(window_calls) == (0, 0, 0)
    window_calls.add(SLOW, 1e9 + 0.5)
    assert figures(window_calls) == (1, 0, 1)


def test_batch_of_plain_calls_belongs_to_the_current_slice() -> None:
    window_calls = TimeWindow(10.0)
    window_calls.advance(100.5)
    assert window_calls.slice_end == 101.0
    window_calls.add_plain(7)
    window_calls.add(FAILED, 101.0)
    assert figures(window_calls) == (8, 1, 0)
    window_calls.advance(109.999)
    assert figures(window_calls) == (8, 1, 0)
    window_calls.advance(110.0)
    assert figures(window_calls) == (1, 1, 0)


def test_plain_calls_of_one_slice_expire_together() -> None:
    window_calls = TimeWindow(10.0)
    window_calls.advance(100.5)
    window_calls.add_plain(7)
    window_calls.add_plain(2)
    window_calls.advance(105.0)
    assert figures(window_calls) == (9, 0, 0)
    window_calls.advance(110.0)
    assert figures(window_calls) == (0, 0, 0)


def test_a_cleared_time_window_starts_from_nothing() -> None:
    window_calls = TimeWindow(10.0)
    window_calls.add(FAILED | SLOW, 5.0)
    window_calls.clear()
    assert figures(window_calls) == (0, 0, 0)
    window_calls.add(FAILED, 6.0)
    window_calls.advance(16.0)
    assert figures(window_calls) == (0, 0, 0)


@pytest.mark.parametrize("span", [0, -1.0, float("nan")])
def test_time_window_rejects_a_span_of_zero(span: float) -> None:
    with pytest.raises(ValueError, match=r"^the span of a window must be above 0 s, not (0|-1\.0|nan)$"):
        TimeWindow(span)


def work(action: Callable[[], None]) -> list[tuple[str, int]]:
    """Every step of the interpreter that an action takes, and every call into C, as (what, where)."""
    steps: list[tuple[str, int]] = []

    def trace(frame: Any, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps.append((frame.f_code.co_name, frame.f_lasti))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return [step for step in steps if step[0] in ("add", "advance")]


@pytest.mark.parametrize("kind", [PLAIN, FAILED, SLOW])
def test_a_call_costs_the_same_at_ten_and_at_ten_thousand(kind: int) -> None:
    """Goal G18: interpreter steps are counted, full windows and half full ones, so that no clock is needed to tell."""
    costs = set()
    for size in (10, 100, 10_000):
        for filled in (size // 2, 2 * size + size // 2):
            by_count, by_time = CountWindow(size), TimeWindow(30.0)
            for _ in range(filled):
                by_count.add(FAILED)
                by_time.add(FAILED, 1.0)
            costs.add(
                (
                    filled > size,
                    len(work(lambda w=by_count: w.add(kind))),
                    len(work(lambda w=by_time: w.add(kind, 1.5))),
                )
            )
    assert len(costs) == 2, "one cost while it fills, one when it is full; neither knows the size"
    assert all(10 < count < 100 and 10 < time < 100 for _, count, time in costs)


def test_a_pause_of_any_length_costs_ten_steps_at_most() -> None:
    costs = []
    for idle in (29.0, 30.0, 1e4, 1e8):
        window_calls = TimeWindow(30.0)
        window_calls.add(FAILED, 0.0)
        costs.append(len(work(lambda w=window_calls, at=idle: w.advance(at))))
    assert max(costs[1:]) < costs[0] < 60 * SLOTS


def test_a_count_window_takes_a_byte_a_call_and_little_more() -> None:
    window_calls = CountWindow(10_000)
    assert sys.getsizeof(window_calls._ring) < 10_000 + 100
    assert not hasattr(window_calls, "__dict__")
    assert not hasattr(TimeWindow(1.0), "__dict__")
