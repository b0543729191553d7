"""The bulkhead's settings: defaults, what can be, and how a descriptor says it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dispatch.policy import MAX_CONCURRENT_CALLS, Bulkhead, PolicyError, parse_bulkhead


def test_the_defaults() -> None:
    assert msgspec.to_builtins(Bulkhead()) == {
        "max-concurrent-calls": 64,
        "max-wait": None,
        "priorities": ("interactive", "batch"),
        "scope": "process",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_concurrent_calls", 1),
        ("max_concurrent_calls", MAX_CONCURRENT_CALLS),
        ("max_wait", 0),
        ("max_wait", 0.001),
        ("max_wait", None),
        ("priorities", ("one",)),
        ("priorities", tuple("12345678")),
    ],
)
def test_what_can_be(name: str, value: Any) -> None:
    assert getattr(Bulkhead(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "max_concurrent_calls",
            0,
            "max-concurrent-calls.*0 is not a whole number from 1 to 10000; give a whole number ≥ 1",
        ),
        (
            "max_concurrent_calls",
            MAX_CONCURRENT_CALLS + 1,
            "bulkhead.max-concurrent-calls.*10001 is not a whole number",
        ),
        ("max_concurrent_calls", True, "bulkhead.max-concurrent-calls.*True"),
        ("max_concurrent_calls", 1.5, "bulkhead.max-concurrent-calls.*1.5"),
        ("max_wait", -1, "bulkhead.max-wait.*-1 is out of range; give seconds from 0 and at most"),
        ("max_wait", False, "bulkhead.max-wait.*False is not a number"),
        ("max_wait", "1", "bulkhead.max-wait.*'1' is not a number"),
        ("priorities", (), r"bulkhead.priorities.*\(\) is not a list of 1 to 8 different names; write \[\"inter"),
        ("priorities", tuple("123456789"), "bulkhead.priorities.*is not a list"),
        ("priorities", ("a", "a"), "bulkhead.priorities.*different"),
        ("priorities", ("a", ""), "bulkhead.priorities.*is not a list"),
        ("priorities", ("a", 1), "bulkhead.priorities.*is not a list"),
        ("priorities", "ab", "bulkhead.priorities.*'ab' is not a list"),
    ],
)
def test_what_cannot_be(name: str, value: Any, text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        Bulkhead(**{name: value})


def test_a_bare_number_is_the_limit_of_calls() -> None:
    base = Bulkhead(max_wait=7)
    assert parse_bulkhead(16, base) == Bulkhead(max_concurrent_calls=16, max_wait=7)
    assert parse_bulkhead(16) == Bulkhead(max_concurrent_calls=16)
    with pytest.raises(PolicyError, match=r"bulkhead\.max-concurrent-calls.*0\.5"):
        parse_bulkhead(0.5)


def test_an_object_is_laid_over_the_base() -> None:
    base = Bulkhead(max_wait=7, max_concurrent_calls=3)
    assert parse_bulkhead({}, base) is base
    assert parse_bulkhead(Bulkhead(max_wait=8), base) == Bulkhead(max_wait=8)
    read = parse_bulkhead({"max-wait": 2, "priorities": ["chat", "night"]}, base)
    assert read == Bulkhead(max_concurrent_calls=3, max_wait=2, priorities=("chat", "night"))


def test_an_unknown_key_names_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        PolicyError, match=r"'bulkhead.max-wiat': unknown key; did you mean 'max-wait'[?] known keys: max-conc"
    ):
        parse_bulkhead({"max-wiat": 2})
    with pytest.raises(
        PolicyError,
        match=r"'bulkhead.zzz': unknown key; known keys: max-concurrent-calls, max-wait, priorities, scope$",
    ):
        parse_bulkhead({"zzz": 2})


@pytest.mark.parametrize("raw", [True, "16", [16]])
def test_anything_else_is_refused(raw: Any) -> None:
    with pytest.raises(PolicyError, match=r"'bulkhead': .* is neither a number nor an object; write 16, "):
        parse_bulkhead(raw)


def test_null_is_off() -> None:
    assert parse_bulkhead(None) is None
    assert parse_bulkhead(None, Bulkhead(max_wait=8)) is None
