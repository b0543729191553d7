"""What a person or a metric is told of an instance."""

from __future__ import annotations

import msgspec

from dispatch.balancing.instance_state import InstanceState


class InstanceView(msgspec.Struct, frozen=True):
    """What a person or a metric is told of an instance.

    Attributes:
        id: its name.
        state: ``ejected``, ``paused`` (it asked to be spared), ``warming`` (slow start) or ``up``.
        weight: its share relative to the others'.
        in_flight: calls of ours that it has.
        seconds_left: of being ejected or paused; else None.
        failures: in a row.
        ejections: how often it was ejected since it was first known.
        latency: seconds that an answer takes, as a peak-sensitive moving average; None: not known, or not asked for by
            the strategy.
    """

    id: str
    state: str
    weight: float
    in_flight: int
    seconds_left: float | None
    failures: int
    ejections: int
    latency: float | None


def view(state: InstanceState, now: float) -> InstanceView:
    """How ``state`` is at the moment ``now``."""
    left = None
    if state.ejected_until is not None:
        kind, left = "ejected", state.ejected_until - now
    elif state.paused_until > now:
        kind, left = "paused", state.paused_until - now
    else:
        kind = "warming" if state.level < 1.0 else "up"
    return InstanceView(
        state.id, kind, state.weight, state.in_flight, left, state.failures, state.ejections, state.cost or None
    )
