"""The result of a call, from the end of its last exchange."""

from __future__ import annotations

from dispatch.errors import DispatchError, Outcome
from dispatch.messaging.rpc.exchange_outcome import Answer, Lost, Restarted, Settled, TimedOut
from dispatch.messaging.wire.properties import Property
from dispatch.result import CallResult

_SUCCESS = Outcome.SUCCESS
_COUNTING = (Answer, TimedOut, Lost, Restarted)
"""The ends that say how many chunks arrived."""


def conclude(
    settled: Settled | None,
    error: DispatchError | None,
    *,
    tool: str,
    duration: float,
    request_id: str = "",
    attempts: int = 0,
    transmissions: int = 1,
    recovery_seconds: float = 0.0,
) -> CallResult:
    """Return the result of a call whose last exchange ended as ``settled`` (None: there was none) and means ``error`` to the
    caller (None: success). For the other arguments see :class:`CallResult`."""
    answered = type(settled) is Answer
    return CallResult(
        tool,
        _SUCCESS if error is None else error.outcome,
        settled.text if answered and error is None else "",  # type: ignore[union-attr] # an Answer
        error,
        duration,
        attempts,
        settled.chunks if isinstance(settled, _COUNTING) else 0,
        request_id,
        settled.properties.get(Property.INSTANCE) if answered else None,  # type: ignore[union-attr] # an Answer
        transmissions,
        recovery_seconds,
    )
