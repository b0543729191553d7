"""Times of the demo."""

from __future__ import annotations

import pytest

from dispatch.devtools.demo.world import (
    DEFAULT_SECONDS,
    MIN_SECONDS,
    RATES_TIMEOUT_S,
    TRANSLATE_ATTEMPT_S,
    TimeScale,
    demo_catalog,
)
from dispatch.policy import DEFAULT_POLICY


@pytest.mark.parametrize("seconds", [MIN_SECONDS, DEFAULT_SECONDS, 60.0])
def test_all_of_it_takes_about_the_time_that_was_asked_for(seconds: float) -> None:
    assert TimeScale(seconds).total == pytest.approx(seconds, rel=0.15, abs=2.0)


def test_the_policies_say_what_the_screen_says() -> None:
    time_scale = TimeScale(DEFAULT_SECONDS)
    catalog = demo_catalog("demo-1", time_scale)
    outliers = DEFAULT_POLICY.merged(catalog.service("translate-service").policy).outlier_detection
    breaker = DEFAULT_POLICY.merged(catalog.service("rates-service").policy).breaker
    assert breaker is not None
    assert outliers is not None
    assert (outliers.base_ejection_time, outliers.slow_start_window, breaker.open_duration) == (2.0, 2.0, 2.4)
    assert time_scale.note == ("Shortened: ejected 2 s (default 30), slow start 2 s (30), open 2.4 s (5)")


def test_shortest_state_lasts_longer_than_a_call() -> None:
    time_scale = TimeScale(MIN_SECONDS)
    assert min(time_scale.ejection_time, time_scale.slow_start_window, time_scale.open_duration) > max(
        RATES_TIMEOUT_S, TRANSLATE_ATTEMPT_S
    )
