"""Which value of ``error.type`` an error of ours is: a few, so that queries can name them all."""

from __future__ import annotations

from dispatch.errors import CallTimeoutError, DispatchError, Outcome, TransportError
from dispatch.telemetry.names import ErrorType

_REJECTED = {
    "breaker": ErrorType.CIRCUIT_OPEN,
    "rate": ErrorType.RATE_LIMITED,
    "user-rate": ErrorType.RATE_LIMITED,
    "bulkhead": ErrorType.QUEUE_FULL,
    "exchange": ErrorType.QUEUE_FULL,
    "balancer": ErrorType.NO_INSTANCE,
    "catalog": ErrorType.UNKNOWN_TOOL,
}
_TRANSPORT = {
    "malformed-reply": ErrorType.BAD_RESPONSE,
    "too-much": ErrorType.BAD_RESPONSE,
    "payload-too-large": ErrorType.INVALID_ARGUMENTS,
    "too-large": ErrorType.INVALID_ARGUMENTS,
    "no-instance": ErrorType.NO_INSTANCE,
}


def error_type(error: DispatchError) -> str:
    """The value for ``error``: one of :class:`~dispatch.telemetry.names.ErrorType`."""
    outcome = error.outcome
    if outcome is Outcome.TOOL_ERROR:
        return ErrorType.TOOL_ERROR
    if outcome is Outcome.INVALID_ARGUMENTS:
        return ErrorType.INVALID_ARGUMENTS
    if isinstance(error, CallTimeoutError):
        return ErrorType.DEADLINE_EXCEEDED if error.clock in ("call", "stream") else ErrorType.TIMEOUT
    if outcome is Outcome.REJECTED or outcome is Outcome.THROTTLED:
        default = ErrorType.QUEUE_FULL if outcome is Outcome.THROTTLED else ErrorType.OTHER
        return _REJECTED.get(error.rejected_by or "", default)
    if outcome is Outcome.CANCELLED:
        return ErrorType.CANCELLED
    known = _TRANSPORT.get(error.type)
    if known is not None:
        return known
    if isinstance(error, TransportError):
        return ErrorType.TRANSPORT_LOST if error.sent else ErrorType.SEND_FAILED
    return ErrorType.OTHER
