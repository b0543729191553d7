"""When a changed catalogue is due."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.catalog.activation import COALESCE_S, MIN_INTERVAL_S, ActivationSchedule


def test_the_first_change_is_due_after_the_time_in_which_changes_are_coalesced() -> None:
    assert ActivationSchedule().due_at(100.0) == 100.0 + COALESCE_S


@pytest.mark.parametrize(("changed_at", "due_at"), [(10.0, 10.1), (10.04, 10.1), (10.06, 10.11), (20.0, 20.05)])
def test_a_change_after_an_activation_waits_for_both_intervals(changed_at: float, due_at: float) -> None:
    schedule = ActivationSchedule()
    schedule.record_activation(10.0)
    assert schedule.due_at(changed_at) == pytest.approx(due_at)


@given(st.lists(st.floats(0, 0.3), min_size=2, max_size=60))
def test_at_most_ten_activations_per_second(pauses: list[float]) -> None:
    schedule, now, activations = ActivationSchedule(), 0.0, []
    for pause in pauses:
        changed_at = now + pause
        now = schedule.due_at(changed_at)
        assert changed_at + COALESCE_S <= now <= changed_at + max(COALESCE_S, MIN_INTERVAL_S) + 1e-9
        schedule.record_activation(now)
        activations.append(now)
    assert all(later - one >= MIN_INTERVAL_S - 1e-9 for one, later in itertools.pairwise(activations))
