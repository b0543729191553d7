"""How a call ended: one vocabulary for guards, metrics, callers and models.

Guards read outcomes, never exceptions. Inside the chain results are values; an exception is raised once, at the edge.
Every text is worded for a model as much as for a person: it says what to do next and never "try again" (a model told
that repeats the call hundreds of times).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """The one outcome that each call, and each attempt of a call, has."""

    SUCCESS = "success"
    TOOL_ERROR = "tool_error"
    """The tool ran and answered with an error of its own. The service is healthy."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """The caller's mistake; nothing was sent, or the service refused the request as unreadable."""
    THROTTLED = "throttled"
    """Too much at once: come back after ``retry_after`` seconds. The tool did not run."""
    TIMEOUT = "timeout"
    TRANSPORT = "transport"
    """The message could not be sent, or what came back was unreadable."""
    CANCELLED = "cancelled"
    """The caller cancelled the call: neither success nor failure."""
    REJECTED = "rejected"
    """Refused before the tool ran; ``rejected_by`` says by whom."""


class Origin(StrEnum):
    """Where a timeout or a transport error arose, which decides what counts it as a failure."""

    LOCAL = "local"
    """In this process or at the broker: not sent, connection down, queue full, dropped at publish. No circuit breaker and no
    outlier detection counts it."""
    INSTANCE = "instance"
    """At one instance, while another one answers: it was lost or restarted, or did not answer in time. It counts for that
    instance alone."""
    TOOL = "tool"
    """At the service of the tool, as far as is known. It counts for the tool and for the instance."""


class DispatchError(RuntimeError):
    """What every error of a call has. A ``RuntimeError``, because that is what TrustGraph's client raises.

    Attributes:
        outcome: the :class:`Outcome` of the call.
        origin: where it arose, for TIMEOUT and TRANSPORT.
        type: a short name to act on, such as ``timeout`` or the service's own error type.
        message: what happened and what to do next; ``str(error)`` is the same.
        retryable: a repeat is safe *and* could help. False whenever the tool may have run.
        retry_after: seconds to wait before that, or None when unknown.
        rejected_by: which part refused (``catalog``, ``service`` …), for REJECTED and THROTTLED.
        alternatives: names of tools that could serve instead.
    """

    outcome = Outcome.TRANSPORT
    origin = Origin.TOOL

    def __init__(
        self,
        type: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        rejected_by: str | None = None,
        alternatives: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.type = type
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.rejected_by = rejected_by
        self.alternatives = alternatives

    def __repr__(self) -> str:
        return f"{type(self).__name__}(type={self.type!r}, message={self.message!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (pytest-xdist, multiprocessing); keyword-only fields need a helper for that.
        return _rebuild, (type(self), self.__dict__.copy())

    def as_dict(self) -> dict[str, Any]:
        """The error as plain values, for ``--json`` and for a model."""
        return {
            "outcome": str(self.outcome),
            "type": self.type,
            "message": self.message,
            "retryable": self.retryable,
            "retry_after": self.retry_after,
            "rejected_by": self.rejected_by,
            "alternatives": list(self.alternatives),
        }


def _rebuild(cls: type[DispatchError], state: dict[str, Any]) -> DispatchError:
    # RuntimeError comes first among CallTimeoutError's bases, but cannot make what is an OSError as well.
    error: DispatchError = (TimeoutError if issubclass(cls, TimeoutError) else RuntimeError).__new__(cls)
    error.args = (state["message"],)
    error.__dict__.update(state)
    return error


class ToolError(DispatchError):
    """The tool's own error. A tool author raises ``ToolError(type, message)``; a caller gets the same type and message."""

    outcome = Outcome.TOOL_ERROR


class InvalidArgumentsError(DispatchError):
    """The arguments are the caller's mistake. The tool did not run."""

    outcome = Outcome.INVALID_ARGUMENTS


class ThrottledError(DispatchError):
    """Too many calls at once. The tool did not run; ``retry_after`` says when there may be room."""

    outcome = Outcome.THROTTLED


class CallTimeoutError(DispatchError, TimeoutError):
    """No complete answer in time. ``clock`` names the limit that ran out: ``call``, ``attempt``, ``stream`` (absolute)
    or ``stream-idle``. The tool may have run."""

    outcome = Outcome.TIMEOUT

    def __init__(self, message: str, *, clock: str, type: str = "timeout", retryable: bool = False) -> None:
        super().__init__(type, message, retryable=retryable)
        self.clock = clock


class TransportError(DispatchError):
    """The message did not get through, or the answer is unreadable. ``sent`` is False when the request surely never
    left, so that a repeat is safe for any tool."""

    outcome = Outcome.TRANSPORT

    def __init__(
        self,
        type: str,
        message: str,
        *,
        sent: bool = True,
        retryable: bool | None = None,
        retry_after: float | None = None,
        origin: Origin = Origin.LOCAL,
    ) -> None:
        super().__init__(type, message, retryable=not sent if retryable is None else retryable, retry_after=retry_after)
        self.sent = sent
        self.origin = origin


class RejectedError(DispatchError):
    """Refused; the tool did not run. ``rejected_by`` says by whom."""

    outcome = Outcome.REJECTED
