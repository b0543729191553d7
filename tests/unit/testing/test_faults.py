"""Probabilities, filters and seeds of faults."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.testing.faults import FAULT_KINDS, SINGLE_DIRECTION, FaultInjector, Faults, FaultSampler

REQUESTS = "non-persistent://tg/request/joke"
REPLIES = "non-persistent://tg/response/dispatch-reply-"


def thrown(injector: FaultInjector, connection: int, topic: str, times: int = 300) -> list[str | None]:
    sampler = injector.find_sampler(connection, "out", topic)
    assert sampler is not None
    return [sampler.draw_fault() for _ in range(times)]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"drop": 1.1}, "drop=1.1"),
        ({"error": -0.1}, "error=-0.1"),
        ({"malformed": float("nan")}, "malformed=nan"),
        ({"drop": 0.6, "duplicate": 0.6}, "add up to 1.2"),
        ({"latency": (0.2, 0.1)}, "is not a range"),
        ({"latency": -1.0}, "latency=-1.0"),
        ({"latency": (0.0, float("inf"))}, "latency=inf"),
        ({"max_delay": -1.0}, "max_delay=-1.0"),
        ({"reconnect_after": float("nan")}, "reconnect_after=nan"),
        ({"direction": "up"}, "direction='up'"),
    ],
)
def test_an_invalid_value_is_named(values: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        Faults(**values)  # type: ignore[arg-type]


def test_probabilities_may_add_up_to_one() -> None:
    share = 1 / len(FAULT_KINDS)
    assert len(Faults(**dict.fromkeys(FAULT_KINDS, share)).list_probabilities("out")) == len(FAULT_KINDS) - 1  # type: ignore[arg-type]


def test_repr_shows_the_values_that_were_given() -> None:
    assert repr(Faults(drop=0.1, seed=3)) == "Faults(drop=0.1, seed=3)"


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_each_fault_has_its_probability_and_direction(kind: str) -> None:
    for direction in ("out", "in"):
        sampler = FaultSampler(Faults(**{kind: 0.2}), direction, random.Random(1), random.Random(2))  # type: ignore[arg-type]
        counted = Counter(sampler.draw_fault() for _ in range(5_000))
        if SINGLE_DIRECTION.get(kind, direction) != direction:
            assert counted == {None: 5_000}
        else:
            assert counted.keys() == {kind, None}
            assert counted[kind] == pytest.approx(1_000, abs=150)  # 5 sigma


@given(st.integers(), st.floats(0, 10), st.floats(0, 10))
def test_delays_and_latencies_are_within_their_limits(seed: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    sampler = FaultSampler(Faults(latency=(low, high), max_delay=high), "out", random.Random(seed), random.Random(seed))
    assert all(low <= sampler.draw_latency() <= high for _ in range(20))
    assert all(0 <= sampler.draw_delay() <= high for _ in range(20))


def test_one_number_is_a_fixed_latency() -> None:
    assert FaultSampler(Faults(latency=2), "in", random.Random(1), random.Random(1)).draw_latency() == 2


def test_the_same_seed_draws_the_same_faults() -> None:
    plan = Faults(drop=0.3, duplicate=0.2, seed=5)
    assert thrown(FaultInjector(plan), 1, REQUESTS) == thrown(FaultInjector(plan), 1, REQUESTS)
    assert thrown(FaultInjector(plan), 1, REQUESTS) != thrown(FaultInjector(replace(plan, seed=6)), 1, REQUESTS)


def test_topics_and_connections_draw_independently() -> None:
    plan = Faults(drop=0.3)
    alone, beside = FaultInjector(plan), FaultInjector(plan)
    thrown(beside, 1, "non-persistent://tg/request/other")
    assert thrown(alone, 1, REQUESTS) == thrown(beside, 1, REQUESTS), "whatever other topics do"
    assert thrown(FaultInjector(plan), 2, REQUESTS) != thrown(FaultInjector(plan), 1, REQUESTS)


def test_drawing_details_does_not_change_later_faults() -> None:
    plan = Faults(drop=0.3, delay=0.3, latency=(0, 1))
    told = []
    for draws in (0, 3):
        sampler = FaultInjector(plan).find_sampler(1, "out", REQUESTS)
        assert sampler is not None
        told.append([(sampler.draw_fault(), [sampler.draw_delay() for _ in range(draws)])[0] for _ in range(100)])
    assert told[0] == told[1]


def test_ids_in_topic_names_do_not_change_the_faults() -> None:
    plan = Faults(drop=0.3)
    assert thrown(FaultInjector(plan), 1, REPLIES + "1f3a") == thrown(FaultInjector(plan), 1, REPLIES + "77b0")


def test_the_first_faults_that_apply_decide() -> None:
    injector = FaultInjector(
        Faults(drop=1, topics="*/request/*", direction="out"),
        Faults(duplicate=1, topics=("*/response/a", "*/response/b")),
    )
    assert thrown(injector, 1, REQUESTS, 1) == ["drop"]
    assert thrown(injector, 1, "persistent://tg/response/b", 1) == ["duplicate"]
    assert injector.find_sampler(1, "in", REQUESTS) is None
    assert injector.find_sampler(1, "out", "persistent://tg/response/c") is None


def test_random_decisions_continue_when_faults_change() -> None:
    plan = Faults(drop=0.3)
    whole = thrown(FaultInjector(plan), 1, REQUESTS, 40)
    injector = FaultInjector(plan)
    first = thrown(injector, 1, REQUESTS, 20)
    injector.heal()
    assert injector.find_sampler(1, "out", REQUESTS) is None
    injector.inject(plan)
    assert first + thrown(injector, 1, REQUESTS, 20) == whole
    assert injector.faults == (plan,)


def test_an_injector_cannot_be_combined_with_faults() -> None:
    injector = FaultInjector()
    assert FaultInjector.of([injector]) is injector
    with pytest.raises(TypeError, match="or one FaultInjector"):
        FaultInjector.of([Faults(), injector])
