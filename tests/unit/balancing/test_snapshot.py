"""What a person or a metric is told of an instance. Every state of it is in test_balancer.py."""

from __future__ import annotations

import pytest

from dispatch.balancing.instances import InstanceView, view
from tests.helpers.balancers import START, states


def test_a_view_is_a_value_that_stays_as_it_was() -> None:
    state = states("a", cost=(0.5,), ejections=(2,))[0]
    seen = view(state, START)
    assert seen == InstanceView("a", "up", 1.0, 0, None, 0, 2, 0.5)
    state.in_flight = 3
    assert seen.in_flight == 0
    with pytest.raises(AttributeError):
        seen.in_flight = 4  # type: ignore[misc]


def test_a_pause_ends_at_its_moment() -> None:
    state = states("a", paused_until=(START + 1,))[0]
    assert [view(state, START + after).state for after in (0.5, 1.0)] == ["paused", "up"]
    assert view(state, START + 0.5).seconds_left == 0.5
