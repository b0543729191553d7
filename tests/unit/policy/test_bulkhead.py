"""The bulkhead's settings: defaults, what can be, and how a descriptor says it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dispatch.policy.bulkhead import MAX_CONCURRENCY, MAX_QUEUE, Bulkhead, parse_bulkhead
from dispatch.policy.validation import PolicyError


def test_the_defaults() -> None:
    assert msgspec.to_builtins(Bulkhead()) == {
        "concurrency": 64,
        "queue": 10_000,
        "max-wait": 1.0,
        "adaptive": False,
        "min-limit": 4,
        "initial-limit": 20,
        "max-limit": 200,
        "max-limit-factor": 2.0,
        "freeze-at": 0.1,
        "priorities": ("interactive", "batch"),
        "overload-after": 1.0,
        "shed-after": 0.1,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 1),
        ("concurrency", MAX_CONCURRENCY),
        ("queue", 0),
        ("queue", MAX_QUEUE),
        ("max_wait", 0.001),
        ("adaptive", True),
        ("min_limit", 1),
        ("min_limit", 20),
        ("initial_limit", 4),
        ("initial_limit", 200),
        ("max_limit", 20),
        ("max_limit", MAX_CONCURRENCY),
        ("max_limit_factor", 1.01),
        ("max_limit_factor", 100),
        ("freeze_at", 0.001),
        ("freeze_at", 1),
        ("priorities", ("one",)),
        ("priorities", tuple("12345678")),
        ("overload_after", 604_800),
        ("shed_after", 604_800),
    ],
)
def test_what_can_be(name: str, value: Any) -> None:
    assert getattr(Bulkhead(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("concurrency", 0, "bulkhead.concurrency.*0 is not a whole number from 1 to 10000; give a whole number ≥ 1"),
        ("concurrency", MAX_CONCURRENCY + 1, "bulkhead.concurrency.*10001 is not a whole number"),
        ("concurrency", True, "bulkhead.concurrency.*True"),
        ("concurrency", 1.5, "bulkhead.concurrency.*1.5"),
        ("queue", -1, "bulkhead.queue.*-1 is not a whole number from 0 to 100000; give a whole number ≥ 0"),
        ("queue", MAX_QUEUE + 1, "bulkhead.queue.*100001"),
        ("queue", "many", "bulkhead.queue.*'many'"),
        ("max_wait", 0, "bulkhead.max-wait.*0 is out of range"),
        ("max_wait", None, "bulkhead.max-wait.*None is not a number"),
        ("adaptive", 1, "bulkhead.adaptive.*1 is not true or false; give true or false"),
        ("min_limit", 0, "bulkhead.min-limit.*0 is not a whole number from 1"),
        ("min_limit", 21, r"bulkhead.initial-limit.*20 is not from min-limit \(21\) to max-limit \(200\); give min"),
        ("initial_limit", 3, "bulkhead.initial-limit.*3 is not from"),
        ("initial_limit", 201, "bulkhead.initial-limit.*201 is not from"),
        ("initial_limit", "20", "bulkhead.initial-limit.*'20' is not a whole number"),
        ("max_limit", 10_001, "bulkhead.max-limit.*10001"),
        ("max_limit_factor", 1, "bulkhead.max-limit-factor.*1 is not a number above 1 and at most 100; give for"),
        ("max_limit_factor", 100.1, "bulkhead.max-limit-factor.*100.1"),
        ("max_limit_factor", True, "bulkhead.max-limit-factor.*True"),
        ("max_limit_factor", float("nan"), "bulkhead.max-limit-factor.*nan"),
        ("freeze_at", 0, "bulkhead.freeze-at.*0 is not a share above 0 and at most 1; give for instance 0.1"),
        ("freeze_at", 1.1, "bulkhead.freeze-at.*1.1"),
        ("freeze_at", "10 %", "bulkhead.freeze-at.*'10 %'"),
        ("priorities", (), r"bulkhead.priorities.*\(\) is not a list of 1 to 8 different names; write \[\"inter"),
        ("priorities", tuple("123456789"), "bulkhead.priorities.*is not a list"),
        ("priorities", ("a", "a"), "bulkhead.priorities.*different"),
        ("priorities", ("a", ""), "bulkhead.priorities.*is not a list"),
        ("priorities", ("a", 1), "bulkhead.priorities.*is not a list"),
        ("priorities", "ab", "bulkhead.priorities.*'ab' is not a list"),
        ("overload_after", -1, "bulkhead.overload-after.*out of range"),
        ("shed_after", 0, "bulkhead.shed-after.*out of range"),
    ],
)
def test_what_cannot_be(name: str, value: Any, text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        Bulkhead(**{name: value})


def test_a_bare_number_is_the_concurrency() -> None:
    base = Bulkhead(queue=7)
    assert parse_bulkhead(16, base) == Bulkhead(concurrency=16, queue=7)
    assert parse_bulkhead(16) == Bulkhead(concurrency=16)
    with pytest.raises(PolicyError, match=r"bulkhead\.concurrency.*0\.5"):
        parse_bulkhead(0.5)


def test_an_object_is_laid_over_the_base() -> None:
    base = Bulkhead(queue=7, concurrency=3)
    assert parse_bulkhead({}, base) is base
    assert parse_bulkhead(Bulkhead(queue=8), base) == Bulkhead(queue=8)
    read = parse_bulkhead({"max-wait": 2, "priorities": ["chat", "night"]}, base)
    assert read == Bulkhead(queue=7, concurrency=3, max_wait=2, priorities=("chat", "night"))


def test_an_unknown_key_names_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        PolicyError, match=r"'bulkhead.max-wiat': unknown key; did you mean 'max-wait'[?] known keys: conc"
    ):
        parse_bulkhead({"max-wiat": 2})
    with pytest.raises(
        PolicyError, match=r"'bulkhead.zzz': unknown key; known keys: concurrency, queue, max-wait, adapt"
    ):
        parse_bulkhead({"zzz": 2})


@pytest.mark.parametrize("raw", [True, "16", [16]])
def test_anything_else_is_refused(raw: Any) -> None:
    with pytest.raises(PolicyError, match=r"'bulkhead': .* is neither a number nor an object; write 16, "):
        parse_bulkhead(raw)


def test_null_is_off() -> None:
    assert parse_bulkhead(None) is None
    assert parse_bulkhead(None, Bulkhead(queue=8)) is None
