"""Message properties: numbers that peers may get wrong, and texts that may not travel."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.messaging.wire import MAX_PROPERTY_BYTES, check_property, whole_number


@pytest.mark.parametrize(("value", "number"), [("0", 0), ("7", 7), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_a_property_that_is_a_whole_number(value: str, number: int) -> None:
    assert whole_number({"remaining-ms": value}, "remaining-ms") == number


@pytest.mark.parametrize("value", ["", "-1", "+1", "1.5", "1e3", " 1", "1 ", "x", "٣", "²", "9" * 19, "9" * 10_000])
def test_a_property_that_is_none(value: str) -> None:
    assert whole_number({"remaining-ms": value}, "remaining-ms") is None


@pytest.mark.parametrize("value", [5, None, ["5"], b"5"])
def test_a_property_of_another_type_is_none(value: Any) -> None:
    assert whole_number({"remaining-ms": value}, "remaining-ms") is None


def test_a_missing_property_is_none() -> None:
    assert whole_number({}, "remaining-ms") is None


@pytest.mark.parametrize("value", [None, "", "order-17", "x" * MAX_PROPERTY_BYTES, "ü" * (MAX_PROPERTY_BYTES // 2)])
def test_what_may_travel_as_a_property(value: str | None) -> None:
    check_property(value, "idempotency_key")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (5, "must be a text, not int"),
        (b"key", "must be a text, not bytes"),
        ("x" * (MAX_PROPERTY_BYTES + 1), "has 8,193 bytes, the limit is 8,192: give a shorter one"),
        ("ü" * (MAX_PROPERTY_BYTES // 2 + 1), "has 8,194 bytes"),
    ],
)
def test_what_may_not_is_told_by_its_name(value: object, problem: str) -> None:
    with pytest.raises(TypeError, match=f"^idempotency_key {problem}"):
        check_property(value, "idempotency_key")


def test_half_a_surrogate_pair_cannot_travel_as_a_property() -> None:
    with pytest.raises(UnicodeError):
        check_property("\ud800", "idempotency_key")


@given(st.text())
def test_no_property_makes_an_exception(value: str) -> None:
    number = whole_number({"x": value}, "x")
    assert number is None or 0 <= number < 10**18
