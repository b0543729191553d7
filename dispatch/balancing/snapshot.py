"""View of an instance's state for metrics and operators."""

from __future__ import annotations

import msgspec

from dispatch.balancing.instance_state import InstanceState


class InstanceView(msgspec.Struct, frozen=True):
    """The state of an instance at one moment.

    Attributes:
        id: name of the instance.
        state: ``ejected``, ``paused`` (it asked for a pause), ``warming`` (slow start) or ``up``.
        weight: share of the calls, relative to the other instances.
        in_flight: calls of this dispatcher in flight at the instance.
        seconds_left: seconds until the ejection or pause ends; else None.
        failures: consecutive failures.
        ejections: ejections since the instance was first known.
        latency: moving average of the duration of an answer, in seconds; None: unknown, or not used by the strategy.
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
    """Return the view of ``state`` at ``now``."""
    remaining = None
    if state.ejected_until is not None:
        kind, remaining = "ejected", state.ejected_until - now
    elif state.paused_until > now:
        kind, remaining = "paused", state.paused_until - now
    else:
        kind = "warming" if state.level < 1.0 else "up"
    return InstanceView(
        state.id, kind, state.weight, state.in_flight, remaining, state.failures, state.ejections, state.cost or None
    )
