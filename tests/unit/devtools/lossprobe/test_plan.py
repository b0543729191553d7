"""The plan of a measurement, from the options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.devtools.lossprobe import (
    MAX_BYTES_IN_FLIGHT,
    MAX_CALLS,
    MAX_SIZE,
    TOTAL_S,
    PlanError,
    format_size,
    make_plan,
    parse_size,
)


def test_without_options_it_takes_about_a_minute() -> None:
    plan = make_plan()
    assert plan.sizes == (120, 1_000, 10_000, 100_000, 1_000_000)
    assert plan.in_flight == (1, 16, 64, 256)
    assert plan.calls is None
    assert plan.seconds == pytest.approx(TOTAL_S / 40)
    assert len(plan.loads) == 20
    assert plan.loads[:5] == [(120, 1), (120, 16), (120, 64), (120, 256), (1_000, 1)]


def test_a_number_of_calls_is_made_whatever_it_takes() -> None:
    plan = make_plan("10k", "4", 1_234)
    assert (plan.calls, plan.seconds) == (1_234, None)


@pytest.mark.parametrize(
    ("options", "seconds"), [(("1k", "1"), 5.0), ((",".join(map(str, range(1, 200))), "1,2"), 0.5)]
)
def test_a_run_is_neither_endless_nor_too_short_to_see_anything(options: tuple[str, str], seconds: float) -> None:
    assert make_plan(*options).seconds == seconds


def test_order_and_repetition_do_not_matter() -> None:
    plan = make_plan(" 1M,120 , 0.12k", "16, 4,16")
    assert plan.sizes == (120, 1_000_000)
    assert plan.in_flight == (4, 16)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("120", 120),
        ("120B", 120),
        ("1k", 1_000),
        ("1kB", 1_000),
        ("1 KB", 1_000),
        ("1.5M", 1_500_000),
        ("2mb", 2_000_000),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@given(st.integers(1, MAX_SIZE))
def test_a_size_that_is_shown_can_be_given_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(120, "120 B"), (1_000, "1 kB"), (1_500, "1.5 kB"), (100_000, "100 kB"), (1_000_000, "1 MB")]
)
def test_sizes_are_shown_short(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "0", "1.5", "1e3", "1kk", "10q", "1,,2", "٣", "6M", "99999999999999999999M"]
)
def test_what_is_no_size_is_told_with_an_example(text: str) -> None:
    with pytest.raises(PlanError, match="--sizes") as told:
        make_plan(sizes=text)
    assert "120,10k" in told.value.fix


@given(st.text(max_size=12))
def test_no_text_is_taken_for_something_else(text: str) -> None:
    try:
        plan = make_plan(sizes=text)
    except PlanError:
        return
    assert all(1 <= size <= MAX_SIZE for size in plan.sizes)
    assert len(plan.sizes) <= text.count(",") + 1


@pytest.mark.parametrize("text", ["", "0", "1025", "1.5", "-1", "many", "1 6", "²"])
def test_what_is_no_number_in_flight_is_told_with_an_example(text: str) -> None:
    with pytest.raises(PlanError, match="--in-flight") as told:
        make_plan(in_flight=text)
    assert "1,16,64" in told.value.fix


@pytest.mark.parametrize("calls", [63, MAX_CALLS + 1])
def test_calls_must_fill_what_is_in_flight(calls: int) -> None:
    with pytest.raises(PlanError, match="with 64 in flight") as told:
        make_plan("1k", "4,64", calls)
    assert told.value.fix.startswith("use 64 to 1,000,000")
    assert make_plan("1k", "4,64", 64).calls == 64


def test_no_more_at_once_than_a_service_keeps() -> None:
    with pytest.raises(PlanError, match=f"{MAX_BYTES_IN_FLIGHT:,} bytes"):
        make_plan("120,1M", "1,300")
    assert make_plan("120,1M", "1,256").loads
