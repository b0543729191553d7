"""Rotated rounds, settings and the estimate of the duration."""

from __future__ import annotations

import pytest

from benchmarks.harness.plan import DEFAULT, LEVELS, Contender, Settings, Suite, estimated_seconds, rotated


def test_every_round_begins_with_another() -> None:
    assert [rotated("ABC", number) for number in range(4)] == [list("ABC"), list("BCA"), list("CAB"), list("ABC")]
    assert rotated([], 3) == []


def test_shorter_measurements_shorten_the_rest() -> None:
    short = DEFAULT.lasting(0.1)
    assert short == Settings(rounds=5, seconds=0.1, ramp=0.033, warm_up=0.1, warm_broker=2.0, timeout=2.0)
    assert DEFAULT.lasting(DEFAULT.seconds) == DEFAULT
    assert DEFAULT.lasting(10.0).ramp == DEFAULT.ramp


def test_a_suite_limits_its_rounds() -> None:
    assert Suite("a", "A", ()).rounds_of(DEFAULT) == DEFAULT.rounds
    assert Suite("a", "A", (), rounds=2).rounds_of(DEFAULT) == 2
    assert Suite("a", "A", (), rounds=9).rounds_of(DEFAULT) == DEFAULT.rounds


def test_the_estimate_counts_processes_and_measurements() -> None:
    assert LEVELS == (1, 16, 64, 256)
    settings = Settings(rounds=2, seconds=1.0, ramp=0.2, warm_up=0.5, warm_broker=10.0)
    own = Contender("a", "A", "client", "service", clients=2, services=3)
    assert own.processes == 5
    assert estimated_seconds([], settings) == pytest.approx(13.0)
    # 5 processes of 1.5 s, a warm-up, and twice 4 measurements of 1.2 s.
    assert estimated_seconds([Suite("s", "S", (own,))], settings) == pytest.approx(13.0 + 7.5 + 0.5 + 9.6)
    shared = Suite("s", "S", (Contender("a", "A", "client"),), shared_service="service", levels=(1,), stretch=2.0)
    assert estimated_seconds([shared], settings) == pytest.approx(13.0 + 3.0 + 0.5 + 4.4)
