"""What a tool promises: every key, its bounds exactly, and every mistake with its key and its fix."""

from __future__ import annotations

import math
from typing import Any

import pytest

import dispatch
from dispatch.policy import MAX_LATENCY, MAX_OBJECTIVE, MIN_OBJECTIVE, PolicyError, Slo, parse_slo


def test_the_defaults_are_those_that_are_documented() -> None:
    assert Slo(0.99) == Slo(availability=0.99, latency=None, latency_share=0.95)
    assert Slo(latency=2).availability is None
    assert dispatch.Policy().slo is None
    assert dispatch.Slo is Slo


def test_every_key_is_read() -> None:
    raw = {"availability": 0.999, "latency": 2.0, "latency-share": 0.9}
    assert parse_slo(raw) == Slo(0.999, 2.0, 0.9)


def test_a_bare_number_is_the_availability() -> None:
    assert parse_slo(0.9) == Slo(availability=0.9)


def test_what_is_not_said_stays_as_the_base_has_it() -> None:
    base = Slo(availability=0.9, latency=3)
    assert parse_slo({"latency": 1}, base) == Slo(0.9, 1)
    assert parse_slo(0.99, base) == Slo(0.99, 3)
    assert parse_slo({"availability": None}, base) == Slo(latency=3)
    assert parse_slo({}, base) == base
    assert parse_slo(None, base) is None


def test_a_promise_of_latency_alone_says_nothing_of_availability() -> None:
    assert parse_slo({"latency": 0.5}) == Slo(availability=None, latency=0.5)


@pytest.mark.parametrize("raw", [True, False, "0.99", "99%", [0.99], b"x"])
def test_it_is_a_share_or_an_object(raw: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_slo(raw)
    assert caught.value.key == "slo"
    assert caught.value.problem == f"{raw!r} is neither a share nor an object"
    assert caught.value.fix == 'write 0.99, {"availability": 0.99, "latency": 2}, or null for no promise'


@pytest.mark.parametrize(("key", "example"), [("availability", "0.99"), ("latency-share", "0.95")])
def test_a_share_within_its_bounds(key: str, example: str) -> None:
    def made(value: object) -> Slo | None:
        return parse_slo({"latency": 1, key: value})

    for good in (MIN_OBJECTIVE, 0.5001, MAX_OBJECTIVE):
        assert getattr(made(good), key.replace("-", "_")) == good
    for bad in (0.4999, 0, 0.99991, 1, 1.0, 99, -0.9, math.nan, math.inf):
        with pytest.raises(PolicyError) as caught:
            made(bad)
        assert (caught.value.key, caught.value.problem) == (f"slo.{key}", f"{bad!r} is not from 0.5 to 0.9999")
        assert caught.value.fix == (
            f"give the share of calls, for instance {example} (99 % is 0.99; 1 would allow no failure at all)"
        )
    for odd in (True, "0.9", [0.9]):
        with pytest.raises(PolicyError) as caught:
            made(odd)
        assert (caught.value.key, caught.value.problem) == (f"slo.{key}", f"{odd!r} is not a number")
        assert caught.value.fix == f"give the share of calls, for instance {example}"


def test_a_latency_up_to_the_largest_that_is_measured() -> None:
    assert Slo(latency=MAX_LATENCY).latency == MAX_LATENCY
    assert Slo(latency=0.0001).latency == 0.0001
    with pytest.raises(PolicyError) as caught:
        Slo(latency=82)
    assert caught.value.key == "slo.latency"
    assert caught.value.problem == "82 is more than 81.92, and longer times are not distinguished"
    assert caught.value.fix == "give seconds, for instance 2"


@pytest.mark.parametrize("latency", [0, -1, math.nan, math.inf, "2", True])
def test_a_latency_that_cannot_be(latency: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        Slo(latency=latency)
    assert caught.value.key == "slo.latency"


@pytest.mark.parametrize("raw", [{}, {"latency-share": 0.9}, {"availability": None, "latency": None}])
def test_a_promise_of_nothing_is_none(raw: dict[str, Any]) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_slo(raw)
    assert (caught.value.key, caught.value.problem) == ("slo", "it sets no objective")
    assert caught.value.fix == "give 'availability' or 'latency', or write null for no objective"
    with pytest.raises(PolicyError, match="'slo': it sets no objective"):
        Slo()


@pytest.mark.parametrize(("key", "meant"), [("availabilty", "availability"), ("latency_share", "latency-share")])
def test_a_key_slightly_wrong_is_told_with_the_right_one(key: str, meant: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_slo({key: 0.9})
    assert caught.value.key == f"slo.{key}"
    assert caught.value.fix == f"did you mean '{meant}'? known keys: availability, latency, latency-share"


def test_a_promise_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Slo(0.9).availability = 0.99  # type: ignore[misc]
