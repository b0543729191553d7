"""Chances, filters and seeds: what is decided, and that it is decided again."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.testing.faults import KINDS, ONLY, Dice, FaultInjector, Faults

REQUESTS = "non-persistent://tg/request/joke"
REPLIES = "non-persistent://tg/response/dispatch-reply-"


def thrown(injector: FaultInjector, connection: int, topic: str, times: int = 300) -> list[str | None]:
    dice = injector.dice(connection, "out", topic)
    assert dice is not None
    return [dice.throw() for _ in range(times)]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"drop": 1.1}, "drop=1.1"),
        ({"error": -0.1}, "error=-0.1"),
        ({"malformed": float("nan")}, "malformed=nan"),
        ({"drop": 0.6, "duplicate": 0.6}, "1.2 together"),
        ({"latency": (0.2, 0.1)}, "ends before it begins"),
        ({"latency": -1.0}, "latency=-1.0"),
        ({"latency": (0.0, float("inf"))}, "latency=inf"),
        ({"max_delay": -1.0}, "max_delay=-1.0"),
        ({"reconnect_after": float("nan")}, "reconnect_after=nan"),
        ({"direction": "up"}, "direction='up'"),
    ],
)
def test_a_value_that_cannot_be_is_named(values: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        Faults(**values)  # type: ignore[arg-type]


def test_all_that_is_certain_together_may_be() -> None:
    share = 1 / len(KINDS)
    assert len(Faults(**dict.fromkeys(KINDS, share)).chances("out")) == len(KINDS) - 1  # type: ignore[arg-type]


def test_what_is_shown_is_what_was_said() -> None:
    assert repr(Faults(drop=0.1, seed=3)) == "Faults(drop=0.1, seed=3)"


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_happens_as_often_as_it_should_and_only_where_it_can(kind: str) -> None:
    for direction in ("out", "in"):
        dice = Dice(Faults(**{kind: 0.2}), direction, random.Random(1), random.Random(2))  # type: ignore[arg-type]
        counted = Counter(dice.throw() for _ in range(5_000))
        if ONLY.get(kind, direction) != direction:
            assert counted == {None: 5_000}
        else:
            assert counted.keys() == {kind, None}
            assert counted[kind] == pytest.approx(1_000, abs=150)  # 5 sigma


@given(st.integers(), st.floats(0, 10), st.floats(0, 10))
def test_times_are_within_their_limits(seed: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    dice = Dice(Faults(latency=(low, high), max_delay=high), "out", random.Random(seed), random.Random(seed))
    assert all(low <= dice.latency() <= high for _ in range(20))
    assert all(0 <= dice.delay() <= high for _ in range(20))


def test_one_number_is_a_latency_too() -> None:
    assert Dice(Faults(latency=2), "in", random.Random(1), random.Random(1)).latency() == 2


def test_a_seed_decides() -> None:
    plan = Faults(drop=0.3, duplicate=0.2, seed=5)
    assert thrown(FaultInjector(plan), 1, REQUESTS) == thrown(FaultInjector(plan), 1, REQUESTS)
    assert thrown(FaultInjector(plan), 1, REQUESTS) != thrown(FaultInjector(replace(plan, seed=6)), 1, REQUESTS)


def test_topics_and_connections_have_dice_of_their_own() -> None:
    plan = Faults(drop=0.3)
    alone, beside = FaultInjector(plan), FaultInjector(plan)
    thrown(beside, 1, "non-persistent://tg/request/other")
    assert thrown(alone, 1, REQUESTS) == thrown(beside, 1, REQUESTS), "whatever other topics do"
    assert thrown(FaultInjector(plan), 2, REQUESTS) != thrown(FaultInjector(plan), 1, REQUESTS)


def test_how_exactly_does_not_move_what_happens_next() -> None:
    plan = Faults(drop=0.3, delay=0.3, latency=(0, 1))
    told = []
    for draws in (0, 3):
        dice = FaultInjector(plan).dice(1, "out", REQUESTS)
        assert dice is not None
        told.append([(dice.throw(), [dice.delay() for _ in range(draws)])[0] for _ in range(100)])
    assert told[0] == told[1]


def test_names_that_are_new_in_each_run_do_not_count() -> None:
    plan = Faults(drop=0.3)
    assert thrown(FaultInjector(plan), 1, REPLIES + "1f3a") == thrown(FaultInjector(plan), 1, REPLIES + "77b0")


def test_the_first_that_is_meant_is_taken() -> None:
    injector = FaultInjector(
        Faults(drop=1, topics="*/request/*", direction="out"),
        Faults(duplicate=1, topics=("*/response/a", "*/response/b")),
    )
    assert thrown(injector, 1, REQUESTS, 1) == ["drop"]
    assert thrown(injector, 1, "persistent://tg/response/b", 1) == ["duplicate"]
    assert injector.dice(1, "in", REQUESTS) is None
    assert injector.dice(1, "out", "persistent://tg/response/c") is None


def test_dice_go_on_when_faults_change() -> None:
    plan = Faults(drop=0.3)
    whole = thrown(FaultInjector(plan), 1, REQUESTS, 40)
    injector = FaultInjector(plan)
    first = thrown(injector, 1, REQUESTS, 20)
    injector.heal()
    assert injector.dice(1, "out", REQUESTS) is None
    injector.inject(plan)
    assert first + thrown(injector, 1, REQUESTS, 20) == whole
    assert injector.faults == (plan,)


def test_an_injector_is_given_alone() -> None:
    injector = FaultInjector()
    assert FaultInjector.of([injector]) is injector
    with pytest.raises(TypeError, match="or one FaultInjector"):
        FaultInjector.of([Faults(), injector])
