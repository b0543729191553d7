"""Outcomes, error types and exceptions: one vocabulary for guards, metrics, callers and models.

Guards read outcomes, never exceptions. Inside the call path results are values; one exception is raised, at the edge.
An error text says in at most two sentences what failed and why, whether the tool was executed, and what to do next. It
never says "try again": a model that reads this repeats the call hundreds of times.
"""

from __future__ import annotations

from enum import StrEnum
from types import NoneType
from typing import Any, Final

from dispatch._internal import check_instance, is_kind, read_text, scalar_text

OTHER_TYPE: Final = "_OTHER"
"""The value of ``error.type`` for an error whose type is not an :class:`ErrorType` (OpenTelemetry's fallback value)."""

USER_RATE_LIMIT: Final = "user-rate-limit"
"""``rejected_by`` of the errors of a user's own limit."""


class Outcome(StrEnum):
    """How a call, or one attempt of a call, ended. Each has exactly one."""

    SUCCESS = "success"
    """The tool was executed and replied without an error."""
    TOOL_ERROR = "tool_error"
    """The tool was executed and replied with an error of its own. The service is healthy."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """A mistake of the caller: nothing was sent, or the service could not read the request."""
    THROTTLED = "throttled"
    """Too many calls at once: call again after ``retry_after`` seconds. The tool was not executed."""
    TIMEOUT = "timeout"
    """A limit of the call passed before the reply was complete. The tool may have been executed."""
    TRANSPORT = "transport"
    """The request could not be sent, or the reply was lost or unreadable. The tool may have been executed."""
    CANCELLED = "cancelled"
    """The caller cancelled the call: neither success nor failure."""
    REJECTED = "rejected"
    """Rejected before the tool was executed; ``rejected_by`` names the part that rejected it."""


class Origin(StrEnum):
    """Where a timeout or a transport error arose. It decides which circuit breakers and outlier detections count it."""

    LOCAL = "local"
    """In this process or at the broker: not sent, disconnected, queue full, dropped at publish. No circuit breaker and no
    outlier detection counts it."""
    INSTANCE = "instance"
    """At one instance while another instance replies: it was lost, restarted or late. It counts for that instance alone."""
    TOOL = "tool"
    """At the service of the tool, as far as is known. It counts for the tool and for the instance."""


class ErrorType(StrEnum):
    """Every ``type`` of dispatch's own errors: the values of :attr:`DispatchError.type`, and of ``error.type`` in spans and
    logs. A tool's own types are free text; spans and logs say ``tool-error`` for all of them."""

    # The caller's mistakes.
    INVALID_ARGUMENTS = "invalid-arguments"
    """The arguments do not match the schema of the tool; the arguments, the user or the idempotency key have a wrong type or
    cannot be written as JSON; the version is no range; or the call in a model's text cannot be read; the tool was not
    executed."""
    INVALID_CONFIG = "invalid-config"
    """The config values of a TrustGraph-compatible client cannot be written as JSON; the tool was not executed."""
    INVALID_TIMEOUT = "invalid-timeout"
    """A timeout is not a number of seconds above 0 and at most a week; the tool was not executed."""
    UNKNOWN_PRIORITY = "unknown-priority"
    """The priority is not one of the bulkhead's; the tool was not executed."""
    REQUEST_TOO_LARGE = "request-too-large"
    """The request exceeds what the policy, the broker or the instance accepts; the tool was not executed."""
    UNKNOWN_TOOL = "unknown-tool"
    """No tool in the catalogue has this name; no tool was executed."""
    UNKNOWN_SERVICE = "unknown-service"
    """No service in the catalogue has this id; no tool was executed."""
    UNKNOWN_RESULT = "unknown-result"
    """No stored result of the user has this handle; no tool was executed."""

    # Rejected by the dispatcher.
    NOT_PERMITTED = "not-permitted"
    """The user does not have a permission that the tool or its service requires; the tool was not executed."""
    PERMISSIONS_UNAVAILABLE = "permissions-unavailable"
    """The permissions of the user could not be resolved; the tool was not executed."""
    CIRCUIT_OPEN = "circuit-open"
    """The circuit breaker of the tool is open, or half-open with all its trial calls in flight; the tool was not
    executed."""
    RATE_LIMITED = "rate-limited"
    """The rate limit of the tool, or of the user, is reached; the tool was not executed."""
    BULKHEAD_FULL = "bulkhead-full"
    """The limit of calls in flight is reached and the call could not wait; the tool was not executed."""
    VERSION_MISMATCH = "version-mismatch"
    """No version of the tool, or of its service, is in the range that the call or the tool requires; the tool was not
    executed."""
    NO_INSTANCE = "no-instance"
    """No instance of the service is available; the tool was not executed."""
    PENDING_LIMIT = "pending-limit"
    """The dispatcher's table of pending requests is full; the tool was not executed."""

    # Limits of time.
    TIMEOUT = "timeout"
    """The deadline of the call, or of the whole stream, passed; the tool may have been executed."""
    ATTEMPT_TIMEOUT = "attempt-timeout"
    """The limit of the last attempt passed; the tool may have been executed."""
    IDLE_TIMEOUT = "idle-timeout"
    """A stream brought no chunk within its idle limit, or its reader read none that waited; the tool may have been
    executed."""
    SEND_TIMEOUT = "send-timeout"
    """The broker did not accept the request within the limit; the tool was not executed."""
    EXPIRED = "expired"
    """The deadline of the call passed before the service could start the tool; the tool was not executed."""

    # From the service and its instances.
    OVERLOADED = "overloaded"
    """The instance has no room for a further request, or the tool's MCP server asks for a pause (HTTP 429, 503); the tool
    was not executed."""
    DRAINING = "draining"
    """The instance is shutting down and accepts no requests; the tool was not executed."""
    INVALID_REQUEST = "invalid-request"
    """The service could not read the request; the tool was not executed."""
    RELAY_LOOP = "relay-loop"
    """The request has come back to a relay that has forwarded it before; the tool was not executed."""
    SERVICE_REFUSED = "service-refused"
    """The service refused the request for a reason that this version does not know; the tool was not executed."""
    INSTANCE_LOST = "instance-lost"
    """The instance that received the request sends nothing any more; the tool may have been executed."""
    INSTANCE_RESTARTED = "instance-restarted"
    """The instance that received the request has restarted; the tool may have been executed."""
    REPLY_EVICTED = "reply-evicted"
    """The instance no longer keeps the reply that was requested again; the tool may have been executed."""
    MALFORMED_REPLY = "malformed-reply"
    """The reply is not readable; the tool may have been executed."""
    RESPONSE_LIMIT_EXCEEDED = "response-limit-exceeded"
    """The reply exceeds the policy's ``max-response-bytes``, or the reader of a third-party service's stream fell too far
    behind; the tool may have been executed."""
    RESULT_TOO_LARGE = "result-too-large"
    """The service could not send the result because it is too large; the tool was executed."""
    INVALID_RESULT = "invalid-result"
    """The result cannot be written as JSON (an object of a class that JSON does not know, two keys that are one in JSON),
    is not valid text (half of a surrogate pair), or has a number that JSON does not have (NaN, infinity); the tool was
    executed."""
    INVALID_OUTPUT = "invalid-output"
    """The answer does not match the tool's ``output-schema``; the tool was executed, and its answer is preserved."""
    TOOL_ERROR = "tool-error"
    """The tool's own error, where the tool gives no type, and in spans and logs; the tool was executed."""
    CANCELLED = "cancelled"
    """The caller cancelled the call, or the service stopped while the tool ran; the tool may have been executed."""
    CLIENT_FAILED = "client-failed"
    """A client around which dispatch is wrapped raised an unexpected exception; the tool may have been executed."""
    SERVER_FAILED = "server-failed"
    """The tool's MCP server answered with an error of the protocol; the tool may have been executed."""

    # From the connection and the broker.
    CLOSED = "closed"
    """The dispatcher or its connection is closed; the tool was not executed if ``may_have_run`` is False."""
    DISCONNECTED = "disconnected"
    """The connection to the broker is down; the tool was not executed."""
    CONNECTION_LOST = "connection-lost"
    """The connection ended while the request was sent; the tool may have been executed if ``may_have_run`` is True."""
    UNREACHABLE = "unreachable"
    """No broker replies at the address, or it does not open the topic in time; no tool was executed."""
    CONNECTION_REFUSED = "connection-refused"
    """The broker refused the connection; no tool was executed."""
    UNAUTHORIZED = "unauthorized"
    """The broker, or the tool's MCP server (HTTP 401, 403), refused the credentials, or they cannot be read; no tool was
    executed."""
    UNTRUSTED = "untrusted"
    """The TLS handshake with the broker failed; no tool was executed."""
    WRONG_PROTOCOL = "wrong-protocol"
    """The port speaks another protocol, such as HTTP, or Pulsar with TLS in place of without; no tool was executed."""
    BAD_ADDRESS = "bad-address"
    """The address of the broker is not valid; no tool was executed."""
    BAD_TOPIC = "bad-topic"
    """The name of a topic is not valid; no tool was executed."""
    NO_SUCH_NAMESPACE = "no-such-namespace"
    """The broker has no such namespace, or creates no topics in it; no tool was executed."""
    TOPIC_BUSY = "topic-busy"
    """Another client has the topic exclusively; no tool was executed."""
    TOPIC_REFUSED = "topic-refused"
    """The broker refused to open the topic for another reason; no tool was executed."""
    PUBLISH_QUEUE_FULL = "publish-queue-full"
    """Too many messages wait to be published in this process; the tool was not executed."""
    PUBLISH_DROPPED = "publish-dropped"
    """The broker dropped the request at publish; the tool was not executed."""
    SEND_FAILED = "send-failed"
    """Publishing the request failed; the tool may have been executed if ``may_have_run`` is True."""
    PORT_TAKEN = "port-taken"
    """The address of the admin endpoint is in use or not of this machine; no tool was executed."""


_TIMEOUT_TYPES = {
    "attempt": ErrorType.ATTEMPT_TIMEOUT,
    "stream-idle": ErrorType.IDLE_TIMEOUT,
    "stream-reader": ErrorType.IDLE_TIMEOUT,
}
_OWN_TYPES = frozenset(map(str, ErrorType))


class DispatchError(RuntimeError):
    """Base class of every error of a call. A ``RuntimeError``, because that is what TrustGraph's client raises.

    Half of a surrogate pair in ``type`` or ``message`` becomes ``?``: an error reaches models and logs as valid text.

    Attributes:
        outcome: the :class:`Outcome` of the call.
        origin: where it arose, for TIMEOUT and TRANSPORT.
        type: the value of an :class:`ErrorType`, such as ``timeout``; for a tool's own error the tool's own type.
        message: what failed, whether the tool was executed, and what to do next; ``str(error)`` is the same.
        retryable: a repeat is safe *and* could help. False whenever the tool may have been executed, unless the tool is
            declared read-only or idempotent.
        retry_after: seconds to wait before a repeat, rounded up to milliseconds, or None when unknown.
        rejected_by: the part that rejected the call (``permissions``, ``service`` …), for REJECTED and THROTTLED.
        alternatives: names of tools that can be used instead.
    """

    outcome = Outcome.TRANSPORT
    origin = Origin.TOOL
    # Also of a subclass of an application that calls no __init__.
    type: str = ErrorType.TOOL_ERROR.value
    message: str = "The tool was executed and failed without a message. Report the failure, or use another tool."
    retryable: bool = False
    retry_after: float | None = None
    rejected_by: str | None = None
    alternatives: tuple[str, ...] = ()

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
        message = scalar_text(message if is_kind(message, str) else read_text(message))
        super().__init__(message)
        self.type = scalar_text(read_text(type))
        self.message = message
        self.retryable = retryable
        check_instance("retry_after", retry_after, (int, float, NoneType), "a number of seconds, or None")
        self.retry_after = None if retry_after is None else round(retry_after + 0.000_499, 3)
        self.rejected_by = rejected_by
        self.alternatives = alternatives

    def __repr__(self) -> str:
        return f"{type(self).__name__}(type={self.type!r}, message={self.message!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (pytest-xdist, multiprocessing), and pickle passes no keyword arguments.
        return _rebuild, (type(self), self.__dict__.copy())

    @property
    def telemetry_type(self) -> str:
        """The value of ``error.type`` in spans and logs, from a closed set: an :class:`ErrorType`, or
        :data:`OTHER_TYPE` for a type that is not dispatch's own, such as one of an application's transport."""
        if self.outcome is Outcome.TOOL_ERROR:
            return ErrorType.TOOL_ERROR.value
        return self.type if self.type in _OWN_TYPES else OTHER_TYPE

    @property
    def policy_refusal(self) -> str:
        """Why the call was refused because of its caller alone: ``invalid-arguments``, ``unknown-tool``, ``not-permitted``
        or ``user-rate-limit``; empty: it was not. Such a call says nothing about the tool, and is no unavailability."""
        if self.outcome is Outcome.INVALID_ARGUMENTS:
            return ErrorType.INVALID_ARGUMENTS.value
        if self.type in (ErrorType.NOT_PERMITTED, ErrorType.UNKNOWN_TOOL) and self.outcome is Outcome.REJECTED:
            return self.type
        return USER_RATE_LIMIT if self.rejected_by == USER_RATE_LIMIT else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the error as plain values, for ``--json`` and for a model."""
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
    # RuntimeError is the first base of CallTimeoutError, but its __new__ cannot create a subclass of OSError.
    error: DispatchError = (TimeoutError if issubclass(cls, TimeoutError) else RuntimeError).__new__(cls)
    error.args = (state["message"],)
    error.__dict__.update(state)
    return error


class ToolError(DispatchError):
    """The tool's own error. The tool raises ``ToolError(type, message)``; the caller gets the same type and message. A text
    alone, ``ToolError(message)``, has the type ``tool-error``."""

    outcome = Outcome.TOOL_ERROR

    def __init__(self, type: str = ErrorType.TOOL_ERROR.value, message: str | None = None, **details: Any) -> None:
        if message is None:
            message = self.message if type == ToolError.type else type
            type = ToolError.type
        super().__init__(type, message, **details)


class InvalidArgumentsError(DispatchError):
    """The call is invalid: arguments, priority, timeout or size. The tool was not executed."""

    outcome = Outcome.INVALID_ARGUMENTS


class ThrottledError(DispatchError):
    """Too many calls at once. The tool was not executed; ``retry_after`` says when there may be room."""

    outcome = Outcome.THROTTLED


class CallTimeoutError(DispatchError, TimeoutError):
    """No complete reply in time. The tool may have been executed, unless ``type`` is ``expired``.

    Attributes:
        limit_name: the limit that passed: ``call``, ``attempt``, ``stream`` (the whole stream), ``stream-idle`` (between two
            chunks) or ``stream-reader`` (the same time without a read, while chunks waited).
    """

    outcome = Outcome.TIMEOUT

    def __init__(self, message: str, *, limit_name: str, type: str | None = None, retryable: bool = False) -> None:
        super().__init__(type or _TIMEOUT_TYPES.get(limit_name, ErrorType.TIMEOUT), message, retryable=retryable)
        self.limit_name = limit_name


class TransportError(DispatchError):
    """The request could not be sent, or the reply was lost or unreadable.

    Attributes:
        may_have_run: False when the request was certainly not sent, so that a repeat is safe for any tool.
    """

    outcome = Outcome.TRANSPORT

    def __init__(
        self,
        type: str,
        message: str,
        *,
        may_have_run: bool = True,
        retryable: bool | None = None,
        retry_after: float | None = None,
        origin: Origin = Origin.LOCAL,
    ) -> None:
        super().__init__(
            type, message, retryable=not may_have_run if retryable is None else retryable, retry_after=retry_after
        )
        self.may_have_run = may_have_run
        self.origin = origin


class RejectedError(DispatchError):
    """Rejected before the tool was executed; ``rejected_by`` names the part that rejected the call."""

    outcome = Outcome.REJECTED
